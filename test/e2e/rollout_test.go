//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// guarded is a Service whose rollouts are judged, not by times: the node is busy with other tests.
func guarded(name, duration string, env map[string]string) string {
	return strings.Replace(service{name: name, annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}, env: env}.manifest(),
		"  name: "+name+"\n", "  name: "+name+"\n  annotations:\n    serving.knative.dev/rollout-duration: "+duration+
			"\n    serving.ebb.dev/rollout-guard: errors<1%, starts<60s\n", 1)
}

// wentBack waits until the last rollout of a Service went back, and returns why.
func (s *story) wentBack(name string) (why string) {
	s.until("the rollout goes back", func() (bool, string, error) {
		route, err := s.Get(s.ctx, cluster.Routes, s.namespace, name)
		if err != nil {
			return false, err.Error(), nil
		}
		all := cluster.Conditions(route)
		why = all["AllTrafficAssigned"].Message
		return all["AllTrafficAssigned"].Reason == "WentBack" && all["IngressReady"].Status == "True", cluster.Describe(route), nil
	})
	return why
}

func TestARevisionThatFailsGoesBackAndGetsNoRequestAfterThat(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("worse", guarded("worse", "10m", map[string]string{"TEXT": "good"}))
	prober := probe.Start(s.client(), url, 10*time.Millisecond)
	s.apply(guarded("worse", "10m", map[string]string{"TEXT": "bad", "FAIL_PERCENT": "100"}))
	why := s.wentBack("worse")
	during := prober.Stop()
	// The first revision failed nobody, so what failed came from the second.
	if during.Failed == 0 || during.Failed != during.Statuses[500] || during.Failed > during.Sent/10 {
		t.Errorf("%d of %d requests failed, by status %v: %v", during.Failed, during.Sent, during.Statuses, why)
	}
	if !strings.Contains(why, "requests to the new revision failed") {
		t.Errorf("it went back because %s", why)
	}
	if seen := count(probe.Burst(s.ctx, s.client(), url, 200)); seen["good\n"] != 200 {
		t.Errorf("200 requests after it went back: %v", seen)
	}
	// The next template begins anew.
	s.ready("worse", guarded("worse", "3s", map[string]string{"TEXT": "mended"}))
	if seen := count(probe.Burst(s.ctx, s.client(), url, 50)); seen["mended\n"] != 50 {
		t.Errorf("50 requests after it was mended: %v", seen)
	}
}

func TestARevisionThatIsAsGoodGetsAllRequestsInTime(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("equal", guarded("equal", "15s", map[string]string{"TEXT": "one"}))
	prober := probe.Start(s.client(), url, 20*time.Millisecond)
	s.ready("equal", guarded("equal", "15s", map[string]string{"TEXT": "two"}))
	if seen := count(probe.Burst(s.ctx, s.client(), url, 50)); seen["two\n"] != 50 {
		t.Errorf("50 requests after the rollout: %v", seen)
	}
	if err := prober.StopAfter(s.ctx, 100).Err(100); err != nil {
		t.Errorf("during the rollout: %v", err)
	}
}

func TestARevisionThatCannotStartGetsNoRequest(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("broken", guarded("broken", "5s", map[string]string{"TEXT": "good"}))
	prober := probe.Start(s.client(), url, 20*time.Millisecond)
	s.apply(guarded("broken", "5s", map[string]string{"TEXT": "bad", "CRASH": "1"}))
	if _, err := s.Await(s.ctx, cluster.Services, s.namespace, "broken", func(o *unstructured.Unstructured) bool {
		return cluster.Conditions(o)["ConfigurationsReady"].Status == "False"
	}); err != nil {
		t.Fatal(err)
	}
	report := prober.StopAfter(s.ctx, 300)
	if err := report.Err(300); err != nil || len(report.Bodies) != 1 {
		t.Errorf("while it could not start: %v, %v", err, report.Bodies)
	}
}
