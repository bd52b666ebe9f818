// Package events writes Events to the API server.
//
// Owns: nothing. Reads: nothing. Writes: Events. Never: makes an error of an Event that nobody can
// read any more, because its namespace is gone.
package events

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Sink is where a broadcaster of client-go writes its Events.
func Sink(kube kubernetes.Interface) record.EventSink {
	return sink{&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")}}
}

type sink struct{ record.EventSink }

// Create treats an Event about what was deleted with its namespace as written. client-go logs every
// refusal as an error, and a controller that tidies up after a namespace would log hundreds.
func (s sink) Create(event *corev1.Event) (*corev1.Event, error) {
	made, err := s.EventSink.Create(event)
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return event, nil
	}
	return made, err
}
