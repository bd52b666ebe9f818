//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

func TestASecondRevisionTakesHalfThenAllWithNoFailedRequest(t *testing.T) {
	s := begin(t, 4*time.Minute)
	first := service{name: "colours", revision: "colours-blue", env: map[string]string{"TEXT": "blue"},
		traffic: "  - revisionName: colours-blue\n    percent: 100\n"}
	url := s.ready("colours", first.manifest())

	prober := probe.Start(s.client(), url, 50*time.Millisecond)
	second := service{name: "colours", revision: "colours-green", env: map[string]string{"TEXT": "green"},
		traffic: "  - revisionName: colours-blue\n    percent: 50\n  - revisionName: colours-green\n    percent: 50\n"}
	s.ready("colours", second.manifest())

	replies := probe.Burst(s.ctx, s.client(), url, 200)
	if failed := probe.Failed(replies); len(failed) > 0 {
		t.Errorf("at 50 %% each: %v", failed)
	}
	seen := count(replies)
	// 200 fair coin flips give fewer than 60 or more than 140 heads once in a hundred million runs.
	if seen["blue\n"] < 60 || seen["green\n"] < 60 {
		t.Errorf("200 requests at 50 %% each: %v", seen)
	}

	second.traffic = "  - revisionName: colours-green\n    percent: 100\n"
	s.ready("colours", second.manifest())
	replies = probe.Burst(s.ctx, s.client(), url, 50)
	if seen := count(replies); seen["green\n"] != 50 {
		t.Errorf("50 requests after all traffic went to the second revision: %v %v", seen, probe.Failed(replies))
	}
	if err := prober.StopAfter(s.ctx, 50).Err(50); err != nil {
		t.Errorf("while traffic was shifted: %v", err)
	}
}

func TestANewRevisionOfALatestServiceTakesOverWithNoFailedRequest(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("roll", service{name: "roll", env: map[string]string{"TEXT": "one"}}.manifest())
	prober := probe.Start(s.client(), url, 50*time.Millisecond)
	s.ready("roll", service{name: "roll", env: map[string]string{"TEXT": "two"}}.manifest())
	if reply := probe.Get(s.ctx, s.client(), url); reply.Body != "two\n" {
		t.Errorf("the first request after the second revision was Ready: %v", reply)
	}
	if err := prober.StopAfter(s.ctx, 20).Err(20); err != nil {
		t.Errorf("while the revision changed: %v", err)
	}
}

// A revision at zero without a route has one object left. Rolling back to it works as for any other
// revision.
func TestGoingBackToARevisionOfWhichOnlyOneObjectIsLeftFailsNoRequest(t *testing.T) {
	s := begin(t, 5*time.Minute)
	quick := map[string]string{"autoscaling.knative.dev/window": "6s"}
	first := service{name: "back", revision: "back-blue", env: map[string]string{"TEXT": "blue"}, annotations: quick,
		traffic: "  - revisionName: back-blue\n    percent: 100\n"}
	url := s.ready("back", first.manifest())
	second := service{name: "back", revision: "back-green", env: map[string]string{"TEXT": "green"}, annotations: quick,
		traffic: "  - revisionName: back-green\n    percent: 100\n"}
	s.ready("back", second.manifest())

	err := cluster.Until(s.ctx, func() (bool, string, error) {
		left := 0
		for _, resource := range children {
			list, err := s.Dynamic.Resource(resource).Namespace(s.namespace).List(s.ctx,
				metav1.ListOptions{LabelSelector: "serving.knative.dev/revision=back-blue"})
			if err != nil {
				return false, "", err
			}
			left += len(list.Items)
		}
		return left == 0, fmt.Sprintf("%d objects of the old revision are left", left), nil
	})
	if err != nil {
		t.Fatal(err)
	}

	prober := probe.Start(s.client(), url, 50*time.Millisecond)
	second.traffic = "  - revisionName: back-green\n    percent: 50\n  - revisionName: back-blue\n    percent: 50\n"
	s.ready("back", second.manifest())
	if seen := count(probe.Burst(s.ctx, s.client(), url, 200)); seen["blue\n"] < 60 || seen["green\n"] < 60 {
		t.Errorf("200 requests at 50 %% each: %v", seen)
	}
	second.traffic = "  - revisionName: back-blue\n    percent: 100\n"
	s.ready("back", second.manifest())
	if seen := count(probe.Burst(s.ctx, s.client(), url, 50)); seen["blue\n"] != 50 {
		t.Errorf("50 requests after the rollback: %v", seen)
	}
	if err := prober.StopAfter(s.ctx, 50).Err(50); err != nil {
		t.Errorf("during the rollback: %v", err)
	}
}

