package route

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/kmeta"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/settings"
)

// follow makes the gateways follow the plan, one write further at each call (see
// gatewayapi.Prepare), and reports in the status whether they do. When they do, it moves the
// placeholders of byName, before it takes away what only the former plan needs. Each HTTPRoute has
// the state of the rollout in an annotation.
func (t *turn) follow(ctx context.Context) (done bool, err error) {
	r, route, p, s := t.reconciler, t.route, t.p, t.s
	annotations := inherited(route.Annotations)
	annotations[names.RolloutAnnotation] = t.state.String()
	mine := labels.Set{names.RouteLabel: route.Name}
	meta := gatewayapi.Meta{Labels: route.Labels, Annotations: annotations, Owner: *kmeta.NewControllerRef(route),
		ListenerSets: r.listeners.Of(route, mine)}
	listeners := gatewayapi.TLSListeners(p, s.Gateway, meta)
	if err := r.listeners.Apply(ctx, route, listeners); err != nil {
		return false, err
	}
	want := gatewayapi.HTTPRoutes(p, s.Gateway, meta)
	have := map[string]*gatewayv1.HTTPRoute{}
	for _, h := range r.ownHTTPRoutes.Of(route.Namespace, route.Name) {
		if metav1.IsControlledBy(h, route) {
			have[h.Name] = h
		}
	}
	if waits, err := r.need(ctx, route, p, s); err != nil || waits {
		return false, err
	}
	prepared := plan.ShortHash(p.Hash() + " prepared")
	if first, values := gatewayapi.Prepare(have, want, prepared); len(first) > 0 {
		if _, err := gateway.Write(ctx, r.gateways, r.httpRoutes, route, first); err != nil {
			return false, err
		}
		if !r.reached(route, listeners, ready.Want{Hash: prepared, Probes: spareProbes(probes(p, s.Gateway), values)}) {
			return false, nil
		}
	}
	second, retained := gatewayapi.Retain(have, want)
	changed, err := gateway.Apply(ctx, r.gateways, r.httpRoutes, route, second, r.ownHTTPRoutes.Of(route.Namespace, route.Name))
	if changed {
		r.prober.Forget(types.NamespacedName{Namespace: route.Namespace, Name: route.Name})
	}
	live := ready.Want{Hash: p.Hash(), Probes: probes(p, s.Gateway)}
	if err != nil || !r.gatewaysFollow(route, listeners, live, changed || retained) {
		return false, err
	}
	if why := gatewayapi.Unaccepted(have, want); why != "" {
		route.Status.MarkIngressNotReady(reasonUninitialized, waiting(why))
		return false, nil
	}
	route.Status.MarkIngressReady()
	if err := r.placeholders(ctx, route, t.byName, localGateway(s, r.clusterDomain), true); err != nil {
		return false, err
	}
	if retained {
		if _, err = gateway.Write(ctx, r.gateways, r.httpRoutes, route, want); err != nil {
			return false, err
		}
	}
	return true, errors.Join(r.listeners.Prune(ctx, route, listeners, mine), r.release(ctx, route, p))
}

// gatewaysFollow reports whether the gateways follow the plan. A plan that was live before this
// process started, and needed no write and needs none, is still live. So a restart of the
// controller does not set every Route to Unknown.
func (r *reconciler) gatewaysFollow(route *servingv1.Route, listeners []*unstructured.Unstructured, want ready.Want, changed bool) (live bool) {
	key := types.NamespacedName{Namespace: route.Namespace, Name: route.Name}
	if !changed && !r.prober.Known(key) && route.Status.GetCondition(servingv1.RouteConditionIngressReady).IsTrue() {
		return true
	}
	return r.reached(route, listeners, want)
}

// reached reports, in the status too, whether the probes of every gateway succeed.
func (r *reconciler) reached(route *servingv1.Route, listeners []*unstructured.Unstructured, want ready.Want) bool {
	live, why := r.prober.Check(types.NamespacedName{Namespace: route.Namespace, Name: route.Name}, want)
	if live {
		return true
	}
	if reason, message, refused := r.refusal(route); refused {
		route.Status.MarkIngressFailed(reason, message)
		return false
	}
	if refused := r.listeners.Refused(listeners); refused != "" {
		why = refused
	}
	route.Status.MarkIngressNotReady(reasonUninitialized, waiting(why))
	return false
}

func waiting(why string) string {
	return "Waiting for the gateways: " + strings.TrimSuffix(why, ".") + "."
}

// refusal reports whether a gateway rejects one of the Route's HTTPRoutes, and why.
func (r *reconciler) refusal(route *servingv1.Route) (reason, message string, refused bool) {
	for _, have := range r.ownHTTPRoutes.Of(route.Namespace, route.Name) {
		if !metav1.IsControlledBy(have, route) {
			continue
		}
		for _, parent := range have.Status.Parents {
			for _, c := range parent.Conditions {
				// If a ListenerSet is not known yet, the gateways are only behind.
				ofSet := parent.ParentRef.Kind != nil && *parent.ParentRef.Kind == "ListenerSet"
				if !ofSet && c.Type == string(gatewayv1.RouteConditionAccepted) && c.Status == metav1.ConditionFalse &&
					c.ObservedGeneration == have.Generation {
					return c.Reason, fmt.Sprintf("Gateway %q refuses HTTPRoute %q: %s", parent.ParentRef.Name, have.Name, c.Message), true
				}
			}
		}
	}
	return "", "", false
}

// probes returns one probe for each target and gateway. It asks for one of the target's hosts; the
// others are in the same HTTPRoute.
func probes(p *plan.Plan, g settings.Gateway) []ready.Probe {
	var out []ready.Probe
	for _, t := range p.Targets {
		on := g.External
		if t.Visibility == plan.ClusterLocal {
			on = g.Local
		}
		for _, one := range on {
			host := gatewayapi.Name(t)
			out = append(out, ready.Probe{Service: one.Service, Port: gateway.HTTP, Host: host, Redirect: t.Plain == plan.HTTPRedirected})
			if t.TLSSecret != "" {
				out = append(out, ready.Probe{Service: one.Service, Port: gateway.HTTPS, Host: host, TLS: true})
			}
		}
	}
	return out
}

// spareProbes returns a probe for each spare backend of the hosts, by the values of the header.
func spareProbes(hosts []ready.Probe, values map[string][]string) []ready.Probe {
	var out []ready.Probe
	for _, probe := range hosts {
		if probe.Redirect {
			continue
		}
		for _, value := range values[probe.Host] {
			probe.Backend = value
			out = append(out, probe)
		}
	}
	return out
}
