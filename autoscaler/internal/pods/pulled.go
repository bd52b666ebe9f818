package pods

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// maxLook bounds one question to the API server.
const maxLook = 500 * time.Millisecond

// Pulled returns a function that says whether the kubelet told that it pulls an image for a pod.
// Kubernetes keeps such events for an hour by default. The function says no if it cannot know.
func Pulled(kube kubernetes.Interface) func(ctx context.Context, namespace, pod string) bool {
	return func(ctx context.Context, namespace, pod string) bool {
		ctx, cancel := context.WithTimeout(ctx, maxLook)
		defer cancel()
		list, err := kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{Limit: 1,
			FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": pod, "reason": "Pulling"}.String()})
		return err == nil && len(list.Items) > 0
	}
}
