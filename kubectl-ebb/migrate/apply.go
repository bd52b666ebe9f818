package migrate

import (
	"context"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
)

// controllers are Deployments of Knative, of all its versions, besides those that Ebb has too.
var controllers = []string{"autoscaler-hpa", "domain-mapping", "domainmapping-webhook", "net-certmanager-controller", "net-certmanager-webhook",
	"net-istio-controller", "net-istio-webhook", "net-kourier-controller", "net-contour-controller", "net-gateway-api-controller", "net-http01-controller", "net-nscert-controller"}

// isPlugin reports whether a Deployment of the system namespace writes for Knative what Ebb writes
// itself.
func isPlugin(d Object) bool {
	_, ingress := d.GetLabels()[pluginLabel]
	_, certificate := d.GetLabels()[certPluginLabel]
	return ingress || certificate || slices.Contains(controllers, d.GetName())
}

// asks reports whether a registration of webhooks asks a Service of the namespace.
func asks(o Object, namespace string) bool {
	list, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
	for _, entry := range list {
		if hook, ok := entry.(map[string]any); ok {
			if found, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "namespace"); found == namespace {
				return true
			}
		}
	}
	return false
}

// systemDeployment returns a Deployment of the system namespace, nil if it is not there.
func (m *Move) systemDeployment(ctx context.Context, name string) (Object, error) {
	return m.get(ctx, object("apps/v1", "Deployment", names.SystemNamespace, name))
}

// stop ends what writes to the objects that Ebb takes over. The autoscaler and the activators stay,
// so requests are answered and revisions scale.
func (m *Move) stop(ctx context.Context) error {
	if err := m.unhook(ctx); err != nil {
		return err
	}
	for _, d := range m.state.Before {
		if d.GetKind() != "Deployment" || d.GetName() != "controller" && d.GetName() != "webhook" && !isPlugin(d) {
			continue
		}
		if err := m.end(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// end deletes a Deployment of the system namespace, unless it is the one that the move brings up.
// It returns when its pods no longer write: a webhook answers until it ends, and then nobody asks
// it.
func (m *Move) end(ctx context.Context, d Object) error {
	have, err := m.get(ctx, d)
	if err != nil {
		return err
	}
	if have != nil {
		if !m.to.leaves(have) {
			return nil
		}
		if err := m.remove(ctx, have); err != nil {
			return err
		}
	}
	if strings.Contains(d.GetName(), "webhook") {
		return nil
	}
	labels, _, err := unstructured.NestedStringMap(d.Object, "spec", "selector", "matchLabels")
	if err != nil {
		return err
	}
	return m.noPods(ctx, metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: labels}))
}

// kinds replaces the definitions of the kinds that both have. All stored objects stay.
func (m *Move) kinds(ctx context.Context) error {
	for _, o := range m.Manifests {
		if !isDefinition(o) {
			continue
		}
		if err := m.apply(ctx, o); err != nil {
			return err
		}
	}
	m.mapper.Reset()
	return nil
}

// apply makes an object what Ebb's manifests say. Roles keep what they allowed Knative, until
// clean.
func (m *Move) apply(ctx context.Context, o Object) error {
	switch before := m.state.had(o); {
	case isRole(o) && before != nil:
		o = together(o, before)
	case slices.Contains([]string{"Namespace", "Secret", "Gateway"}, o.GetKind()):
		// An implementation may replace the pods of a gateway when its Gateway changes.
		have, err := m.get(ctx, o)
		if have != nil || err != nil {
			return err
		}
	case o.GetKind() == "ConfigMap" && before != nil:
		have, err := m.get(ctx, o)
		if err != nil {
			return err
		}
		if have != nil && !fromEbb(have) {
			o = settingsOver(have, o)
		} else if have != nil {
			return nil
		}
	}
	o, err := marked(o)
	if err != nil {
		return err
	}
	return m.put(ctx, o)
}

func isRole(o Object) bool { return o.GetKind() == "ClusterRole" || o.GetKind() == "Role" }

// together returns a role that allows what either of two allows.
func together(a, b Object) Object {
	a = a.DeepCopy()
	ours, _ := a.Object["rules"].([]any)
	theirs, _ := b.Object["rules"].([]any)
	if len(ours)+len(theirs) > 0 {
		a.Object["rules"] = slices.Concat(ours, theirs)
	}
	return a
}

// adopt makes PodAutoscalers the owners of the Services that ServerlessServices own.
func (m *Move) adopt(ctx context.Context) error { return m.give(ctx) }

// byName returns the objects of a resource by namespace/name.
func (m *Move) byName(ctx context.Context, r schema.GroupVersionResource) (map[string]Object, error) {
	list, err := m.list(ctx, r, "")
	if err != nil {
		return nil, err
	}
	byName := make(map[string]Object, len(list))
	for _, o := range list {
		byName[o.GetNamespace()+"/"+o.GetName()] = o
	}
	return byName, nil
}

// own makes owner the controller of an object, in place of another.
func (m *Move) own(ctx context.Context, o, owner Object) error {
	ref := map[string]any{"apiVersion": owner.GetAPIVersion(), "kind": owner.GetKind(), "name": owner.GetName(), "uid": string(owner.GetUID()),
		"controller": true, "blockOwnerDeletion": true}
	return m.patch(ctx, o, map[string]any{"metadata": map[string]any{"ownerReferences": []any{ref}}})
}

// path brings up Ebb without its autoscaler. When its activators take the requests of all
// revisions, it removes Knative's lists of endpoints.
func (m *Move) path(ctx context.Context) error {
	if err := m.detach(ctx, "activator"); err != nil {
		return err
	}
	for _, o := range m.Manifests {
		if isDefinition(o) || o.GetKind() == "Deployment" && o.GetName() == "autoscaler" {
			continue
		}
		if err := m.apply(ctx, o); err != nil {
			return err
		}
	}
	if err := m.available(ctx, "activator", "controller", "webhook"); err != nil {
		return err
	}
	if err := m.listed(ctx); err != nil {
		return err
	}
	// Gateways know both lists from now on. Only the newer one stays.
	lists, err := m.list(ctx, endpointsResource, names.ServerlessServiceLabel)
	if err != nil {
		return err
	}
	return each(lists, func(e Object) error {
		if controllerOf(e).Kind != "ServerlessService" {
			return nil
		}
		return m.remove(ctx, e)
	})
}

// formerLabel is the label app of activators that take no new requests.
const formerLabel = "former-activator"

// detach takes the pods of a Deployment away from it, unless it is the one that the move brings up.
// They go on. Those of activators get another label, so that no Service selects them.
func (m *Move) detach(ctx context.Context, name string) error {
	d, err := m.systemDeployment(ctx, name)
	if err != nil {
		return err
	}
	if d != nil && !m.to.leaves(d) {
		return nil
	}
	if err := m.unguard(ctx, name); err != nil {
		return err
	}
	if d != nil {
		if err := m.orphan(ctx, d); err != nil {
			return err
		}
		if err := until(ctx, time.Minute, func(ctx context.Context) (string, error) {
			d, err := m.systemDeployment(ctx, name)
			if d == nil || err != nil {
				return "", err
			}
			return "the Deployment " + name + " is not deleted", nil
		}); err != nil {
			return err
		}
	}
	if err := m.withoutReplicaSets(ctx, name); err != nil || name != "activator" {
		return err
	}
	pods, err := m.listIn(ctx, podResource, names.SystemNamespace, "app="+name)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if controllerOf(pod).UID != "" {
			continue
		}
		if err := m.patch(ctx, pod, map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": formerLabel}}}); err != nil {
			return err
		}
	}
	return nil
}

