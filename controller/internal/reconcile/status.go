package reconcile

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/conditions"
)

// How long a status that only shows progress may wait for the next one: the first status of a new
// object, each later one, and any while the Manager is busy.
const (
	firstStatusWithin = 2 * time.Second
	progressWithin    = 10 * time.Second
	busyStatusWithin  = 30 * time.Second
)

// holdFor returns how long the write of a status can wait, 0 for not at all. A new service passes
// through many states until it is Ready, and most of them last for milliseconds. They are not worth
// a write each. The decision needs nothing but the two objects, so no replica has to remember what
// it held back.
//
//	Ready in before   Ready in after   conditions that were True   written
//	any               True or False    any                         now
//	True or False     Unknown          any                         now
//	none              Unknown          none                        firstStatusWithin after the object was created
//	Unknown           Unknown          one is not True any more    now
//	Unknown           Unknown          all are still True          progressWithin after a condition last changed
//
// While the Manager is busy, the last row and the third wait for up to busyStatusWithin.
func (k Kind[T]) holdFor(before, after T) time.Duration {
	if k.MayHold == nil || !k.MayHold(before, after) || sameStatus(before, after) {
		return 0
	}
	top := after.GetConditionSet().GetTopLevelConditionType()
	was, is := before.GetStatus().GetCondition(top), after.GetStatus().GetCondition(top)
	if !is.IsUnknown() || was != nil && !was.IsUnknown() {
		return 0
	}
	since, limit := before.GetCreationTimestamp().Time, firstStatusWithin
	for _, c := range before.GetStatus().Conditions {
		if c.IsTrue() && !after.GetStatus().GetCondition(c.Type).IsTrue() {
			return 0
		}
		if limit = progressWithin; c.LastTransitionTime.Inner.After(since) {
			since = c.LastTransitionTime.Inner.Time
		}
	}
	age := k.Manager.Now().Sub(since)
	if age < 0 { // another clock set the time
		return 0
	}
	if hold := limit - age; hold > 0 {
		return hold
	}
	if age < busyStatusWithin && k.Manager.busy() {
		return firstStatusWithin
	}
	return 0
}

// endGeneration records the generation and the time of each condition that changed.
func (k Kind[T]) endGeneration(before, after T) {
	status := after.GetStatus()
	status.ObservedGeneration = after.GetGeneration()
	for i := range status.Conditions {
		status.Conditions[i].LastTransitionTime = apis.VolatileTime{Inner: metav1.NewTime(k.Manager.Now())}
	}
	conditions.KeepTransitionTimes(before.GetStatus(), status)
}

// statusOf returns the addressable Status field: duckv1.Status is only a part of what most kinds
// publish.
func statusOf(object any) reflect.Value { return reflect.ValueOf(object).Elem().FieldByName("Status") }

func sameStatus(a, b any) bool {
	return equality.Semantic.DeepEqual(statusOf(a).Interface(), statusOf(b).Interface())
}

// writeStatus writes the status of after, if it differs from that of before. After a conflict it
// writes onto the newest object only if that has the status of before: then somebody changed the
// metadata or the spec, which causes the next reconcile, and the status belongs to the
// observedGeneration that it names. If the newest object has another status, this reconcile worked
// with a cache that was behind. What it found is dropped, and the next one starts from the newest
// status.
func (k Kind[T]) writeStatus(ctx context.Context, before, after T) error {
	if sameStatus(before, after) {
		return nil
	}
	client := k.Client(after.GetNamespace())
	_, err := client.UpdateStatus(ctx, after, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		var live T
		if live, err = client.Get(ctx, after.GetName(), metav1.GetOptions{}); err == nil {
			if live.GetUID() != after.GetUID() || sameStatus(live, after) {
				return nil
			}
			if !sameStatus(live, before) {
				return apierrors.NewConflict(schema.GroupResource{Resource: k.Name}, after.GetName(), errors.New("the cache is behind the status"))
			}
			statusOf(live).Set(statusOf(after))
			_, err = client.UpdateStatus(ctx, live, metav1.UpdateOptions{})
		}
	}
	if err != nil && !apierrors.IsNotFound(err) { // not found: deleted meanwhile
		return fmt.Errorf("write status of %s %s/%s: %w", k.Name, after.GetNamespace(), after.GetName(), err)
	}
	return nil
}

// BecameReady reports whether the object became Ready between two versions of its conditions.
func BecameReady(before, after duckv1.Conditions) bool {
	ready := func(all duckv1.Conditions) bool {
		return (&duckv1.Status{Conditions: all}).GetCondition(apis.ConditionReady).IsTrue()
	}
	return !ready(before) && ready(after)
}

// IsNew reports whether an object has no status yet. What goes well until then has no Event: its
// children and the first status tell it with their times, and a new service would have five Events
// within 200 ms.
func IsNew(object duckv1.KRShaped) bool { return object.GetStatus().ObservedGeneration == 0 }
