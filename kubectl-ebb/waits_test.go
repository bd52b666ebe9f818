package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	serving "ebb.dev/ebb/api/serving/v1"
)

// What a pod waits for is in the condition ContainerHealthy of a revision that was never up, and in
// Active of one that was. explain says the same of both, once.
func TestExplainTellsWhatAPodWaitsFor(t *testing.T) {
	const hint = `Container "user-container" runs and does not pass its readiness probe (HTTP GET /ready, port 8080)`
	const said = "Requests to the target are being buffered as resources are provisioned."
	for what, c := range map[string]struct {
		container, active string
		times             int
	}{
		"never up":              {hint, said + " " + hint, 1},
		"up before":             {"", said + " " + hint, 1},
		"nothing is known":      {"", said, 0},
		"the autoscaler speaks": {"", "The target could not be activated.", 0},
	} {
		t.Run(what, func(t *testing.T) {
			rev := &serving.Revision{ObjectMeta: metav1.ObjectMeta{Name: "hello-00001", Namespace: "shop"}}
			rev.Status.InitializeConditions()
			manager := rev.GetConditionSet().Manage(&rev.Status)
			if c.container != "" {
				manager.MarkUnknown(serving.RevisionConditionContainerHealthy, serving.ReasonDeploying, "%s", c.container)
			}
			manager.SetCondition(apis.Condition{Type: serving.RevisionConditionActive, Status: "Unknown", Severity: apis.ConditionSeverityInfo, Reason: "Queued", Message: c.active})
			pa := &autoscaling.PodAutoscaler{}
			pa.Status.MarkActivating("Queued", said)
			x := explain(&subject{service: &serving.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "shop"}}, revisions: []revision{{Revision: rev, percent: 100, scaler: pa}}})
			n := 0
			for _, p := range x.Problems {
				n += strings.Count(p.Message, hint)
			}
			if n != c.times {
				t.Errorf("it says so %d times, not %d: %+v", n, c.times, x.Problems)
			}
		})
	}
}
