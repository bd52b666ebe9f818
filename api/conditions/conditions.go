// Package conditions holds what all kinds with conditions do alike: announcing that a new
// generation was seen and keeping the time of a transition that was none.
//
// Reads and writes: only its arguments. Never: a clock, a client, a log.
package conditions

import (
	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// NewGenerationReason is the Ready condition's reason between a new generation and its first
// successful reconcile.
const NewGenerationReason = "NewObservedGenFailure"

// BeginGeneration turns Ready to Unknown when the object's generation was not reconciled before, so
// that a reader of Ready=True with a stale observedGeneration is not misled when the reconcile that
// follows fails.
func BeginGeneration(object duckv1.KRShaped) {
	status := object.GetStatus()
	if status.ObservedGeneration == object.GetGeneration() {
		return
	}
	// Not MarkUnknown, which leaves Ready False while something it depends on is: that is what the
	// old generation came to.
	set := object.GetConditionSet()
	set.Manage(status).SetCondition(apis.Condition{
		Type: set.GetTopLevelConditionType(), Status: corev1.ConditionUnknown, Reason: NewGenerationReason,
		Message: "unsuccessfully observed a new generation",
	})
}

// AfterFailure gives Ready back what it was when the reconcile began, if that was not True and the
// reconcile failed. Reconcilers set one condition after the other, so Ready may be True for a
// moment because of what was found for an older generation.
func AfterFailure(began *apis.Condition, object duckv1.KRShaped) {
	set, status := object.GetConditionSet(), object.GetStatus()
	if began != nil && !began.IsTrue() && status.GetCondition(began.Type).IsTrue() {
		set.Manage(status).SetCondition(*began)
	}
}

// KeepTransitionTimes gives each condition of status that reads as it did in before the time it had
// there. A reconcile that recomputes conditions from scratch passes through values it does not end
// with.
func KeepTransitionTimes(before, status *duckv1.Status) {
	for i := range status.Conditions {
		condition := &status.Conditions[i]
		old := before.GetCondition(condition.Type)
		if old != nil && sameContent(*old, *condition) {
			condition.LastTransitionTime = old.LastTransitionTime
		}
	}
}

func sameContent(a, b apis.Condition) bool {
	a.LastTransitionTime, b.LastTransitionTime = apis.VolatileTime{}, apis.VolatileTime{}
	return a == b
}
