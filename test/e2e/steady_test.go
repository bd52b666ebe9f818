//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/test/internal/cluster"
)

// atRest is how long no object may be written.
const atRest = time.Minute

// Services without requests cost the API server nothing: none of their objects changes, whichever
// component might write it, and nobody records an event. Leases belong to the components. A write
// that changes nothing leaves no trace in an object; the tests of the reconcilers count those.
func TestServicesAtRestAreNotWrittenTo(t *testing.T) {
	s := begin(t, 8*time.Minute)
	quick := map[string]string{"autoscaling.knative.dev/window": "6s"}
	s.apply(service{name: "idle", annotations: quick}.manifest())
	s.apply(service{name: "tagged", annotations: quick, traffic: "  - latestRevision: true\n    percent: 100\n    tag: newest\n"}.manifest())
	s.apply(service{name: "kept", annotations: warm}.manifest())
	s.ready("kept", service{name: "kept", annotations: warm}.manifest())
	s.readyAtZero("idle", service{name: "idle", annotations: quick}.manifest())
	s.readyAtZero("tagged", service{name: "tagged", annotations: quick, traffic: "  - latestRevision: true\n    percent: 100\n    tag: newest\n"}.manifest())

	for try := 1; ; try++ {
		activators := s.activators()
		objects, changed := s.rest()
		switch now := s.activators(); {
		case len(changed) == 0:
			return
		case activators != now && try < 3:
			// Load on the machine may scale the activators, and each activator is an address of
			// every service without a pod.
			t.Logf("the activators changed during the test: %q, then %q", activators, now)
		default:
			t.Fatalf("in %s without load, of %d objects these were written: %s", atRest, objects, strings.Join(changed, ", "))
		}
	}
}

// activators returns the names of the activators when none is starting or terminating.
func (s *story) activators() string {
	if err := s.AwaitComponents(s.ctx); err != nil {
		s.Fatal(err)
	}
	pods, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + s.Program("activator")})
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// rest waits until writes have stopped, and then for atRest. It returns how many objects there were
// and which of them were written.
func (s *story) rest() (objects int, changed []string) {
	// Scaling to zero ends with writes. Begin after five seconds without one.
	var before map[string]string
	since := time.Now()
	s.until("writes have stopped", func() (bool, string, error) {
		now, err := s.versions()
		if err != nil {
			return false, err.Error(), nil
		}
		if changed := changes(before, now); before == nil || len(changed) > 0 {
			before, since = now, time.Now()
			return false, fmt.Sprintf("still changing: %v", changed), nil
		}
		return time.Since(since) > 5*time.Second, "no write so far", nil
	})
	if len(before) < 20 {
		s.Fatalf("three services have only these objects: %v", slices.Sorted(maps.Keys(before)))
	}
	timer := time.NewTimer(atRest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
		s.Fatal(s.ctx.Err())
	}
	after, err := s.versions()
	if err != nil {
		s.Fatal(err)
	}
	return len(before), changes(before, after)
}

// versions returns the resource versions of all objects in the namespace that Ebb writes or causes
// others to write.
func (s *story) versions() (map[string]string, error) {
	out := map[string]string{}
	for _, resource := range slices.Concat(children, []schema.GroupVersionResource{cluster.DomainMappings,
		{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "events"}}) {
		list, err := s.Dynamic.Resource(resource).Namespace(s.namespace).List(s.ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		for _, object := range list.Items {
			out[resource.Resource+"/"+object.GetName()] = version(object)
		}
	}
	return out, nil
}

// version changes whenever somebody writes the object. A write by the kubelet does not count: on
// cgroup v1 it adds status.resources.limits to a running pod up to a minute after its start.
func version(object unstructured.Unstructured) string {
	if object.GetKind() != "Pod" {
		return object.GetResourceVersion()
	}
	var writes []string
	for _, entry := range object.GetManagedFields() {
		if entry.Manager != "kubelet" {
			writes = append(writes, fmt.Sprintf("%s at %s", entry.Manager, entry.Time))
		}
	}
	return fmt.Sprint(object.GetUID(), writes)
}

// changes returns the names of objects that were created, written or deleted.
func changes(before, after map[string]string) (names []string) {
	for name, version := range after {
		if before[name] != version {
			names = append(names, name)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			names = append(names, name+" (deleted)")
		}
	}
	slices.Sort(names)
	return names
}
