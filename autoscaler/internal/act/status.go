package act

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

// Messages of the conditions.
const (
	messageNoTraffic   = "No requests arrive, so no pods are kept."
	messageTimedOut    = "No pod became ready in time."
	messageQueued      = "Requests are held until enough pods are ready."
	messageUnpopulated = "No pod is ready, so activators take the requests."
	messageInitial     = "The initial scale has not been reached yet."
)

// nextStatus returns the status that an order asks for, and whether it differs from what the object
// says. The decision alone is no difference: it is written along with one.
func nextStatus(pa *v1alpha1.PodAutoscaler, o loop.Order) (*v1alpha1.PodAutoscalerStatus, bool) {
	next := pa.Status.DeepCopy()
	want := o.Status
	next.ObservedGeneration = want.Generation
	next.ServiceName = names.PublicService(pa.Name)
	next.MetricsServiceName = names.PrivateService(pa.Name)
	next.InitializeConditions()
	switch want.Active {
	case zero.Yes:
		next.MarkActive()
	case zero.No:
		message := messageNoTraffic
		if want.ActiveReason == zero.TimedOut {
			message = messageTimedOut
		}
		next.MarkInactive(want.ActiveReason, message)
	default:
		next.MarkActivating(zero.Queued, messageQueued)
	}
	if want.Initialized {
		next.MarkScaleTargetInitialized()
	} else {
		next.MarkScaleTargetNotInitialized("", messageInitial)
	}
	if want.Populated {
		next.MarkSKSReady()
	} else {
		next.MarkSKSNotReady(messageUnpopulated)
	}
	if want.Desired >= 0 {
		next.DesiredScale = &want.Desired
	}
	next.ActualScale = &want.Actual
	next.Mode = v1alpha1.ModeServe
	if want.Proxied {
		next.Mode = v1alpha1.ModeProxy
	}
	next.NumActivators = want.Activators
	if want.Learned != (decide.Learned{}) { // while nothing is, what another process left stands
		next.Learned = &v1alpha1.LearnedTarget{Time: metav1.Unix(want.Learned.At, 0), Concurrency: figure(want.Learned.Concurrency), Throughput: figure(want.Learned.Throughput)}
	}
	if equality.Semantic.DeepEqual(&pa.Status, next) {
		return next, false
	}
	next.Decision = Decision(&o.Explanation)
	return next, true
}

func figure(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }

// Decision is what the status says about how an outcome came about.
func Decision(e *revision.Explanation) *v1alpha1.Decision {
	d := &e.Decision
	// Every input is always set: the status is patched, and a missing one would keep its earlier
	// value.
	known := func(f float64) string {
		if !d.Observation.Known {
			return "unknown"
		}
		return figure(f)
	}
	inputs := map[string]string{
		"ready":       fmt.Sprint(d.Observation.Ready),
		"target":      figure(d.Target),
		"total":       figure(d.Total),
		"metric":      d.Metric.String(),
		"excessBurst": figure(d.ExcessBurst),
		"panicking":   strconv.FormatBool(d.Panicking),
		"stable":      known(d.Observation.Stable),
		"panic":       known(d.Observation.Panic),
		"queued":      figure(d.Observation.Queued),
		"missing":     strconv.FormatBool(d.Observation.Missing),
	}
	return &v1alpha1.Decision{Time: metav1.NewMicroTime(d.Time), Desired: e.Step.Want, Rule: e.Rule(), Reason: e.Reason(), Inputs: inputs}
}
