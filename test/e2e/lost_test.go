//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// annotate changes an annotation of the Service's latest Revision. It takes effect without a new
// revision.
func (s *story) annotate(name, key, value string) {
	s.Helper()
	object, err := s.Get(s.ctx, services, s.namespace, name)
	if err != nil {
		s.Fatal(err)
	}
	revision, _, _ := unstructured.NestedString(object.Object, "status", "latestReadyRevisionName")
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value)
	if _, err := s.Dynamic.Resource(cluster.Revisions).Namespace(s.namespace).Patch(s.ctx, revision, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

// awaitMode waits until the autoscaler has the activator in the request path (Proxy) or not
// (Serve).
func (s *story) awaitMode(name, want string) {
	s.Helper()
	s.until("the mode is "+want, func() (bool, string, error) {
		object, err := s.Get(s.ctx, services, s.namespace, name)
		if err != nil {
			return false, err.Error(), nil
		}
		revision, _, _ := unstructured.NestedString(object.Object, "status", "latestReadyRevisionName")
		pa, err := s.Get(s.ctx, cluster.PodAutoscalers, s.namespace, revision)
		if err != nil {
			return false, err.Error(), nil
		}
		mode, _, _ := unstructured.NestedString(pa.Object, "status", "mode")
		return mode == want, mode, nil
	})
}

// The only pod of a service is evicted, then deleted, with the activator out of the request path
// and in it. No client sees a failure.
func TestTheOnlyPodIsEvictedAndThePathChangesWithNoFailedRequest(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("moved", service{name: "moved", annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1",
		"autoscaling.knative.dev/target-burst-capacity": "0"}}.manifest())
	s.awaitMode("moved", "Serve")
	prober := probe.Start(s.client(), url, 25*time.Millisecond)
	replaced := func(remove func(pod string) error) {
		t.Helper()
		pods, err := s.Pods(s.ctx, s.namespace, "moved", false)
		if err != nil || len(pods) == 0 {
			t.Fatalf("%d pods, %v", len(pods), err)
		}
		old := pods[0].Name
		if err := remove(old); err != nil {
			t.Fatal(err)
		}
		s.until("another pod is ready", func() (bool, string, error) {
			pods, err := s.Pods(s.ctx, s.namespace, "moved", false)
			if err != nil {
				return false, err.Error(), nil
			}
			for _, pod := range pods {
				for _, c := range pod.Status.Conditions {
					if pod.Name != old && c.Type == "Ready" && c.Status == "True" {
						return true, "", nil
					}
				}
			}
			return false, fmt.Sprintf("%d pods", len(pods)), nil
		})
	}
	replaced(func(pod string) error {
		return s.Kube.PolicyV1().Evictions(s.namespace).Evict(s.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: s.namespace}})
	})
	s.annotate("moved", "autoscaling.knative.dev/target-burst-capacity", "-1")
	s.awaitMode("moved", "Proxy")
	replaced(func(pod string) error {
		return s.Kube.CoreV1().Pods(s.namespace).Delete(s.ctx, pod, metav1.DeleteOptions{})
	})
	s.annotate("moved", "autoscaling.knative.dev/target-burst-capacity", "0")
	s.awaitMode("moved", "Serve")
	if err := prober.StopAfter(s.ctx, 200).Err(200); err != nil {
		t.Errorf("while the pod and the path changed: %v", err)
	}
}

// scaleActivators sets the number of activator replicas until the test ends.
func (s *story) scaleActivators(n int32) {
	s.Helper()
	restore, err := s.ScaleActivators(s.ctx, n)
	if restore != nil {
		s.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := restore(ctx); err != nil {
				s.Error(err)
			}
		})
	}
	if err != nil {
		s.Fatal(err)
	}
}

