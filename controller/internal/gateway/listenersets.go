package gateway

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewaylisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1"

	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/settings"
)

// Listeners keeps the listeners that terminate TLS, as ListenerSets of the Gateways.
type Listeners struct {
	kind   *reconcile.Optional
	lister gatewaylisters.GatewayLister
}

// NewListeners returns Listeners. When a ListenerSet changes, c reconciles its owner, which is of
// the given kind.
func NewListeners(mgr *reconcile.Manager, c *reconcile.Controller, ownerKind string) *Listeners {
	l := &Listeners{kind: mgr.Optional(gatewayapi.ListenerSets, gatewayapi.ListenerSetSelector),
		lister: mgr.GatewayInformers.Gateway().V1().Gateways().Lister()}
	c.WatchOptional(l.kind, reconcile.ControllerOf(ownerKind))
	return l
}

// Missing returns why the Gateways cannot terminate TLS for a Route, or "".
func (l *Listeners) Missing(on []settings.GatewayRef) string {
	for _, g := range on {
		if !gatewayapi.TakesListenerSets(g) {
			return fmt.Sprintf("ConfigMap config-gateway does not list ListenerSet among the supported-features of Gateway %s", g.Gateway)
		}
	}
	if !l.kind.Present() {
		return "the cluster's Gateway API has no ListenerSets; they came with version 1.5"
	}
	return ""
}

// Usable returns the Gateways, without the feature ListenerSet if the cluster does not have the
// kind. Listeners are then added to the Gateways themselves.
func (l *Listeners) Usable(g settings.Gateway) settings.Gateway {
	if l.kind.Present() {
		return g
	}
	without := func(list []settings.GatewayRef) (out []settings.GatewayRef) {
		for _, ref := range list {
			out = append(out, gatewayapi.WithoutListenerSets(ref))
		}
		return out
	}
	return settings.Gateway{External: without(g.External), Local: without(g.Local)}
}

// Of returns the ListenerSets of owner with the given labels, for gatewayapi.Meta.
func (l *Listeners) Of(owner apply.Object, mine labels.Set) []*unstructured.Unstructured {
	return l.kind.Owned(owner, mine)
}

// Apply makes the ListenerSets of owner exist as given. The Gateways accept them then: see New. One
// that the cache does not show yet is not moved to another Gateway: its name was not chosen for it.
func (l *Listeners) Apply(ctx context.Context, owner apply.Object, sets []*unstructured.Unstructured) error {
	for _, want := range sets {
		have, found := l.kind.Get(want.GetNamespace(), want.GetName())
		now, _, err := apply.Child(ctx, l.kind.Client(want.GetNamespace()), "ListenerSet", owner, have, found, want,
			func(have, want *unstructured.Unstructured) {
				apply.Metadata(have, want)
				if found || gatewayapi.GatewayOf(have) == gatewayapi.GatewayOf(want) {
					have.Object["spec"] = want.Object["spec"]
				}
			})
		if err != nil {
			return err
		}
		if at := gatewayapi.GatewayOf(now); at != gatewayapi.GatewayOf(want) {
			return fmt.Errorf("ListenerSet %s/%s is at Gateway %s, and was not seen before", now.GetNamespace(), now.GetName(), at)
		}
	}
	return nil
}

// Prune deletes the ListenerSets of owner with the given labels that are not among sets. It is
// called after the HTTPRoutes stopped using them.
func (l *Listeners) Prune(ctx context.Context, owner apply.Object, sets []*unstructured.Unstructured, mine labels.Set) error {
	wanted := map[string]bool{}
	for _, want := range sets {
		wanted[want.GetName()] = true
	}
	return apply.Prune(ctx, l.kind.Client(owner.GetNamespace()), "ListenerSet", owner, l.kind.Owned(owner, mine), wanted)
}

// remove deletes the ListenerSets of owner that its HTTPRoute hangs at.
func (l *Listeners) remove(ctx context.Context, owner apply.Object, h *gatewayv1.HTTPRoute) error {
	for _, p := range h.Spec.ParentRefs {
		if p.Kind == nil || *p.Kind != "ListenerSet" {
			continue
		}
		have, found := l.kind.Get(owner.GetNamespace(), string(p.Name))
		if !found || !metav1.IsControlledBy(have, owner) {
			continue
		}
		if err := apply.Delete(ctx, l.kind.Client(owner.GetNamespace()), "ListenerSet", have, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// Holding lists the Gateways whose own listeners include one for host with a certificate in the
// namespace.
func (l *Listeners) Holding(on []settings.GatewayRef, host, namespace string) []settings.GatewayRef {
	return l.with(on, host, func(one *gatewayv1.Listener) bool { return of(one, namespace) })
}

// of reports whether the certificate of a listener is in the namespace. The listeners of a host
// have one name, whoever has the host, and the last one who had it must not remove the next one's.
func of(one *gatewayv1.Listener, namespace string) bool {
	return one.TLS != nil && slices.ContainsFunc(one.TLS.CertificateRefs, func(ref gatewayv1.SecretObjectReference) bool {
		return ref.Namespace != nil && string(*ref.Namespace) == namespace
	})
}

// Lacking lists the Gateways whose own listeners do not include this one yet.
func (l *Listeners) Lacking(on []settings.GatewayRef, host, namespace, secret string) (out []settings.GatewayRef) {
	want := gatewayapi.Listener(host, namespace, secret)
	have := l.with(on, host, func(one *gatewayv1.Listener) bool { return equality.Semantic.DeepEqual(*one, want) })
	return slices.DeleteFunc(slices.Clone(on), func(one settings.GatewayRef) bool {
		return slices.ContainsFunc(have, func(h settings.GatewayRef) bool { return h.Gateway == one.Gateway })
	})
}

func (l *Listeners) with(on []settings.GatewayRef, host string, is func(*gatewayv1.Listener) bool) (out []settings.GatewayRef) {
	name := gatewayv1.SectionName(gatewayapi.ListenerName(host))
	for _, g := range on {
		have, err := l.lister.Gateways(g.Namespace()).Get(g.Name())
		if err == nil && slices.ContainsFunc(have.Spec.Listeners, func(one gatewayv1.Listener) bool { return one.Name == name && is(&one) }) {
			out = append(out, g)
		}
	}
	return out
}

// Refused returns why the gateways reject one of the ListenerSets, or "".
func (l *Listeners) Refused(sets []*unstructured.Unstructured) string {
	for _, want := range sets {
		have, found := l.kind.Get(want.GetNamespace(), want.GetName())
		if !found {
			continue
		}
		conditions, _, _ := unstructured.NestedSlice(have.Object, "status", "conditions")
		for _, c := range conditions {
			m, _ := c.(map[string]any)
			if m["type"] == "Accepted" && m["status"] == "False" {
				return fmt.Sprintf("ListenerSet %q: %v", have.GetName(), m["message"])
			}
		}
	}
	return ""
}
