package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func isConflict(err error) bool { return apierrors.IsConflict(err) }

// Decode splits a manifest into its objects.
func Decode(manifest string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(manifest)), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the manifest is not valid YAML: %w", err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// Apply puts the manifest's objects into namespace, as `kubectl apply --server-side` does.
func (c *Cluster) Apply(ctx context.Context, namespace, manifest string) error {
	objects, err := Decode(manifest)
	if err != nil {
		return err
	}
	for _, object := range objects {
		kind := object.GroupVersionKind()
		mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, object.GetName(), err)
		}
		client := c.Dynamic.Resource(mapping.Resource)
		options := metav1.ApplyOptions{FieldManager: "ebb-test", Force: true}
		if mapping.Scope.Name() == "namespace" {
			object.SetNamespace(namespace)
			_, err = client.Namespace(namespace).Apply(ctx, object.GetName(), object, options)
		} else {
			_, err = client.Apply(ctx, object.GetName(), object, options)
		}
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, object.GetName(), err)
		}
	}
	return nil
}

// Get reads one object.
func (c *Cluster) Get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	return c.Dynamic.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Condition is one condition of a status.
type Condition struct{ Type, Status, Reason, Message, Severity string }

func (c Condition) String() string {
	text := c.Type + "=" + c.Status
	if c.Reason != "" {
		text += " (" + c.Reason + ")"
	}
	if c.Message != "" {
		text += " " + c.Message
	}
	return text
}

// Conditions returns the conditions of an object by type.
func Conditions(object *unstructured.Unstructured) map[string]Condition {
	found := map[string]Condition{}
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, item := range list {
		fields, _ := item.(map[string]any)
		text := func(key string) string { s, _ := fields[key].(string); return s }
		found[text("type")] = Condition{text("type"), text("status"), text("reason"), text("message"), text("severity")}
	}
	return found
}

// Describe returns one line about an object's status.
func Describe(object *unstructured.Unstructured) string {
	var parts []string
	for _, condition := range Conditions(object) {
		parts = append(parts, condition.String())
	}
	sort.Strings(parts)
	observed, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	return fmt.Sprintf("%s %s (generation %d, observed %d): %s",
		object.GetKind(), object.GetName(), object.GetGeneration(), observed, strings.Join(parts, "; "))
}

// IsReady reports whether the object's newest generation is observed and its Ready condition is
// True.
func IsReady(object *unstructured.Unstructured) bool {
	observed, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	return observed == object.GetGeneration() && Conditions(object)["Ready"].Status == "True"
}

// Await reads one object until done returns true. The error says what was last seen.
func (c *Cluster) Await(ctx context.Context, resource schema.GroupVersionResource, namespace, name string, done func(*unstructured.Unstructured) bool) (*unstructured.Unstructured, error) {
	var found *unstructured.Unstructured
	err := Until(ctx, func() (bool, string, error) {
		object, err := c.Get(ctx, resource, namespace, name)
		if apierrors.IsNotFound(err) {
			return false, fmt.Sprintf("%s %s/%s does not exist", resource.Resource, namespace, name), nil
		}
		if err != nil {
			return false, err.Error(), nil // wait for a server that is busy or restarts
		}
		found = object
		return done(object), Describe(object), nil
	})
	return found, err
}

// AwaitReady waits until the Service's newest generation is Ready and returns its URL.
func (c *Cluster) AwaitReady(ctx context.Context, namespace, name string) (url string, err error) {
	object, err := c.Await(ctx, Services, namespace, name, IsReady)
	if err != nil {
		return "", fmt.Errorf("the Service %s/%s is not Ready: %w", namespace, name, err)
	}
	url, _, _ = unstructured.NestedString(object.Object, "status", "url")
	if _, err := HostOf(url); err != nil {
		return "", fmt.Errorf("the Service %s/%s is Ready: %w", namespace, name, err)
	}
	return url, nil
}

// Pause waits, unless ctx ends before.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Until calls look every tenth of a second until it is done, fails, or ctx ends. The error then
// says what was last seen.
func Until(ctx context.Context, look func() (done bool, seen string, err error)) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	begun := time.Now()
	last := "nothing"
	for {
		done, seen, err := look()
		if err != nil {
			return err
		}
		if done {
			return nil
		}
		if ctx.Err() == nil || last == "nothing" {
			last = seen
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up after %s (%w), last seen: %s", time.Since(begun).Round(100*time.Millisecond), context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}

// Pods lists the pods of a Service that are not terminating, or all of them if terminating is set.
func (c *Cluster) Pods(ctx context.Context, namespace, service string, terminating bool) ([]corev1.Pod, error) {
	return c.podsBy(ctx, namespace, "serving.knative.dev/service="+service, terminating)
}

// PodsOf lists the pods of a revision in the same way.
func (c *Cluster) PodsOf(ctx context.Context, namespace, revision string, terminating bool) ([]corev1.Pod, error) {
	return c.podsBy(ctx, namespace, "serving.knative.dev/revision="+revision, terminating)
}

func (c *Cluster) podsBy(ctx context.Context, namespace, selector string, terminating bool) ([]corev1.Pod, error) {
	list, err := c.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s in %s: %w", selector, namespace, err)
	}
	var pods []corev1.Pod
	for _, pod := range list.Items {
		if terminating || pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// AwaitNoPods waits until a Service has no pod left, terminating ones included.
func (c *Cluster) AwaitNoPods(ctx context.Context, namespace, service string) error {
	return Until(ctx, func() (bool, string, error) {
		pods, err := c.Pods(ctx, namespace, service, true)
		if err != nil {
			return false, err.Error(), nil
		}
		var names []string
		for _, pod := range pods {
			state := string(pod.Status.Phase)
			if pod.DeletionTimestamp != nil {
				state = "Terminating"
			}
			names = append(names, pod.Name+" "+state)
		}
		return len(pods) == 0, fmt.Sprintf("%d pods: %s", len(pods), strings.Join(names, ", ")), nil
	})
}
