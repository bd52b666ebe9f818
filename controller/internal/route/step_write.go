package route

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/resting"
)

// do makes the writes of one step, in the order that package resting wants. If one fails, what
// comes after it is not written, and the next reconcile sees how far it has come.
func (t *turn) do(ctx context.Context, one *part, what resting.Do) error {
	switch what {
	case resting.WriteBridge:
		return t.writeBridge(ctx, one, one.target.Hosts)
	case resting.MoveBridge:
		// A listener that takes the host takes this one, too.
		_, domain, _ := strings.Cut(gatewayapi.Name(one.target), ".")
		return t.writeBridge(ctx, one, []string{"bridge-" + string(uuid.NewUUID()) + "." + domain})
	case resting.DeleteBridge:
		return t.remove(ctx, one.bridge)
	case resting.WriteSpares:
		spares, _ := gatewayapi.Spares(one.want)
		for _, h := range one.besides() {
			if !gatewayapi.Full(h) {
				if err := t.remove(ctx, h); err != nil {
					return err
				}
			}
		}
		return t.writeAll(ctx, one, slices.Backward(spares), func(h *gatewayv1.HTTPRoute) bool { return !gatewayapi.Full(h) })
	case resting.WriteRules:
		second, _ := gatewayapi.Retain(one.have, one.want)
		return t.writeAll(ctx, one, slices.All(second), func(h *gatewayv1.HTTPRoute) bool { return !gatewayapi.Full(h) })
	case resting.Withdraw:
		have := slices.SortedFunc(maps.Values(one.have), func(a, b *gatewayv1.HTTPRoute) int { return one.place(a) - one.place(b) })
		for i, h := range have {
			if spares, _ := gatewayapi.Spares([]*gatewayv1.HTTPRoute{h}); gatewayapi.Full(h) {
				have[i] = spares[0]
			}
		}
		return t.writeAll(ctx, one, slices.Backward(have), gatewayapi.Full)
	case resting.DeleteRoutes:
		for _, h := range one.have {
			if err := t.remove(ctx, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// place orders the HTTPRoutes of a target as their rules count. Those that the plan does not have
// any more were the last ones.
func (p *part) place(h *gatewayv1.HTTPRoute) int {
	if at := slices.IndexFunc(p.want, func(w *gatewayv1.HTTPRoute) bool { return w.Name == h.Name }); at >= 0 {
		return at
	}
	return len(p.want)
}

// besides returns the HTTPRoutes that the plan does not have any more.
func (p *part) besides() (out []*gatewayv1.HTTPRoute) {
	for _, h := range p.have {
		if p.place(h) == len(p.want) {
			out = append(out, h)
		}
	}
	return out
}

// writeAll writes HTTPRoutes in an order, those for whose present form write says so.
func (t *turn) writeAll(ctx context.Context, one *part, routes func(yield func(int, *gatewayv1.HTTPRoute) bool), write func(have *gatewayv1.HTTPRoute) bool) error {
	api := t.gateways.GatewayV1().HTTPRoutes(t.route.Namespace)
	for _, want := range routes {
		have, found := one.have[want.Name]
		if !write(have) {
			continue
		}
		want = want.DeepCopy()
		want.ResourceVersion, want.UID, want.Generation, want.CreationTimestamp, want.Status = "", "", 0, metav1.Time{}, gatewayv1.HTTPRouteStatus{}
		if _, _, err := apply.Child(ctx, api, "HTTPRoute", t.route, have, found, want, func(have, want *gatewayv1.HTTPRoute) {
			if !equality.Semantic.DeepEqual(have.Spec, want.Spec) {
				apply.Metadata(have, want)
			}
			have.Spec = want.Spec
		}); err != nil {
			return err
		}
	}
	return nil
}

// bridgeName is the name of a target's bridge.
func (t *turn) bridgeName(target *plan.Target) string {
	return "bridge-" + plan.ShortHash(string(t.route.UID)+" "+string(target.Visibility)+" "+gatewayapi.Name(*target))
}

// toActivators returns the bridge of a target. Its stamp is new each time, so that who answers with
// its hash has seen what was written before.
func (t *turn) toActivators(one *part, hosts []string) *gatewayv1.HTTPRoute {
	bridge, _ := gatewayapi.ToActivators{Namespace: t.system, Name: t.bridgeName(&one.target), Visibility: one.target.Visibility, Hosts: hosts,
		Stamp: string(uuid.NewUUID())}.HTTPRoute(t.s.Gateway, gatewayapi.Meta{
		Labels:      map[string]string{names.BridgeLabel: string(t.route.UID)},
		Annotations: map[string]string{names.BridgeOfAnnotation: t.key.String(), names.BridgeAfterAnnotation: after(one.have)},
	})
	return bridge
}

// atGateways is toActivators at the Gateways, too, at which the bridge is: those that the settings
// name now may never serve the hosts.
func (t *turn) atGateways(one *part, hosts []string) *gatewayv1.HTTPRoute {
	want := t.toActivators(one, hosts)
	if one.bridge == nil {
		return want
	}
	all, _ := gatewayapi.RetainParents(map[string]*gatewayv1.HTTPRoute{want.Name: one.bridge}, []*gatewayv1.HTTPRoute{want})
	return all[0]
}

func (t *turn) writeBridge(ctx context.Context, one *part, hosts []string) error {
	owner, err := t.namespaces.Get(t.system)
	if err != nil {
		return fmt.Errorf("find Ebb's namespace, which owns bridges: %w", err)
	}
	want := t.atGateways(one, hosts)
	want.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Namespace"))}
	_, _, err = apply.Child(ctx, t.gateways.GatewayV1().HTTPRoutes(t.system), "HTTPRoute", owner, one.bridge, one.bridge != nil, want,
		func(have, want *gatewayv1.HTTPRoute) {
			apply.Metadata(have, want)
			have.Spec = want.Spec
		})
	return err
}

// remove deletes an HTTPRoute of the Route, or a bridge, if it is the one that was read.
func (t *turn) remove(ctx context.Context, h *gatewayv1.HTTPRoute) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &h.UID}}
	return apply.Delete(ctx, t.gateways.GatewayV1().HTTPRoutes(h.Namespace), "HTTPRoute", h, options)
}
