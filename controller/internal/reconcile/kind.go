package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/conditions"
)

// Object is a kind of Ebb: it has conditions and can be copied.
type Object interface {
	duckv1.KRShaped
	runtime.Object
}

// Client is what the frame needs of the generated typed client of one namespace.
type Client[T any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	UpdateStatus(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// Kind is the frame around one reconcile of an object of type T. The frame
//
//   - reads the object from the cache and hands out a copy;
//   - before a generation is reconciled for the first time, turns Ready to Unknown with reason NewObservedGenFailure;
//   - writes observedGeneration afterwards, also when the reconcile failed;
//   - leaves lastTransitionTime alone when a condition ends as it began;
//   - writes the status only if it differs, once, whatever happened between.
type Kind[T Object] struct {
	Name     string
	Informer cache.SharedIndexInformer
	Client   func(namespace string) Client[T]
	Events   record.EventRecorder
	// Reconcile works on a copy it may change; of its changes only those to Status are written.
	Reconcile func(ctx context.Context, object T) (again time.Duration, err error)
	// KeepStatus is set by a reconciler that is not the one that owns the kind's status (labeler, gc).
	KeepStatus bool
	// Mine, if set, says which objects this reconciler works on, where another one serves the rest. Leave, if set, is called
	// with those that are not its own, to undo what it did while they were; nothing else happens to them.
	Mine  func(object T) bool
	Leave func(ctx context.Context, object T) error
	// Finalizer, with Finalize, is put on objects before the first Reconcile and removed when Finalize succeeded.
	Finalizer string
	Finalize  func(ctx context.Context, object T) error
}

// Controller makes the controller that runs this kind and is told of every change of its objects.
func (k Kind[T]) Controller() *Controller {
	c := &Controller{Name: k.Name, Reconcile: k.reconcile, Keys: AllOf(k.Informer)}
	c.Watch(k.Informer, Self)
	return c
}

func (k Kind[T]) reconcile(ctx context.Context, key Key) (time.Duration, error) {
	id := key.Name
	if key.Namespace != "" {
		id = key.Namespace + "/" + key.Name
	}
	cached, exists, err := k.Informer.GetStore().GetByKey(id)
	if err != nil || !exists {
		return 0, err
	}
	before, ok := cached.(T)
	if !ok {
		return 0, Permanent(fmt.Errorf("%s cache holds a %T", k.Name, cached))
	}
	object := before.DeepCopyObject().(T)

	if !object.GetDeletionTimestamp().IsZero() {
		return 0, k.finalize(ctx, object)
	}
	if k.Finalizer != "" && !slices.Contains(object.GetFinalizers(), k.Finalizer) {
		if object, err = k.patchFinalizers(ctx, object, append(slices.Clone(object.GetFinalizers()), k.Finalizer)); err != nil {
			return 0, err
		}
		before = object.DeepCopyObject().(T)
	}
	if k.Mine != nil && !k.Mine(object) {
		if k.Leave == nil {
			return 0, nil
		}
		return 0, k.report(object, k.Leave(ctx, object))
	}
	if k.KeepStatus {
		again, err := k.Reconcile(ctx, object)
		return again, k.report(object, err)
	}

	conditions.BeginGeneration(object)
	again, err := k.Reconcile(ctx, object)
	endGeneration(before, object)
	if werr := k.writeStatus(ctx, before, object); werr != nil {
		if err == nil {
			return 0, werr
		}
		err = fmt.Errorf("%w (and then: %v)", err, werr)
	}
	return again, k.report(object, err)
}

// report makes a failure visible on the object. A newer object in the API server than in the cache is no failure.
func (k Kind[T]) report(object T, err error) error {
	if err != nil && k.Events != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !namespaceGoes(err) {
		k.Events.Event(object, corev1.EventTypeWarning, "InternalError", err.Error())
	}
	return err
}

func (k Kind[T]) finalize(ctx context.Context, object T) error {
	if k.Finalizer == "" || !slices.Contains(object.GetFinalizers(), k.Finalizer) {
		return nil
	}
	if err := k.Finalize(ctx, object); err != nil {
		return k.report(object, fmt.Errorf("clean up after %s %s/%s: %w", k.Name, object.GetNamespace(), object.GetName(), err))
	}
	rest := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == k.Finalizer })
	_, err := k.patchFinalizers(ctx, object, rest)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// patchFinalizers replaces the finalizers; the resource version in the patch makes a race with another writer a conflict.
func (k Kind[T]) patchFinalizers(ctx context.Context, object T, finalizers []string) (T, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"finalizers": finalizers, "resourceVersion": object.GetResourceVersion(),
	}})
	if err != nil {
		return object, err
	}
	after, err := k.Client(object.GetNamespace()).Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return object, fmt.Errorf("set finalizers of %s %s/%s: %w", k.Name, object.GetNamespace(), object.GetName(), err)
	}
	return after, nil
}

// endGeneration records the generation and restores the transition times of conditions that ended as they began.
func endGeneration(before, after Object) {
	after.GetStatus().ObservedGeneration = after.GetGeneration()
	conditions.KeepTransitionTimes(before.GetStatus(), after.GetStatus())
}

// statusOf returns the addressable Status field: duckv1.Status is only a part of what most kinds publish.
func statusOf(object any) reflect.Value { return reflect.ValueOf(object).Elem().FieldByName("Status") }

func (k Kind[T]) writeStatus(ctx context.Context, before, after T) error {
	if equality.Semantic.DeepEqual(statusOf(before).Interface(), statusOf(after).Interface()) {
		return nil
	}
	client := k.Client(after.GetNamespace())
	_, err := client.UpdateStatus(ctx, after, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		// Somebody changed metadata or spec meanwhile. The status was computed for observedGeneration, which says so, and
		// the event of the other change brings the next reconcile: write it on the newest object.
		live, gerr := client.Get(ctx, after.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(gerr) {
			return nil
		} else if gerr != nil {
			return fmt.Errorf("read %s %s/%s: %w", k.Name, after.GetNamespace(), after.GetName(), gerr)
		}
		if live.GetUID() != after.GetUID() {
			return nil
		}
		if live.GetStatus().ObservedGeneration > after.GetStatus().ObservedGeneration {
			return nil // a newer reconcile than this one has spoken
		}
		// The cache was behind our own last write, as it is most times: then there is nothing to say again.
		conditions.KeepTransitionTimes(live.GetStatus(), after.GetStatus())
		if equality.Semantic.DeepEqual(statusOf(live).Interface(), statusOf(after).Interface()) {
			return nil
		}
		statusOf(live).Set(statusOf(after))
		_, err = client.UpdateStatus(ctx, live, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return fmt.Errorf("write status of %s %s/%s: %w", k.Name, after.GetNamespace(), after.GetName(), err)
	}
	return nil
}

// BecameReady reports whether the object became Ready between two versions, for the event that says so.
func BecameReady(before, after duckv1.Conditions) bool {
	return !isTrue(before) && isTrue(after)
}

func isTrue(all duckv1.Conditions) bool {
	for _, c := range all {
		if c.Type == apis.ConditionReady {
			return c.IsTrue()
		}
	}
	return false
}
