package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
)

// settingsBack gives Knative its settings before it starts. Nobody must judge them meanwhile.
func (m *Move) settingsBack(ctx context.Context) error {
	if err := m.unhook(ctx); err != nil {
		return err
	}
	for _, o := range m.state.Before {
		if o.GetKind() == "ConfigMap" {
			if err := m.put(ctx, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopBack ends what writes to the objects that Knative takes back. The autoscaler and the
// activators stay.
func (m *Move) stopBack(ctx context.Context) error {
	for _, name := range []string{"controller", "webhook"} {
		d := object("apps/v1", "Deployment", names.SystemNamespace, name)
		if err := unstructured.SetNestedStringMap(d.Object, map[string]string{"app": name}, "spec", "selector", "matchLabels"); err != nil {
			return err
		}
		if err := m.end(ctx, d); err != nil {
			return err
		}
	}
	// Policies of Ebb are about accounts that have the names of Knative's.
	for _, r := range m.state.Made {
		if r.Kind == "ValidatingAdmissionPolicyBinding" || r.Kind == "NetworkPolicy" {
			if err := m.remove(ctx, r.object()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Move) kindsBack(ctx context.Context) error {
	for _, o := range m.state.Before {
		if isDefinition(o) {
			if err := m.put(ctx, o); err != nil {
				return err
			}
		}
	}
	err := until(ctx, time.Minute, func(ctx context.Context) (string, error) {
		for _, kind := range onlyKnative {
			have, err := m.get(ctx, object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", kind.GroupResource().String()))
			if err != nil {
				return "", err
			}
			if have != nil && conditionOf(have, "Established") != "True" {
				return nameOf(have) + " is not served yet", nil
			}
		}
		return "", nil
	})
	m.mapper.Reset()
	return err
}

// adoptBack makes a ServerlessService for each PodAutoscaler that has none, and gives it the
// Services of the revision.
func (m *Move) adoptBack(ctx context.Context) error {
	missing, err := m.byName(ctx, autoscalers)
	if err != nil {
		return err
	}
	there, err := m.byName(ctx, serverless)
	if err != nil {
		return err
	}
	maps.DeleteFunc(missing, func(name string, _ Object) bool { return there[name] != nil })
	if err := each(slices.Collect(maps.Values(missing)), func(pa Object) error { return m.put(ctx, serverlessService(pa)) }); err != nil {
		return err
	}
	return m.give(ctx)
}

// serverlessService is what Knative makes of a PodAutoscaler that it has just created.
func serverlessService(pa Object) Object {
	o := object(serverless.GroupVersion().String(), "ServerlessService", pa.GetNamespace(), pa.GetName())
	o.SetLabels(pa.GetLabels())
	o.SetAnnotations(pa.GetAnnotations())
	target, _, _ := unstructured.NestedMap(pa.Object, "spec", "scaleTargetRef")
	protocol, _, _ := unstructured.NestedString(pa.Object, "spec", "protocolType")
	o.Object["spec"] = map[string]any{"mode": "Proxy", "objectRef": target, "protocolType": protocol, "numActivators": int64(2)}
	controller := true
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: pa.GetAPIVersion(), Kind: pa.GetKind(), Name: pa.GetName(), UID: pa.GetUID(),
		Controller: &controller, BlockOwnerDeletion: &controller}})
	return o
}

// pathBack brings up Knative. When its controller has listed endpoints of every revision, pathBack
// removes Ebb's lists, and then Ebb's autoscaler. Until then that one wakes revisions for requests
// that wait in Ebb's activators.
func (m *Move) pathBack(ctx context.Context) error {
	for _, name := range []string{"activator", "autoscaler"} {
		if err := m.detach(ctx, name); err != nil {
			return err
		}
	}
	var wait []string
	var later []Object
	for _, o := range m.state.Before {
		switch o.GetKind() {
		case "CustomResourceDefinition", "ConfigMap":
			continue
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			later = append(later, o)
			continue
		case "Deployment":
			wait = append(wait, o.GetName())
		}
		if err := m.put(ctx, o); err != nil {
			return err
		}
	}
	if err := m.available(ctx, wait...); err != nil {
		return err
	}
	for _, o := range later {
		if err := m.put(ctx, o); err != nil {
			return err
		}
	}
	if err := m.listed(ctx); err != nil {
		return err
	}
	lists, err := m.list(ctx, sliceResource, managedByEbb)
	if err != nil {
		return err
	}
	if err := each(lists, func(s Object) error { return m.remove(ctx, s) }); err != nil {
		return err
	}
	if err := settled(ctx); err != nil {
		return err
	}
	pods, err := m.listIn(ctx, podResource, names.SystemNamespace, "app=autoscaler")
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if controllerOf(pod).UID == "" {
			if err := m.remove(ctx, pod); err != nil {
				return err
			}
		}
	}
	return nil
}

// hostsBack waits until Knative's Ingresses are Ready, and removes Ebb's HTTPRoutes.
func (m *Move) hostsBack(ctx context.Context) error {
	var all []Object
	for _, r := range []schema.GroupVersionResource{routes, mappings} {
		list, err := m.list(ctx, r, "")
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	if err := each(all, func(owner Object) error { return m.hostBack(ctx, owner) }); err != nil {
		return err
	}
	uids := map[string]bool{}
	for _, owner := range all {
		uids[string(owner.GetUID())] = true
	}
	made, err := m.list(ctx, httpRouteResource, "")
	if err != nil {
		return err
	}
	return each(made, func(r Object) error {
		if !uids[string(controllerOf(r).UID)] {
			return nil
		}
		return m.remove(ctx, r)
	})
}

// hostBack waits until the Ingress of a Route or DomainMapping is Ready, if Knative makes one. If
// the plugin gives HTTPRoutes the names of their hosts, it gets those that Ebb has: a new one would
// have the same name.
func (m *Move) hostBack(ctx context.Context, owner Object) error {
	handed := false
	return until(ctx, 3*time.Minute, func(ctx context.Context) (string, error) {
		list, err := m.listIn(ctx, ingresses, owner.GetNamespace(), "")
		if err != nil {
			return "", err
		}
		for _, ingress := range list {
			if controllerOf(ingress).UID != owner.GetUID() {
				continue
			}
			if m.state.NamedByHost {
				n, err := m.handOver(ctx, owner, ingress)
				if err != nil {
					return "", err
				}
				handed = handed || n > 0
			}
			if conditionOf(ingress, "Ready") == "True" {
				return "", nil
			}
		}
		have, err := m.get(ctx, owner)
		if err != nil || have == nil || !handed && conditionOf(have, "Ready") == "False" {
			return "", err
		}
		return nameOf(owner) + " has no Ingress that is Ready", nil
	})
}

// cleanBack removes what the move has made and Knative did not have.
func (m *Move) cleanBack(ctx context.Context) error {
	if err := m.formerPods(ctx); err != nil {
		return err
	}
	for _, r := range m.state.Made {
		if r.Kind == "Namespace" || r.Kind == "CustomResourceDefinition" {
			continue
		}
		if err := m.remove(ctx, r.object()); err != nil {
			return err
		}
	}
	if err := m.podKeys(ctx); err != nil {
		return err
	}
	return m.leases(ctx)
}

// podKeys removes the keys of Ebb's queue-proxies. Those that still run do without.
func (m *Move) podKeys(ctx context.Context) error {
	keys, err := m.Kube.CoreV1().Secrets("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + names.PodSecret})
	if err != nil {
		return fmt.Errorf("list Secrets %s: %w", names.PodSecret, err)
	}
	for _, key := range keys.Items {
		if err := m.remove(ctx, object("v1", "Secret", key.Namespace, key.Name)); err != nil {
			return err
		}
	}
	return nil
}
