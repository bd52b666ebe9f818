package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/conditions"
)

// Object is one of Ebb's kinds. It has conditions and can be copied.
type Object interface {
	duckv1.KRShaped
	runtime.Object
}

// Client is the part of a kind's generated client that the frame uses.
type Client[T any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	UpdateStatus(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// Kind is the frame around one reconcile of an object of type T. The frame
//
//   - reads the object from the cache and passes on a copy;
//   - does nothing for an object that is being deleted, or whose namespace is, except to finalize it;
//   - sets Ready to Unknown, reason NewObservedGenFailure, before it reconciles a new generation;
//   - makes nothing Ready by a reconcile that failed;
//   - sets observedGeneration afterwards, even if the reconcile failed;
//   - sets lastTransitionTime of the conditions that changed;
//   - writes the status at most once, only if it changed, and not while holdFor says that it can wait.
type Kind[T Object] struct {
	Name     string
	Manager  *Manager
	Informer cache.SharedIndexInformer
	Client   func(namespace string) Client[T]
	// Reconcile gets a copy that it may change. Only changes of the status are written.
	Reconcile func(ctx context.Context, object T) (again time.Duration, err error)
	// KeepStatus is set by reconcilers that do not own the status of the kind.
	KeepStatus bool
	// MayHold, if set, reports whether a status that only shows progress may wait; see holdFor.
	MayHold func(before, after T) bool
	// NewWait makes new objects wait while the Manager is busy (busy.go).
	NewWait bool

	// Mine, if set, selects the objects that this reconciler is responsible for. Leave, if set, is
	// called for all others, to undo what was done while they were selected.
	Mine  func(object T) bool
	Leave func(ctx context.Context, object T) error
	// Finalizer, if set, is added before the first Reconcile and removed after Finalize has
	// succeeded.
	Finalizer string
	Finalize  func(ctx context.Context, object T) error
	// Gone, if set, is called when the object does not exist any more.
	Gone func(key Key)
}

// Controller returns the controller that runs this kind. It watches the kind's own objects.
func (k Kind[T]) Controller() *Controller {
	c := &Controller{Name: k.Name, Reconcile: k.reconcile, Keys: AllOf(k.Informer)}
	created := c.Enqueue
	if k.NewWait {
		created = c.arrivals().Add
	}
	c.handle(k.Informer, c.handler(Self, created, always))
	return c
}

func (k Kind[T]) reconcile(ctx context.Context, key Key) (time.Duration, error) {
	cached, exists, err := k.Informer.GetStore().GetByKey(cache.NewObjectName(key.Namespace, key.Name).String())
	if err != nil || !exists {
		if !exists && k.Gone != nil {
			k.Gone(key)
		}
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
	if k.Manager.Terminating(key.Namespace) {
		return 0, nil
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
	began := object.GetStatus().GetCondition(object.GetConditionSet().GetTopLevelConditionType())
	again, err := k.Reconcile(ctx, object)
	if err != nil {
		conditions.AfterFailure(began, object)
	}
	k.endGeneration(before, object)
	if hold := k.holdFor(before, object); hold > 0 && err == nil {
		return Sooner(again, hold), nil
	}
	if werr := k.writeStatus(ctx, before, object); werr != nil {
		if err == nil {
			return 0, werr
		}
		err = fmt.Errorf("%w (and then: %v)", err, werr)
	}
	return again, k.report(object, err)
}

// report records an Event about a failure. A conflict with a newer object is not a failure.
func (k Kind[T]) report(object T, err error) error {
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !namespaceGoes(err) {
		k.Manager.Events.Event(object, corev1.EventTypeWarning, "InternalError", err.Error())
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

// patchFinalizers replaces the finalizers. The resource version in the patch turns a race with
// another writer into a conflict.
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
