//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

func TestANewServiceIsReadyAndItsFirstRequestIsAnswered(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("hello", service{name: "hello", env: map[string]string{"TEXT": "here I am"}}.manifest())
	if reply := probe.Get(s.ctx, s.client(), url); reply.Status != 200 || reply.Body != "here I am\n" {
		t.Fatalf("the first request after Ready: %v", reply)
	}
}

func TestAnIdleServiceGoesToZeroPods(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("idle", service{name: "idle"}.manifest())
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Fatal(reply)
	}
	s.awaitZero("idle")
	object, err := s.Get(s.ctx, services, s.namespace, "idle")
	if err != nil {
		t.Fatal(err)
	}
	if !isReady(object) {
		t.Errorf("at zero the Service is no longer Ready: %s", describe(object))
	}
}

func TestTenRequestsAtZeroAreAllAnswered(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.readyAtZero("asleep", service{name: "asleep"}.manifest())
	replies := probe.Burst(s.ctx, s.client(), url, 10)
	for _, failed := range probe.Failed(replies) {
		t.Error(failed)
	}
}

func TestSlowRequestsAtConcurrencyOneGrowThePodsAndAllSucceed(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("slow", service{name: "slow", concurrency: 1,
		annotations: map[string]string{"autoscaling.knative.dev/max-scale": "8"}}.manifest())
	most := s.watchPods("slow")
	replies := probe.Burst(s.ctx, s.client(), url+"?sleep=1500", 30)
	grown := most()
	for _, failed := range probe.Failed(replies) {
		t.Error(failed)
	}
	pods := map[string]int{}
	for _, reply := range replies {
		pods[reply.Header.Get("X-Pod-Name")]++
		if overlap := reply.Header.Get("X-Overlap"); reply.OK() && overlap != "1" {
			t.Errorf("a pod with containerConcurrency 1 had %s requests at once", overlap)
		}
	}
	if grown < 3 || len(pods) < 2 {
		t.Errorf("during 30 slow requests at most %d pods ran and %d of them answered: %v", grown, len(pods), pods)
	}
	if grown > 8 {
		t.Errorf("%d pods are more than max-scale allows", grown)
	}
}

func TestLoadThatStopsBringsThePodsDown(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("tide", service{name: "tide", concurrency: 2,
		annotations: map[string]string{"autoscaling.knative.dev/max-scale": "5"}}.manifest())
	client := s.client()
	if failed := probe.Failed(probe.Burst(s.ctx, client, url+"?sleep=1000", 12)); len(failed) > 0 {
		t.Fatal(failed)
	}
	s.until("12 concurrent requests bring up a second pod", func() (bool, string, error) {
		failed := probe.Failed(probe.Burst(s.ctx, client, url+"?sleep=500", 12))
		if len(failed) > 0 {
			return false, "", fmt.Errorf("%v", failed)
		}
		pods, err := s.Pods(s.ctx, s.namespace, "tide", false)
		return len(pods) >= 2, fmt.Sprintf("%d pods", len(pods)), err
	})
	prober := probe.Start(client, url, 200*time.Millisecond) // a little load, so that one pod has to stay
	s.until("a little load keeps one pod only", func() (bool, string, error) {
		pods, err := s.Pods(s.ctx, s.namespace, "tide", false)
		return len(pods) == 1, fmt.Sprintf("%d pods", len(pods)), err
	})
	if err := prober.StopAfter(s.ctx, 5).Err(5); err != nil {
		t.Errorf("while pods were deleted: %v", err)
	}
	s.awaitZero("tide")
}

func TestRequestsAreAnsweredThroughSeveralSleeps(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("naps", service{name: "naps"}.manifest())
	client := s.client()
	for range 2 {
		s.awaitZero("naps")
		ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
		if reply := probe.Get(ctx, client, url); !reply.OK() {
			t.Fatal(reply)
		}
		cancel()
	}
}