func TestATagHasItsOwnHost(t *testing.T) {
	s := begin(t, 3*time.Minute)
	s.ready("tagged", service{name: "tagged", revision: "tagged-a", env: map[string]string{"TEXT": "a"},
		traffic: "  - revisionName: tagged-a\n    percent: 100\n"}.manifest())
	url := s.ready("tagged", service{name: "tagged", revision: "tagged-b", env: map[string]string{"TEXT": "b"},
		traffic: "  - revisionName: tagged-a\n    percent: 100\n  - revisionName: tagged-b\n    percent: 0\n    tag: candidate\n"}.manifest())

	object, err := s.Get(s.ctx, services, s.namespace, "tagged")
	if err != nil {
		t.Fatal(err)
	}
	tagURL := ""
	traffic, _, _ := unstructured.NestedSlice(object.Object, "status", "traffic")
	for _, target := range traffic {
		if fields := target.(map[string]any); fields["tag"] == "candidate" {
			tagURL, _ = fields["url"].(string)
		}
	}
	if tagURL == "" || tagURL == url {
		t.Fatalf("status.traffic has no URL for the tag: %v", traffic)
	}
	client := s.client()
	for range 5 {
		if reply := probe.Get(s.ctx, client, url); reply.Body != "a\n" {
			t.Errorf("the service's own host: %v", reply)
		}
		if reply := probe.Get(s.ctx, client, tagURL); reply.Body != "b\n" {
			t.Errorf("the tag's host %s: %v", tagURL, reply)
		}
	}
}

func TestARolloutTakesAsLongAsItIsGiven(t *testing.T) {
	s := begin(t, 4*time.Minute)
	manifest := func(text string) string {
		return strings.Replace(service{name: "slowly", annotations: warm, env: map[string]string{"TEXT": text}}.manifest(),
			"  name: slowly\n", "  name: slowly\n  annotations:\n    serving.knative.dev/rollout-duration: 10s\n", 1)
	}
	url := s.ready("slowly", manifest("one"))
	s.apply(manifest("two"))
	client := s.client()
	ready := make(chan error, 1)
	go func() { _, err := s.AwaitReady(s.ctx, s.namespace, "slowly"); ready <- err }()

	// Count the responses of the old revision after the first one of the new. If all traffic moved
	// at once, there would be hardly any.
	begun, oldAfterNew := false, 0
	for done := false; !done; {
		select {
		case err := <-ready:
			if done = true; err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Millisecond):
			switch reply := probe.Get(s.ctx, client, url); {
			case !reply.OK():
				t.Errorf("during the rollout: %v", reply)
			case reply.Body == "two\n":
				begun = true
			case begun:
				oldAfterNew++
			}
		}
	}
	if !begun || oldAfterNew < 10 {
		t.Errorf("the new revision answered: %v; after that the old one answered %d times, want at least 10", begun, oldAfterNew)
	}
	if seen := count(probe.Burst(s.ctx, client, url, 20)); seen["two\n"] != 20 {
		t.Errorf("20 requests after the rollout: %v", seen)
	}
}

