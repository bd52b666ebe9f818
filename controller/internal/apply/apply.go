// Package apply makes one child object what its owner wants, with as few writes as possible.
//
// Owns: the rules which objects are the owner's (controller references), and which metadata. Reads:
// the cached child that it gets; the API server only if the cache was behind. Writes: at most one
// Create or Update of the child, none if nothing differs; Delete. Never: changes an object that
// another owner controls; drops labels or annotations that third parties added.
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

// Object is an object that can be a child.
type Object interface {
	metav1.Object
	runtime.Object
}

// Client is the part of a generated client that Child uses.
type Client[T any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
}

// Outcome is what Child did.
type Outcome int

const (
	Unchanged Outcome = iota
	Created
	Updated
)

// NotOwnedError means that an object with the child's name exists and that somebody else controls
// it.
type NotOwnedError struct{ Kind, Name string }

func (e *NotOwnedError) Error() string {
	return fmt.Sprintf("there is an existing %s %q that we do not own", e.Kind, e.Name)
}

// IsNotOwned reports whether err is a NotOwnedError.
func IsNotOwned(err error) bool { return errors.As(err, new(*NotOwnedError)) }

// IsRefused reports whether the API server rejected an object because of a quota, a policy, a
// webhook or the schema. A retry does not help; somebody has to act.
func IsRefused(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest:
		return true
	case metav1.StatusReasonInternalError: // of a webhook that does not answer
		return strings.Contains(err.Error(), "failed calling webhook")
	}
	return false
}

// Found turns the result of a lister's Get into an object and whether there is one.
func Found[T any](object T, err error) (T, bool, error) {
	if apierrors.IsNotFound(err) {
		return object, false, nil
	}
	return object, err == nil, err
}

// Deleter is the part of a generated client that Delete uses.
type Deleter interface {
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// Delete deletes an object, unless it is gone already. The kind is for messages only.
func Delete(ctx context.Context, client Deleter, kind string, object metav1.Object, options metav1.DeleteOptions) error {
	if err := client.Delete(ctx, object.GetName(), options); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s %s/%s: %w", kind, object.GetNamespace(), object.GetName(), err)
	}
	return nil
}

// Prune deletes those of the objects that owner controls and whose names are not among the wanted
// ones.
func Prune[T Object](ctx context.Context, client Deleter, kind string, owner metav1.Object, have []T, wanted map[string]bool) error {
	for _, object := range have {
		if wanted[object.GetName()] || !metav1.IsControlledBy(object, owner) {
			continue
		}
		if err := Delete(ctx, client, kind, object, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// Child makes the object want exist, as merge says. have is the cached object, and found tells
// whether there is one. want carries the controller reference to owner. merge changes a copy of the
// existing object; if the copy then equals the original, nothing is written. The kind is for
// messages only.
//
// If Child fails, the outcome is what it tried: Created for a failed creation.
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
		// Either the cache does not show yet what we created, or somebody else created it and it
		// lacks our labels.
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

// Metadata sets the labels and annotations of want on have and keeps those that third parties
// added.
func Metadata(have, want metav1.Object) {
	have.SetLabels(Keys(have.GetLabels(), want.GetLabels()))
	have.SetAnnotations(Keys(have.GetAnnotations(), want.GetAnnotations()))
}

// Keys returns want and those entries of have that are not Ebb's. Ebb's are the label app and all
// keys below knative.dev and ebb.dev. So a key that was removed from the owner is removed here too,
// and the keys of `kubectl rollout restart`, of a service mesh or of a deployment tool stay.
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

// Ours reports whether only Ebb writes a label or annotation with this key.
func Ours(key string) bool {
	prefix, _, slash := strings.Cut(key, "/")
	return key == "app" || slash && (strings.HasSuffix("."+prefix, ".knative.dev") || strings.HasSuffix("."+prefix, ".ebb.dev"))
}
