package route

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// hostAgain is the interval at which a Route looks whether somebody else still has its host.
const hostAgain = 30 * time.Second

// hostTaken says who has a public host of a Route.
type hostTaken struct{ by gateway.Holder }

func (e *hostTaken) Error() string { return e.by.Host + " is taken" }

// ofSameHosts returns the Routes that an HTTPRoute concerns: its own, and those with its hosts.
func (r *reconciler) ofSameHosts(object any) []reconcile.Key {
	owner := reconcile.ControllerOf("Route")
	keys := owner(object)
	if h, ok := object.(*gatewayv1.HTTPRoute); ok {
		for _, host := range h.Spec.Hostnames {
			for _, other := range r.hosts.Of(string(host)) {
				if other.Namespace != h.Namespace {
					keys = append(keys, owner(other)...)
				}
			}
			for _, other := range r.hosts.Planned(string(host)) {
				keys = append(keys, reconcile.Self(other)...)
			}
		}
	}
	return keys
}

// withSameHosts returns the other Routes that have a host of a Route in their plans.
func (r *reconciler) withSameHosts(object any) (keys []reconcile.Key) {
	route, ok := object.(*servingv1.Route)
	if !ok || route.Status.Annotations[names.PlanAnnotation] == "" {
		return nil
	}
	c, _ := gateway.Told(route)
	for i := range c.Targets {
		if c.Targets[i].Host == "" {
			continue
		}
		for _, other := range r.hosts.Planned(c.Targets[i].Host) {
			if other.UID != route.UID {
				keys = append(keys, reconcile.Self(other)...)
			}
		}
		for _, other := range r.hosts.Of(c.Targets[i].Host) {
			if !metav1.IsControlledBy(other, route) {
				keys = append(keys, reconcile.ControllerOf("Route")(other)...)
			}
		}
	}
	return keys
}

// yield takes the Route's HTTPRoutes away for hosts that belong to another namespace, whatever else
// hinders the Route.
func (r *reconciler) yield(ctx context.Context, route *servingv1.Route, s *settings.Snapshot) error {
	hosts := map[string]bool{}
	for _, h := range r.ownHTTPRoutes.Of(route.Namespace, route.Name) {
		if metav1.IsControlledBy(h, route) && h.Labels[names.VisibilityLabel] == "" {
			for _, host := range h.Spec.Hostnames {
				hosts[string(host)] = true
			}
		}
	}
	told, _ := gateway.Told(route)
	for i := range told.Targets {
		if told.Targets[i].Host != "" {
			hosts[told.Targets[i].Host] = true
		}
	}
	lost, err := r.lose(ctx, route, s, slices.Sorted(maps.Keys(hosts)))
	if len(lost) > 0 {
		unfollowed(route)
	}
	return err
}

// lose takes away what the Route has for those of the hosts that belong to another namespace, with
// their certificates: nobody asks for them anew.
func (r *reconciler) lose(ctx context.Context, route *servingv1.Route, s *settings.Snapshot, hosts []string) ([]gateway.Holder, error) {
	lost, err := r.hosts.Yield(ctx, s, route, "Route", hosts)
	for _, one := range lost {
		err = errors.Join(err, r.certificates.Drop(ctx, route, labels.Set{names.RouteLabel: route.Name}, one.Host), r.unlead(ctx, route, one.Host))
	}
	return lost, err
}

// unlead takes a host out of the plan that activators follow, and deletes its bridge.
func (r *reconciler) unlead(ctx context.Context, route *servingv1.Route, host string) error {
	c, told := gateway.Told(route)
	for i := range c.Targets {
		if told && c.Targets[i].Host == host {
			c.Targets[i].Host, c.Targets[i].Rank = "", 0
			c.At = max(c.At+1, r.now().UnixMilli())
			route.Status.Annotations = maps.Clone(route.Status.Annotations)
			route.Status.Annotations[names.PlanAnnotation] = c.String()
		}
	}
	for _, bridge := range r.rests.bridges.Of(r.system, string(route.UID)) {
		if slices.Contains(bridge.Spec.Hostnames, gatewayv1.Hostname(host)) {
			if err := apply.Delete(ctx, r.gateways.GatewayV1().HTTPRoutes(r.system), "HTTPRoute", bridge, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// taken says whether a public host of the Route belongs to another namespace, nil if none does. The
// domain template decides whether that can be: with {{.Name}}-{{.Namespace}}, a-b in c and a in b-c
// have one host.
func (r *reconciler) taken(ctx context.Context, route *servingv1.Route, s *settings.Snapshot, in *plan.Input) (*hostTaken, error) {
	var hosts []string
	for _, tag := range slices.Sorted(maps.Keys(in.Targets)) {
		if host, err := in.Host(tag); err == nil && !in.IsLocal(tag) { // else the plan says what is wrong
			hosts = append(hosts, host)
		}
	}
	lost, err := r.lose(ctx, route, s, hosts)
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	return &hostTaken{lost[0]}, nil
}

// report says in the status who has the host.
func (e *hostTaken) report(route *servingv1.Route) {
	route.Status.MarkTrafficAssigned()
	route.Status.MarkIngressFailed(gateway.ReasonHostTaken, fmt.Sprintf("%s %q in namespace %q has the host %q: change the name, "+
		"or let domain-template in ConfigMap config-network tell namespaces apart.", e.by.Kind, e.by.Name, e.by.Namespace, e.by.Host))
}
