package act

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/autoscaler/internal/loop"
)

var (
	errTarget   = errors.New("only Deployments of apps/v1 can be scaled")
	errNotOwner = errors.New("this replica does not own the revision any more")
	// errMissing says that there is no Deployment, because its revision was at zero for long. The
	// controller makes it with the scale that the status says.
	errMissing = errors.New("there is no Deployment yet")
	// errStale says that the scale is not the one that the order was decided on. The loop knows.
	errStale = errors.New("somebody else wrote the scale")
)

// check is the fence: it is called right before each write. A worker that was stopped must not go
// on, not even if this replica has the lease again.
func (w *Writer) check(ctx context.Context, o loop.Order) error {
	if ctx.Err() != nil || !w.owners.MayWrite(o.Key) {
		return fmt.Errorf("write %s: %w", o.Key, errNotOwner)
	}
	return nil
}

func checkTarget(o loop.Order) error {
	if o.Target.APIVersion != "apps/v1" || o.Target.Kind != "Deployment" {
		return fmt.Errorf("scale %s %s of %s: %w", o.Target.APIVersion, o.Target.Kind, o.Key, errTarget)
	}
	return nil
}

// replicas returns the scale; that of a Deployment that is not there is 0.
func (w *Writer) replicas(ctx context.Context, o loop.Order) (int32, error) {
	scale, err := w.scale(ctx, o)
	if errors.Is(err, errMissing) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return scale.Spec.Replicas, nil
}

func (w *Writer) scale(ctx context.Context, o loop.Order) (*autoscalingv1.Scale, error) {
	if err := checkTarget(o); err != nil {
		return nil, err
	}
	scale, err := w.kube.AppsV1().Deployments(o.Key.Namespace).GetScale(ctx, o.Target.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get scale of %s/%s: %w", o.Key.Namespace, o.Target.Name, errMissing)
	}
	if err != nil {
		return nil, fmt.Errorf("get scale of %s/%s: %w", o.Key.Namespace, o.Target.Name, err)
	}
	return scale, nil
}

// writeScale writes the scale if it is still what the order was decided on. A write that a former
// owner began before it lost its lease can reach the API server at any time later; this condition
// keeps it from undoing what the next owner wrote.
func (w *Writer) writeScale(ctx context.Context, o loop.Order) error {
	if err := checkTarget(o); err != nil {
		return err
	}
	if err := w.check(ctx, o); err != nil {
		return err
	}
	deployments := w.kube.AppsV1().Deployments(o.Key.Namespace)
	_, err := deployments.Patch(ctx, o.Target.Name, types.JSONPatchType, scalePatch(o.From, o.Replicas), metav1.PatchOptions{}, "scale")
	if apierrors.IsInvalid(err) { // the test failed
		var scale *autoscalingv1.Scale
		if scale, err = w.scale(ctx, o); err != nil {
			return err
		}
		if scale.Spec.Replicas == o.Replicas { // the Deployment was made with it
			return nil
		}
		if scale.Spec.Replicas != o.From {
			w.log.Info("the scale was written by somebody else; deciding again", "revision", o.Key.String(), "from", o.From,
				"to", o.Replicas, "found", scale.Spec.Replicas)
			w.found(o.Key, o.UID, scale.Spec.Replicas)
			return errStale
		}
		// It was changed and changed back meanwhile. The version is a condition, too.
		if err := w.check(ctx, o); err != nil {
			return err
		}
		patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"spec":{"replicas":%d}}`, scale.ResourceVersion, o.Replicas)
		_, err = deployments.Patch(ctx, o.Target.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	}
	if apierrors.IsNotFound(err) {
		err = errMissing
	}
	if err != nil {
		return fmt.Errorf("write scale of %s/%s from %d to %d: %w", o.Key.Namespace, o.Target.Name, o.From, o.Replicas, err)
	}
	return nil
}

// scalePatch is a JSON patch of a Scale from one number of replicas to another. A Scale of zero has
// no field for it.
func scalePatch(from, to int32) []byte {
	was := "null"
	if from != 0 {
		was = strconv.Itoa(int(from))
	}
	return fmt.Appendf(nil, `[{"op":"test","path":"/spec/replicas","value":%s},{"op":"add","path":"/spec/replicas","value":%d}]`, was, to)
}
