package lease

import (
	"context"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Fate is what is known of a replica.
type Fate uint8

const (
	// Lives is one of which nothing else is known.
	Lives Fate = iota
	// Dead is one whose node does not answer. If it runs all the same, it does not know that
	// somebody thinks so.
	Dead
	// Gone is one that does not exist any more.
	Gone
)

func (f Fate) String() string { return [...]string{"alive", "on a dead node", "gone"}[f] }

// mayWrite is for how long a replica may write after it renewed a Lease that lasts so long: others
// leave it alone for that time, whatever they think of it.
func mayWrite(lasts time.Duration) time.Duration { return lasts / 3 }

// OfPod is the fate of a replica in a namespace whose identity is the name of its pod, and after an
// underscore its address, if it has one. dead reports whether a node seems to be dead.
//
// After a restart of its node a pod keeps its name and gets a new address, and no process of it is
// left. One that exists with that address may still write, in whatever state it is.
func OfPod(client kubernetes.Interface, namespace string, dead func(node string) bool) func(ctx context.Context, identity string) Fate {
	return func(ctx context.Context, identity string) Fate {
		name, ip, _ := strings.Cut(identity, "_")
		pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && ip != "" && pod.Status.PodIP != "" && pod.Status.PodIP != ip:
			return Gone
		case err == nil && pod.Spec.NodeName != "" && dead(pod.Spec.NodeName):
			return Dead
		}
		return Lives
	}
}
