package migrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
)

// direction is which of two systems a move leads to, and how to tell what that system has from what
// the other one has.
type direction struct {
	name string // of who lists endpoints there
	ebb  bool
	// owners are who owns the Services of revisions there; former is the kind of their owners
	// before.
	owners schema.GroupVersionResource
	former string
	// lists selects the EndpointSlices that gateways use there; revision is the label with the name
	// of the revision.
	lists, revision string
}

var (
	toEbb = direction{name: "Ebb's controller", ebb: true, owners: autoscalers, former: "ServerlessService", lists: managedByEbb, revision: names.ServerlessServiceLabel}
	// The mirror of Endpoints is what gateways see of Knative's lists.
	toKnative = direction{name: "Knative", owners: serverless, former: "PodAutoscaler",
		lists: "endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io", revision: "kubernetes.io/service-name"}
)

// managedByEbb selects the EndpointSlices of Ebb's controller.
const managedByEbb = "endpointslice.kubernetes.io/managed-by=ebb-controller"

// fromEbb reports whether an object was applied by a move.
func fromEbb(o Object) bool { return o.GetAnnotations()[appliedAnnotation] != "" }

// leaves reports whether an object belongs to the system that the move leads away from.
func (d *direction) leaves(o Object) bool { return fromEbb(o) != d.ebb }

// unhook removes the registrations of webhooks of the system that the move leads away from.
func (m *Move) unhook(ctx context.Context) error {
	hooks, err := m.hooks(ctx)
	if err != nil {
		return err
	}
	return m.remove(ctx, slices.DeleteFunc(hooks, func(o Object) bool { return !m.to.leaves(o) })...)
}

// give makes the owners of the Services of revisions those of the system that the move leads to.
func (m *Move) give(ctx context.Context) error {
	owners, err := m.byName(ctx, m.to.owners)
	if err != nil {
		return err
	}
	services, err := m.list(ctx, serviceResource, names.ServerlessServiceLabel)
	if err != nil {
		return err
	}
	return each(services, func(s Object) error {
		owner := owners[s.GetNamespace()+"/"+s.GetLabels()[names.ServerlessServiceLabel]]
		if owner == nil || controllerOf(s).Kind != m.to.former {
			return nil // its revision is being deleted, or it has its owner
		}
		return m.own(ctx, s, owner)
	})
}

// listed waits until endpoints of every revision are listed where gateways see them.
func (m *Move) listed(ctx context.Context) error {
	return until(ctx, 5*time.Minute, func(ctx context.Context) (string, error) {
		missing, err := m.byName(ctx, autoscalers)
		if err != nil {
			return "", err
		}
		slices, err := m.list(ctx, sliceResource, m.to.lists)
		if err != nil {
			return "", err
		}
		for _, s := range slices {
			if endpoints, _, _ := unstructured.NestedSlice(s.Object, "endpoints"); len(endpoints) > 0 {
				delete(missing, s.GetNamespace()+"/"+s.GetLabels()[m.to.revision])
			}
		}
		for name := range missing {
			return fmt.Sprintf("the revision %s, and %d more, have no endpoints from %s: kubectl -n %s logs deployment/controller",
				name, len(missing)-1, m.to.name, names.SystemNamespace), nil
		}
		return "", nil
	})
}
