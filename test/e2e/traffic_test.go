//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
		t.Errorf("at half: %v", failed)
	}
	seen := count(replies)
	// 200 fair coins land outside of 60 to 140 once in a hundred million.
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
		t.Errorf("while traffic moved: %v", err)
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

// A revision that nobody routes to and that sleeps is one object. Going back to it is no different from going back to any other.
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
		return left == 0, fmt.Sprintf("%d objects are left of what was made for the old revision", left), nil
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
		t.Errorf("50 requests after going back: %v", seen)
	}
	if err := prober.StopAfter(s.ctx, 50).Err(50); err != nil {
		t.Errorf("while traffic went back: %v", err)
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
		t.Fatalf("status.traffic gives the tag no URL of its own: %v", traffic)
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
