// Package apply brings one child object to what its owner wants, with the fewest writes.
//
// Owns: the rule of what belongs to whom (controller references) and which metadata is whose.
// Reads: the cached child it is handed; the API server only when the cache was behind.
// Writes: Create or Update of the child, at most one, none if nothing differs.
// Never: touches an object that another owner controls; drops labels or annotations that third parties put on it, unless the
// caller says that the child's metadata is entirely the owner's.
package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is what can be a child.
type Object interface {
	metav1.Object
	runtime.Object
}

// Client is the part of a generated typed client that Child uses.
type Client[T any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
}

// Outcome tells what Child did.
type Outcome int

const (
	Unchanged Outcome = iota
	Created
	Updated
)

func (o Outcome) String() string { return [...]string{"unchanged", "created", "updated"}[o] }

// NotOwnedError says that an object with a child's name exists and is not the owner's.
type NotOwnedError struct{ Kind, Name string }

func (e *NotOwnedError) Error() string {
	return fmt.Sprintf("there is an existing %s %q that we do not own", e.Kind, e.Name)
}

// IsNotOwned reports whether err is a NotOwnedError.
func IsNotOwned(err error) bool { return errors.As(err, new(*NotOwnedError)) }

// IsRefused reports whether the API server will not have an object as it is: a quota, a policy, a webhook or the schema says no.
// Trying again alone does not help; somebody has to act.
func IsRefused(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest:
		return true
	}
	return false
}

// Child makes the object want exist and be as merge says. have is the cached object and found whether there is one. want
// carries the controller reference to owner. merge changes a copy of the existing object; if the copy then equals the
// original nothing is written. The kind is for messages only.
//
// On failure the outcome tells what was being attempted: Created for a failed creation.
func Child[T Object](ctx context.Context, client Client[T], kind string, owner metav1.Object, have T, found bool, want T,
	merge func(have, want T)) (T, Outcome, error) {
	if !found {
		made, err := client.Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			return made, Created, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return made, Created, fmt.Errorf("create %s %s/%s: %w", kind, want.GetNamespace(), want.GetName(), err)
		}
		// Either the cache is behind what we made a moment ago, or somebody else made it and it lacks our labels.
		if have, err = client.Get(ctx, want.GetName(), metav1.GetOptions{}); err != nil {
			return have, Created, fmt.Errorf("read %s %s/%s: %w", kind, want.GetNamespace(), want.GetName(), err)
		}
	}
	if !metav1.IsControlledBy(have, owner) {
		return have, Unchanged, &NotOwnedError{Kind: kind, Name: have.GetName()}
	}
	next := have.DeepCopyObject().(T)
	merge(next, want)
	if equality.Semantic.DeepEqual(have, next) {
		return have, Unchanged, nil
	}
	after, err := client.Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return have, Updated, fmt.Errorf("update %s %s/%s: %w", kind, want.GetNamespace(), want.GetName(), err)
	}
	return after, Updated, nil
}

// Metadata gives have the labels and annotations of want and keeps what third parties added.
func Metadata(have, want metav1.Object) {
	have.SetLabels(Keys(have.GetLabels(), want.GetLabels()))
	have.SetAnnotations(Keys(have.GetAnnotations(), want.GetAnnotations()))
}

// Keys returns want plus those entries of have that are not Ebb's: an entry is Ebb's if its key names knative.dev, or is the
// label app. So a key that was removed from the owner goes, and `kubectl rollout restart`, a service mesh or a deployment
// tool keep theirs.
func Keys(have, want map[string]string) map[string]string {
	if len(have) == 0 {
		return want
	}
	merged := make(map[string]string, len(have)+len(want))
	for key, value := range have {
		if !Ours(key) {
			merged[key] = value
		}
	}
	maps.Copy(merged, want)
	if len(merged) == 0 && want == nil {
		return nil
	}
	return merged
}

// Ours reports whether a label or annotation key on a child is written by Ebb alone.
func Ours(key string) bool {
	prefix, _, slash := strings.Cut(key, "/")
	return key == "app" || slash && (prefix == "knative.dev" || strings.HasSuffix(prefix, ".knative.dev"))
}
