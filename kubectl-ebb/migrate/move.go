package migrate

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
)

// Move is a move of one cluster, there or back.
type Move struct {
	*Cluster
	Manifests Manifests // not needed for a way back
	Out       io.Writer
	state     *state
	to        *direction

	mutex sync.Mutex
	seen  map[string]seen // under mutex
}

// step is a part of a move. Each one can be repeated, whole or in part, and goes on from what it
// finds.
type step struct {
	name, does string
	do         func(context.Context) error
}

func (m *Move) there() []step {
	return []step{
		{"stop", "stop Knative's controller, webhook and plugins", m.stop},
		{"kinds", "replace the definitions of kinds", m.kinds},
		{"adopt", "take over the Services of revisions", m.adopt},
		{"path", "bring up Ebb, and lead requests to its activators", m.path},
		{"scale", "hand the scaling over to Ebb's autoscaler", m.scale},
		{"routes", "lead hosts by Ebb's HTTPRoutes", m.hosts},
		{"clean", "remove what only Knative has", m.clean},
	}
}

func (m *Move) back() []step {
	return []step{
		{"settings", "give Knative its settings back", m.settingsBack},
		{"stop", "stop Ebb's controller and webhook", m.stopBack},
		{"kinds", "give the definitions of kinds back", m.kindsBack},
		{"adopt", "give the Services of revisions back", m.adoptBack},
		{"path", "bring up Knative, and lead requests to its activators", m.pathBack},
		{"routes", "lead hosts by Knative's Ingresses", m.hostsBack},
		{"clean", "remove what only Ebb has", m.cleanBack},
	}
}

// Apply moves the installation to Ebb, from wherever an earlier run ended.
func (m *Move) Apply(ctx context.Context) error {
	var err error
	m.to = &toEbb
	if m.state, err = m.load(ctx); err != nil {
		return err
	}
	if m.state != nil && m.state.Phase == rollingBack {
		return fmt.Errorf("a rollback to Knative is in progress: finish it first with --rollback")
	}
	if m.state == nil {
		for _, s := range []step{{"pull", "try the images on a node", m.pull}, {"record", "write down what is there", m.record}} {
			if err := m.timed(ctx, s); err != nil {
				return err
			}
		}
	}
	if err := m.walk(ctx, m.there()); err != nil {
		return err
	}
	fmt.Fprintf(m.Out, "\nEbb serves. Services keep Knative's queue-proxy until they are next at zero.\n"+
		"To go back: kubectl ebb migrate --rollback. To forget Knative: kubectl -n %s delete configmap %s\n", names.SystemNamespace, StateName)
	return nil
}

// Rollback gives the installation back to Knative, from any step of a move.
func (m *Move) Rollback(ctx context.Context) error {
	var err error
	m.to = &toKnative
	if m.state, err = m.load(ctx); err != nil {
		return err
	}
	if m.state == nil {
		return fmt.Errorf("there is nothing to go back to: the ConfigMap %s/%s, which a move writes, is not there", names.SystemNamespace, StateName)
	}
	if m.state.Phase != rollingBack {
		m.state.Phase, m.state.Done = rollingBack, nil
		if err := m.save(ctx, m.state); err != nil {
			return err
		}
	}
	if err := m.walk(ctx, m.back()); err != nil {
		return err
	}
	if err := m.Kube.CoreV1().ConfigMaps(names.SystemNamespace).Delete(ctx, StateName, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("forget the move: %w", err)
	}
	fmt.Fprintf(m.Out, "\nKnative Serving %s serves again.\n", m.state.Knative)
	return nil
}

// walk takes the steps that are not done.
func (m *Move) walk(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if slices.Contains(m.state.Done, s.name) {
			fmt.Fprintf(m.Out, "%-10s done before\n", s.name)
			continue
		}
		if err := m.timed(ctx, s); err != nil {
			return err
		}
		m.state.Done = append(m.state.Done, s.name)
		if err := m.save(ctx, m.state); err != nil {
			return err
		}
	}
	return nil
}

func (m *Move) timed(ctx context.Context, s step) error {
	fmt.Fprintf(m.Out, "%-10s %s", s.name, s.does)
	began := time.Now()
	if err := s.do(ctx); err != nil {
		fmt.Fprintln(m.Out)
		return fmt.Errorf("%s: %w\nrun the command again to go on, or with --rollback to go back", s.name, err)
	}
	fmt.Fprintf(m.Out, ": %.1f s\n", time.Since(began).Seconds())
	return nil
}

// record writes down what is there, before anything changes.
func (m *Move) record(ctx context.Context) error {
	s := &state{Phase: applying}
	var err error
	if s.Knative, err = m.version(ctx); err != nil {
		return err
	}
	if s.NamedByHost, err = m.namedByHost(ctx); err != nil {
		return err
	}
	seen := map[string]bool{}
	add := func(o Object) {
		if !seen[id(o)] {
			seen[id(o)] = true
			s.Before = append(s.Before, clean(o))
		}
	}
	theirs, err := m.ofKnative(ctx)
	if err != nil {
		return err
	}
	for _, o := range theirs {
		add(o)
	}
	for _, want := range m.Manifests {
		have, err := m.get(ctx, want)
		if err != nil {
			return err
		}
		switch {
		case have == nil:
			s.Made = append(s.Made, referTo(want))
		case have.GetKind() != "Secret" && have.GetKind() != "Namespace":
			add(have)
		}
	}
	if err := m.begin(ctx, s); err != nil {
		return err
	}
	m.state = s
	return nil
}

// namedByHost reports whether an Ingress has an HTTPRoute with the name of its host.
func (m *Move) namedByHost(ctx context.Context) (bool, error) {
	routes, err := m.list(ctx, httpRouteResource, "")
	return slices.ContainsFunc(routes, func(r Object) bool { return controllerOf(r).Kind == "Ingress" && hasNameOfHost(r) }), err
}

// ofKnative lists the objects of Knative's installation.
func (m *Move) ofKnative(ctx context.Context) (all []Object, err error) {
	for _, kind := range systemKinds {
		list, err := m.listIn(ctx, kind, names.SystemNamespace, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			labels := o.GetLabels()
			if len(o.GetOwnerReferences()) > 0 {
				continue // it comes and goes with its owner, as a gateway's Deployment does
			}
			if labels["app.kubernetes.io/name"] == "knative-serving" || kind == deploymentResource && isPlugin(o) {
				all = append(all, o)
			}
		}
	}
	for _, kind := range append(slices.Clone(clusterKinds), kindResource) {
		list, err := m.list(ctx, kind, partOf)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	// The kinds of other modules may lack the label.
	for _, kind := range onlyKnative {
		have, err := m.get(ctx, object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", kind.GroupResource().String()))
		if err != nil {
			return nil, err
		}
		if have != nil {
			all = append(all, have)
		}
	}
	hooks, err := m.hooks(ctx)
	return append(all, hooks...), err
}

// hooks lists the registrations of webhooks in the system namespace.
func (m *Move) hooks(ctx context.Context) (all []Object, err error) {
	for _, resource := range []schema.GroupVersionResource{mutatingResource, validatingResource} {
		list, err := m.list(ctx, resource, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			if asks(o, names.SystemNamespace) {
				all = append(all, o)
			}
		}
	}
	return all, nil
}
