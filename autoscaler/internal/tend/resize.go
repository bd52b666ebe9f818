package tend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
)

// shrinkAfter is how long a pod sleeps before its requests shrink, so that the scheduler and
// cluster autoscalers see the room. A pod that wakes sooner costs no writes.
const shrinkAfter = 10 * time.Minute

// What a pod that sleeps for long asks for. It must not be zero: the QoS class of a pod cannot
// change.
var (
	shrunkCPU    = resource.MustParse("1m")
	shrunkMemory = resource.MustParse("1Mi")
)

// requests are the resource requests of a pod's containers, by name.
type requests map[string]corev1.ResourceList

// Resizer resizes pods in place.
type Resizer struct{ Kube kubernetes.Interface }

// Nodes returns the allocatable memory of all nodes, in MiB.
func (r *Resizer) Nodes(ctx context.Context) (mib float64, err error) {
	options := metav1.ListOptions{Limit: 200}
	for {
		list, err := r.Kube.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return 0, fmt.Errorf("list nodes: %w", err)
		}
		for i := range list.Items {
			mib += float64(list.Items[i].Status.Allocatable.Memory().Value() >> 20)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return mib, nil
		}
	}
}

// shrink lets a pod that sleeps ask for next to nothing. The annotation with what it asked for
// comes first, so that it can be given back whatever happens in between.
func (r *Resizer) shrink(ctx context.Context, key loop.Key, name string) error {
	pod, err := r.Kube.CoreV1().Pods(key.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get pod %s/%s: %w", key.Namespace, name, err)
	}
	was, next := requests{}, requests{}
	if pod.Status.QOSClass == corev1.PodQOSBurstable { // the others cannot shrink
		for _, c := range pod.Spec.Containers {
			if c.Name == names.QueueProxyContainer { // a request wakes the pod through it
				continue
			}
			small := corev1.ResourceList{}
			for what, least := range map[corev1.ResourceName]resource.Quantity{corev1.ResourceCPU: shrunkCPU, corev1.ResourceMemory: shrunkMemory} {
				if asked, ok := c.Resources.Requests[what]; ok && asked.Cmp(least) > 0 {
					small[what] = least
				}
			}
			if len(small) > 0 {
				was[c.Name], next[c.Name] = c.Resources.Requests, small
			}
		}
	}
	text, err := json.Marshal(was)
	if err != nil {
		return fmt.Errorf("encode requests of pod %s/%s: %w", key.Namespace, name, err)
	}
	if err := r.annotate(ctx, key, name, string(text)); err != nil || len(next) == 0 {
		return err
	}
	return r.resize(ctx, key, name, next)
}

// restore gives a pod back what it asked for before. Tenants can write the annotation too: one that
// can never be applied is removed, so that it is not tried for ever.
func (r *Resizer) restore(ctx context.Context, key loop.Key, pod pods.Pod) error {
	var was requests
	err := json.Unmarshal([]byte(pod.Shrunk), &was)
	if err != nil {
		err = fmt.Errorf("annotation %s of pod %s/%s: %w", names.AwakeRequestsAnnotation, key.Namespace, pod.Name, err)
	} else if len(was) > 0 {
		if err = r.resize(ctx, key, pod.Name, was); err != nil && !apierrors.IsInvalid(err) {
			return err
		}
	}
	return errors.Join(err, r.annotate(ctx, key, pod.Name, nil))
}

func (r *Resizer) annotate(ctx context.Context, key loop.Key, pod string, value any) error {
	return r.patch(ctx, key, pod, map[string]any{"metadata": map[string]any{"annotations": map[string]any{names.AwakeRequestsAnnotation: value}}})
}

func (r *Resizer) resize(ctx context.Context, key loop.Key, pod string, next requests) error {
	var containers []any
	for name, asked := range next {
		containers = append(containers, map[string]any{"name": name, "resources": map[string]any{"requests": asked}})
	}
	return r.patch(ctx, key, pod, map[string]any{"spec": map[string]any{"containers": containers}}, "resize")
}

func (r *Resizer) patch(ctx context.Context, key loop.Key, pod string, patch any, subresource ...string) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode patch of pod %s/%s: %w", key.Namespace, pod, err)
	}
	_, err = r.Kube.CoreV1().Pods(key.Namespace).Patch(ctx, pod, types.StrategicMergePatchType, body, metav1.PatchOptions{}, subresource...)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch pod %s/%s %v: %w", key.Namespace, pod, subresource, err)
	}
	return nil
}
