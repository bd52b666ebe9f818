package act

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/standby"
)

// Messages of the conditions.
const (
	messageNoTraffic   = "No requests arrive, so no pods are kept."
	messageTimedOut    = "No pod became ready in time."
	messageQueued      = "Requests are held until enough pods are ready."
	messageUnpopulated = "No pod is ready, so activators take the requests."
	messageInitial     = "The initial scale has not been reached yet."
)

// nextStatus returns the status for an order, and whether it differs from the object's. A new
// decision or idle time alone is not a difference: it is written together with one.
func nextStatus(pa *v1alpha1.PodAutoscaler, o loop.Order) (*v1alpha1.PodAutoscalerStatus, bool) {
	next := pa.Status.DeepCopy()
	want := o.Status
	next.ObservedGeneration = want.Generation
	next.ServiceName = names.PublicService(pa.Name)
	next.MetricsServiceName = names.PrivateService(pa.Name)
	mark(next, want)
	if want.Desired >= 0 {
		next.DesiredScale = &want.Desired
	}
	next.ActualScale = &want.Actual
	if want.Asleep > 0 || next.AsleepReplicas != nil {
		next.AsleepReplicas, next.Asleep = &want.Asleep, asleep(want)
	}
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
	if o.IdleTimes != "" {
		next.IdleTimes = o.IdleTimes
	}
	return next, true
}

// mark sets the conditions.
func mark(next *v1alpha1.PodAutoscalerStatus, want revision.Status) {
	next.InitializeConditions()
	switch want.Active {
	case zero.Yes:
		next.MarkActive()
	case zero.No:
		if want.ActiveReason == zero.TimedOut {
			next.MarkInactive(zero.TimedOut, messageTimedOut)
		} else {
			next.MarkInactive(zero.NoTraffic, messageNoTraffic)
		}
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
	// Without pods that start, what was told of the last ones stands.
	switch s := want.Startup; {
	case s.Reason == v1alpha1.ReasonResizeRefused:
		next.MarkStartupCPULimited(v1alpha1.ReasonResizeRefused, s.Message)
	case s.Reason == v1alpha1.ReasonResizeUnsupported:
		next.MarkStartupCPULimited(v1alpha1.ReasonResizeUnsupported, s.Message)
	case s.Reason == v1alpha1.ReasonResizeNotDone:
		next.MarkStartupCPULimited(v1alpha1.ReasonResizeNotDone, s.Message)
	case s.Raised:
		next.ClearStartupCPULimited()
	}
}

// asleep says how the pods that sleep do, the deepest first.
func asleep(want revision.Status) string {
	var parts []string
	for level := len(want.Deep) - 1; level >= 0; level-- {
		n := want.Deep[level]
		if level == int(standby.Warm) {
			n -= want.Alone + want.Unfrozen
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, standby.Level(level)))
		}
	}
	if want.Alone > 0 {
		parts = append(parts, fmt.Sprintf("%d warm without node agent", want.Alone))
	}
	if want.Unfrozen > 0 {
		parts = append(parts, fmt.Sprintf("%d warm because the freeze failed (%s)", want.Unfrozen, want.FreezeFailure))
	}
	return cmp.Or(strings.Join(parts, ", "), "0")
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
	by := d.Deciding()
	inputs := map[string]string{
		"ready":       fmt.Sprint(d.Observation.Ready),
		"target":      figure(by.Target),
		"total":       figure(d.Total),
		"metric":      by.Metric,
		"excessBurst": figure(d.ExcessBurst),
		"panicking":   strconv.FormatBool(d.Panicking),
		"stable":      known(by.Stable),
		"panic":       known(by.Panic),
		"queued":      figure(d.Observation.Queued),
		"missing":     strconv.FormatBool(d.Observation.Missing),
	}
	return &v1alpha1.Decision{Time: metav1.NewMicroTime(d.Time), Desired: e.Step.Want, Rule: e.Rule(), Reason: e.Reason(), Inputs: inputs}
}

func (w *Writer) writeStatus(ctx context.Context, pa *v1alpha1.PodAutoscaler, o loop.Order) error {
	status, changed := nextStatus(pa, o)
	if !changed || o.Held {
		return nil
	}
	if err := w.check(ctx, o); err != nil {
		return err
	}
	// Only the owner writes the status, so nothing is merged. The version keeps a write that a
	// former owner began from undoing what the next one wrote. The informer may not have seen this
	// process's own last write yet.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pa.UID, "resourceVersion": w.versions.newest(o.Key, pa.ResourceVersion)},
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encode status of %s: %w", o.Key, err)
	}
	written, err := w.client.PodAutoscalers(o.Key.Namespace).Patch(ctx, o.Key.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil { // after a conflict it is tried again on what the informer has then
		return fmt.Errorf("patch status of PodAutoscaler %s: %w", o.Key, err)
	}
	w.versions.note(o.Key, written.ResourceVersion, func(k loop.Key) bool { return w.get(k.Namespace, k.Name) != nil })
	return nil
}

// versions remembers the resource version of each status that this process wrote, which the
// informer may not have seen yet.
type versions struct {
	mutex sync.Mutex
	last  map[loop.Key]string
}

func (v *versions) newest(key loop.Key, seen string) string {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	last, known := v.last[key]
	delete(v.last, key)
	if order, err := resourceversion.CompareResourceVersion(last, seen); known && err == nil && order > 0 {
		return last
	}
	return seen
}

// note also forgets revisions that do not exist any more, now and then.
func (v *versions) note(key loop.Key, version string, exists func(loop.Key) bool) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	if v.last == nil {
		v.last = map[loop.Key]string{}
	}
	v.last[key] = version
	if len(v.last)%1024 == 0 {
		maps.DeleteFunc(v.last, func(k loop.Key, _ string) bool { return !exists(k) })
	}
}