// unguard removes what scales a Deployment and what keeps its pods from being evicted.
func (m *Move) unguard(ctx context.Context, name string) error {
	for _, of := range []string{name, name + "-pdb"} {
		for _, guard := range []Object{object("autoscaling/v2", "HorizontalPodAutoscaler", names.SystemNamespace, of),
			object("policy/v1", "PodDisruptionBudget", names.SystemNamespace, of)} {
			have, err := m.get(ctx, guard)
			if err != nil {
				return err
			}
			if have == nil || !m.to.leaves(have) {
				continue
			}
			if err := m.remove(ctx, have); err != nil {
				return err
			}
		}
	}
	return nil
}

// withoutReplicaSets takes the pods of a Deployment that is deleted away from its ReplicaSets.
func (m *Move) withoutReplicaSets(ctx context.Context, name string) error {
	sets, err := m.listIn(ctx, replicaResource, names.SystemNamespace, "app="+name)
	if err != nil {
		return err
	}
	for _, set := range sets {
		if err := m.orphan(ctx, set); err != nil {
			return err
		}
	}
	return until(ctx, time.Minute, func(ctx context.Context) (string, error) {
		sets, err := m.listIn(ctx, replicaResource, names.SystemNamespace, "app="+name)
		if err != nil || len(sets) == 0 {
			return "", err
		}
		return "the ReplicaSet " + sets[0].GetName() + " is not deleted", nil
	})
}

// settle is how long requests that wait in an activator without a pod may take to be told to the
// autoscaler that it knows. Tests change it.
var settle = 5 * time.Second

func settled(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(settle):
		return nil
	}
}

// scale replaces the autoscaler. Requests that wait in Knative's activators were told to Knative's
// autoscaler, which wakes their revisions before it goes.
func (m *Move) scale(ctx context.Context) error {
	d, err := m.systemDeployment(ctx, "autoscaler")
	if err != nil {
		return err
	}
	ours := m.Manifests.deployment("autoscaler")
	if d != nil && !fromEbb(d) {
		if err := settled(ctx); err != nil {
			return err
		}
	}
	if d == nil || !fromEbb(d) {
		if err := m.end(ctx, ours); err != nil {
			return err
		}
	}
	if err := m.apply(ctx, ours); err != nil {
		return err
	}
	return m.available(ctx, "autoscaler")
}