// The service handles one request at a time, behind three activators. Two of them are deleted one
// after the other.
func TestTwoOfThreeActivatorsAreDeletedUnderLoadWithNoFailedRequest(t *testing.T) {
	s := beginAlone(t, 4*time.Minute)
	s.needsAProcessOfEach()
	s.scaleActivators(3)
	url := s.ready("shared", service{name: "shared", revision: "shared-1", concurrency: 1, annotations: map[string]string{
		"autoscaling.knative.dev/min-scale": "2", "autoscaling.knative.dev/max-scale": "3", "autoscaling.knative.dev/target-burst-capacity": "-1"}}.manifest())
	s.awaitMode("shared", "Proxy")
	s.until("several activators are in the path", func() (bool, string, error) {
		slice, err := s.Kube.DiscoveryV1().EndpointSlices(s.namespace).Get(s.ctx, "shared-1", metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		return len(slice.Endpoints) >= 2, fmt.Sprintf("%d addresses", len(slice.Endpoints)), nil
	})
	activators, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "app=activator"})
	if err != nil {
		t.Fatal(err)
	}
	prober := probe.Start(s.client(), url+"?sleep=10", 25*time.Millisecond)
	for i, pod := range activators.Items[:2] {
		if err := s.Kube.CoreV1().Pods(cluster.System).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.until("the load goes on", func() (bool, string, error) {
			seen := prober.Seen().Sent
			return seen >= 150*(i+1), fmt.Sprintf("%d requests", seen), nil
		})
	}
	if err := prober.StopAfter(s.ctx, 400).Err(400); err != nil {
		t.Errorf("while activators were deleted: %v", err)
	}
}

// Four pods have one long request each. When only the newest pod is still busy, the others are
// deleted and it stays. Without Ebb's deletion cost, Kubernetes would delete the newest first.
func TestTheBusyPodSurvivesScalingDown(t *testing.T) {
	s := begin(t, 4*time.Minute)
	const older = 3
	url := s.ready("picked", service{name: "picked", concurrency: 1, annotations: map[string]string{
		"autoscaling.knative.dev/max-scale": strconv.Itoa(older), "autoscaling.knative.dev/target-burst-capacity": "-1",
		// The first pod must not be on its way out when the first request comes.
		"autoscaling.knative.dev/scale-to-zero-pod-retention-period": "1m"}}.manifest())
	client := s.client()
	client.Timeout = 0
	streams := map[string]io.ReadCloser{} // by pod; no pod handles two
	open := func() (pod string) {
		t.Helper()
		request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, url+"/stream?n=1000&every=200", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		pod = response.Header.Get("X-Pod-Name")
		if response.StatusCode != 200 || pod == "" || streams[pod] != nil {
			t.Fatalf("a long request got %s from pod %q, which had %d others", response.Status, pod, len(streams))
		}
		streams[pod] = response.Body
		return pod
	}
	for range older {
		open()
	}
	// Kubernetes compares the ages of pods by powers of two and chooses at random among equals.
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
		t.Fatal(s.ctx.Err())
	}
	s.annotate("picked", "autoscaling.knative.dev/max-scale", strconv.Itoa(older+1))
	busy := open() // the others are busy, so it waits for a new pod
	pods, err := s.Pods(s.ctx, s.namespace, "picked", false)
	if err != nil {
		t.Fatal(err)
	}
	born := map[string]time.Time{}
	for _, pod := range pods {
		born[pod.Name] = pod.CreationTimestamp.Time
	}
	for name := range streams {
		if name != busy && born[busy].Sub(born[name]) < 10*time.Second {
			t.Fatalf("pod %s of the last request is not clearly the newest: %v", busy, born)
		}
	}
	for name, stream := range streams {
		if name != busy {
			stream.Close()
		}
	}
	s.until("idle pods are deleted", func() (bool, string, error) {
		pods, err := s.Pods(s.ctx, s.namespace, "picked", false)
		if err != nil {
			return false, err.Error(), nil
		}
		if !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.Name == busy }) {
			t.Fatalf("pod %s is busy and is deleted, %d others stay", busy, len(pods))
		}
		return len(pods) <= 2, fmt.Sprintf("%d pods", len(pods)), nil
	})
	events := bufio.NewScanner(streams[busy])
	for range 10 {
		if !events.Scan() {
			t.Fatalf("the long request ended: %v", events.Err())
		}
	}
}
