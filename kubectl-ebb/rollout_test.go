package main

import (
	"bytes"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/test/golden"
)

func TestRolloutStatus(t *testing.T) {
	svc := service("cart", apis.Condition{Status: corev1.ConditionTrue})
	svc.Annotations = map[string]string{names.RolloutGuardAnnotation: "on", names.RolloutDurationAnnotation: "10m"}
	var text bytes.Buffer
	for _, row := range []struct {
		behaviour  string
		conditions duckv1.Conditions
		traffic    []serving.TrafficTarget
	}{
		{"there is none", duckv1.Conditions{{Type: "Ready", Status: "True"}}, []serving.TrafficTarget{to("cart-00001", 100, "")}},
		{"it is judged", duckv1.Conditions{{Type: "IngressReady", Status: "Unknown", Reason: serving.ReasonRolloutInProgress,
			Message: "A gradual rollout of the latest revision(s) is in progress: 0 of 12 requests to the new revision failed."}},
			[]serving.TrafficTarget{to("cart-00001", 99, ""), to("cart-00002", 1, ""), to("cart-00001", 0, "old")}},
		{"it went back", duckv1.Conditions{{Type: "AllTrafficAssigned", Status: "False", Reason: serving.ReasonWentBack,
			Message: `Revision "cart-00002" went back, and "cart-00001" gets its requests: 4 of 12 requests to the new revision failed.`}},
			[]serving.TrafficTarget{to("cart-00001", 100, "")}},
		{"something else is wrong", duckv1.Conditions{{Type: "Ready", Status: "False", Message: "Host is taken."}}, nil},
	} {
		route := &serving.Route{}
		route.Status.Conditions, route.Status.Traffic = row.conditions, row.traffic
		fmt.Fprintf(&text, "---- %s\n", row.behaviour)
		if err := writeRollout(&text, svc, route); err != nil {
			t.Fatal(err)
		}
	}
	golden.File(t, "testdata/rollout-status.txt", text.String())
}

func TestAWordThatWouldMeanNothingIsRefused(t *testing.T) {
	svc, configuration := &serving.Service{}, &serving.Configuration{}
	if _, err := overruleOf(svc, configuration, true); err == nil {
		t.Error("a Service without a revision")
	}
	svc.Status.LatestReadyRevisionName = "cart-00001" // it lags
	configuration.Status.LatestReadyRevisionName = "cart-00002"
	for back, want := range map[bool]string{true: "back cart-00002", false: "promote cart-00002"} {
		if word, err := overruleOf(svc, configuration, back); err != nil || word.String() != want {
			t.Errorf("%q, %v, want %q", word, err, want)
		}
		if word, fault := names.RolloutOverrule(map[string]string{names.RolloutOverruleAnnotation: want}); fault != nil || word.String() != want {
			t.Errorf("%q is read as %q, %v", want, word, fault)
		}
	}
	svc.Spec.Traffic = []serving.TrafficTarget{{RevisionName: "cart-00001"}}
	if _, err := overruleOf(svc, configuration, true); err == nil {
		t.Error("a Service that names its revisions")
	}
	svc.Spec.Traffic = append(svc.Spec.Traffic, serving.TrafficTarget{})
	if _, err := overruleOf(svc, configuration, true); err != nil {
		t.Error(err)
	}
}

func TestTheOnlyRevisionIsNotSentBack(t *testing.T) {
	revision := func(name, generation string) serving.Revision {
		r := serving.Revision{}
		r.Name, r.Labels = name, map[string]string{names.ConfigurationGenerationLabel: generation}
		r.Status.Conditions = duckv1.Conditions{{Type: "Ready", Status: corev1.ConditionTrue}}
		return r
	}
	route, latest := &serving.Route{}, revision("cart-00002", "2")
	if err := goesBack(route, "cart-00002", []serving.Revision{latest}); err == nil {
		t.Error("there is no other one")
	}
	if err := goesBack(route, "cart-00002", []serving.Revision{revision("cart-00001", "1"), latest}); err != nil {
		t.Error(err)
	}
}
