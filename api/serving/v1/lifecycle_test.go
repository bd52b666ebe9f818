package v1

import (
	"testing"

	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/conditions"
)

func conditionText(c *apis.Condition) string {
	if c == nil {
		return "none"
	}
	return string(c.Status) + " " + c.Reason
}

func TestANewGenerationIsUnknownUntilReconciled(t *testing.T) {
	var s Service
	s.Generation, s.Status.ObservedGeneration = 2, 1
	manager := s.GetConditionSet().Manage(&s.Status)
	manager.InitializeConditions()
	notOwned := func() { manager.MarkFalse(ServiceConditionRoutesReady, ReasonNotOwned, "x") }
	notOwned()
	conditions.BeginGeneration(&s)
	if got := conditionText(s.Status.GetCondition(ServiceConditionReady)); got != "Unknown NewObservedGenFailure" {
		t.Errorf("got %q", got)
	}
	s.Status.ObservedGeneration = 2
	notOwned()
	before := s.Status.DeepCopy()
	conditions.BeginGeneration(&s)
	if got := conditionText(s.Status.GetCondition(ServiceConditionReady)); got != "False NotOwned" {
		t.Errorf("got %q", got)
	}
	manager.MarkUnknown(ServiceConditionRoutesReady, ReasonTrafficNotMigrated, "")
	notOwned()
	conditions.KeepTransitionTimes(&before.Status, &s.Status.Status)
	for _, c := range before.Conditions {
		if now := s.Status.GetCondition(c.Type); !now.LastTransitionTime.Inner.Equal(&c.LastTransitionTime.Inner) {
			t.Errorf("%s seems to have changed", c.Type)
		}
	}
}
