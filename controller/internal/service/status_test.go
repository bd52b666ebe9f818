package service

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// What a person sees first is Ready. It names the cause, not what follows from it, whichever
// changed last.
func TestReadyNamesTheCause(t *testing.T) {
	const no, unknown, yes = corev1.ConditionFalse, corev1.ConditionUnknown, corev1.ConditionTrue
	type condition struct {
		status corev1.ConditionStatus
		reason string
	}
	for _, row := range []struct {
		why           string
		configuration condition
		route         condition
		want          condition
	}{
		{"the revision fails, so the Route has none", condition{no, "RevisionFailed"}, condition{no, "RevisionMissing"}, condition{no, "RevisionFailed"}},
		{"the same while the Route waits", condition{no, "RevisionFailed"}, condition{unknown, "RevisionMissing"}, condition{no, "RevisionFailed"}},
		{"the Route has a trouble of its own", condition{no, "RevisionFailed"}, condition{no, "ErrorConfig"}, condition{no, "ErrorConfig"}},
		{"a new revision fails, the old one serves", condition{no, "RevisionFailed"}, condition{yes, ""}, condition{no, "RevisionFailed"}},
		{"the Route names a revision that is not there", condition{yes, ""}, condition{no, "RevisionMissing"}, condition{no, "RevisionMissing"}},
		{"nothing is known yet", condition{unknown, ""}, condition{unknown, "RevisionMissing"}, condition{unknown, "RevisionMissing"}},
		{"all is well", condition{yes, ""}, condition{yes, ""}, condition{yes, ""}},
	} {
		t.Run(row.why, func(t *testing.T) {
			ready := func(c condition) duckv1.Conditions {
				return duckv1.Conditions{{Type: apis.ConditionReady, Status: c.status, Reason: c.reason, Message: "why: " + c.reason}}
			}
			var svc servingv1.Service
			config := &servingv1.Configuration{}
			config.Status.Conditions = ready(row.configuration)
			route := &servingv1.Route{}
			route.Status.Conditions = ready(row.route)
			svc.GetConditionSet().Manage(&svc.Status).InitializeConditions()
			rollUpConfiguration(&svc, config)
			rollUpRoute(&svc, route)
			tellCause(&svc)
			got := svc.Status.GetCondition(apis.ConditionReady)
			if got.Status != row.want.status || got.Reason != row.want.reason {
				t.Errorf("Ready is %s %q, want %s %q", got.Status, got.Reason, row.want.status, row.want.reason)
			}
			if row.want.reason != "" && got.Message != "why: "+row.want.reason {
				t.Errorf("message %q", got.Message)
			}
		})
	}
}