func TestGoingBackToARevisionOfOnesOwnNameMakesNothingNew(t *testing.T) {
	s := begin(t, 3*time.Minute)
	first := service{name: "back", revision: "back-one", env: map[string]string{"TEXT": "one"}}
	s.ready("back", first.manifest())
	s.ready("back", service{name: "back", revision: "back-two", env: map[string]string{"TEXT": "two"}}.manifest())
	url := s.ready("back", first.manifest())
	if reply := probe.Get(s.ctx, s.client(), url); reply.Body != "one\n" {
		t.Errorf("after the rollback: %v", reply)
	}
	list, err := s.Dynamic.Resource(cluster.Revisions).Namespace(s.namespace).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 {
		t.Errorf("%d revisions, want 2", len(list.Items))
	}
	first.env = map[string]string{"TEXT": "another"}
	if err := s.Apply(s.ctx, s.namespace, first.manifest()); err == nil || !strings.Contains(err.Error(), "without a name change") {
		t.Errorf("another template under the same name: %v", err)
	}
}

func TestWhatIsPrivateIsReachedFromInsideOnly(t *testing.T) {
	s := begin(t, 3*time.Minute)
	manifest := service{name: "shop", env: map[string]string{"TEXT": "shop"}, traffic: "  - latestRevision: true\n    percent: 100\n    tag: staff\n"}.manifest()
	public := s.ready("shop", manifest)
	client, inside := s.client(), s.insideClient()
	get := func(client *http.Client, host string) string {
		reply := probe.Get(s.ctx, client, "http://"+host+"/")
		return fmt.Sprint(reply.Status, " ", reply.Body)
	}
	host, err := cluster.HostOf(public)
	if err != nil {
		t.Fatal(err)
	}
	private := "." + s.namespace + ".svc.cluster.local"

	// First one tag, by the label on its placeholder Service.
	label := func(service string) {
		patch := []byte(`{"metadata":{"labels":{"networking.knative.dev/visibility":"cluster-local"}}}`)
		if _, err := s.Kube.CoreV1().Services(s.namespace).Patch(s.ctx, service, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.until("the tag's host answers", func() (bool, string, error) {
		said := get(client, "staff-"+host)
		return said == "200 shop\n", said, nil
	})
	label("staff-shop")
	s.until("the tag's host returns 404 outside the cluster", func() (bool, string, error) {
		said := get(client, "staff-"+host)
		return strings.HasPrefix(said, "404"), said, nil
	})
	s.until("the tag's host answers inside the cluster", func() (bool, string, error) {
		said := get(inside, "staff-shop"+private)
		return said == "200 shop\n", said, nil
	})
	if said := get(client, host); said != "200 shop\n" {
		t.Errorf("the Service itself is public, but returns %q", said)
	}

	// Then the whole Service.
	s.apply(strings.Replace(manifest, "  name: shop\n", "  name: shop\n  labels:\n    networking.knative.dev/visibility: cluster-local\n", 1))
	s.until("the host returns 404 outside the cluster", func() (bool, string, error) {
		said := get(client, host)
		return strings.HasPrefix(said, "404"), said, nil
	})
	if _, err := s.Await(s.ctx, services, s.namespace, "shop", func(object *unstructured.Unstructured) bool {
		url, _, _ := unstructured.NestedString(object.Object, "status", "url")
		return isReady(object) && url == "http://shop"+private
	}); err != nil {
		t.Errorf("its URL is not the cluster-local one: %v", err)
	}
	if said := get(inside, "shop"+private); said != "200 shop\n" {
		t.Errorf("inside the cluster it returns %q", said)
	}
	if said := get(client, "shop"+private); !strings.HasPrefix(said, "404") {
		t.Errorf("the public gateway returns %q for the cluster-local name", said)
	}
}

// insideClient returns a client that connects to the cluster-local gateway.
func (s *story) insideClient() *http.Client {
	s.Helper()
	address, err := s.LocalGateway(s.ctx, "80")
	if err != nil {
		s.Fatal(err)
	}
	client := s.ClientOf(address, time.Minute)
	s.Cleanup(client.CloseIdleConnections)
	return client
}

func TestAnUnknownHostGets404(t *testing.T) {
	s := begin(t, time.Minute)
	reply := probe.Get(s.ctx, s.client(), fmt.Sprintf("http://nobody.%s.example.invalid/", s.namespace))
	if reply.Status != 404 {
		t.Errorf("got %v, want 404", reply)
	}
}

func count(replies []probe.Reply) map[string]int {
	seen := map[string]int{}
	for _, reply := range replies {
		seen[reply.Body]++
	}
	return seen
}
