package process

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/wire"
)

// This file plays activators that follow plans, and what gateways do with hosts that rest.

// systems returns the HTTPRoutes of Ebb's namespace.
func (g *ground) systems() (out []*gatewayv1.HTTPRoute) {
	for name := range g.store.Versions(httpRoutes, labels.Everything()) {
		short, is := strings.CutPrefix(name, "knative-serving/")
		if !is {
			continue
		}
		if object := g.store.Get(httpRoutes, "knative-serving", short); object != nil {
			h := &gatewayv1.HTTPRoute{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, h); err != nil {
				g.t.Error(err)
			}
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b *gatewayv1.HTTPRoute) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// rule returns the rule that counts for a host: of its own HTTPRoutes if there are any, in the
// order of their age, else of the one with the longest wildcard.
func (g *ground) rule(kind, namespace, name, host, backend string) (*gatewayv1.HTTPRoute, *gatewayv1.HTTPRouteRule) {
	var exact, wild []*gatewayv1.HTTPRoute
	for _, h := range append(all[gatewayv1.HTTPRoute](g, httpRoutes), g.systems()...) {
		if !slices.ContainsFunc(h.Spec.ParentRefs, func(p gatewayv1.ParentReference) bool {
			return string(ptr.Deref(p.Kind, "")) == kind && string(p.Name) == name && string(ptr.Deref(p.Namespace, "")) == namespace
		}) {
			continue
		}
		switch {
		case slices.Contains(h.Spec.Hostnames, gatewayv1.Hostname(host)):
			exact = append(exact, h)
		case len(h.Spec.Hostnames) == 0, strings.HasSuffix(host, strings.TrimPrefix(string(h.Spec.Hostnames[0]), "*")) && strings.HasPrefix(string(h.Spec.Hostnames[0]), "*"):
			wild = append(wild, h)
		}
	}
	slices.SortStableFunc(exact, func(a, b *gatewayv1.HTTPRoute) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortStableFunc(wild, func(a, b *gatewayv1.HTTPRoute) int {
		return cmp.Compare(len(fmt.Sprint(b.Spec.Hostnames)), len(fmt.Sprint(a.Spec.Hostnames)))
	})
	if len(exact) == 0 && len(wild) > 0 {
		exact = wild[:1]
	}
	for _, wanted := range []string{backend, ""} {
		for _, h := range exact {
			for i := range h.Spec.Rules {
				headers := h.Spec.Rules[i].Matches[0].Headers
				if wanted == "" && len(headers) == 0 || wanted != "" && len(headers) > 0 && headers[0].Value == wanted {
					return h, &h.Spec.Rules[i]
				}
			}
		}
	}
	return nil, nil
}

// ledBy returns the kind of gateways at which a rule leads to activators by the host alone, or "".
func ledBy(rule *gatewayv1.HTTPRouteRule) plan.Visibility {
	for _, f := range rule.Filters {
		if f.RequestHeaderModifier == nil {
			continue
		}
		for _, h := range f.RequestHeaderModifier.Set {
			if h.Name == wire.HeaderResting {
				return plan.Visibility(h.Value)
			}
		}
	}
	return ""
}

// resting reports whether there are activators behind the common HTTPRoutes.
func (g *ground) resting() bool {
	object := g.store.Get(endpointSlices, "knative-serving", plan.Resting)
	if object == nil || g.store.Get(coreServices, "knative-serving", plan.Resting) == nil {
		return false
	}
	slice := &discoveryv1.EndpointSlice{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, slice); err != nil {
		g.t.Error(err)
	}
	return len(slice.Endpoints) > 0
}

// planOf returns the plan of the Route that has a host, and what an activator tells probes of it.
func (g *ground) planOf(host string, from plan.Visibility) (*plan.Plan, string) {
	for _, route := range all[servingv1.Route](g, routesResource) {
		text := route.Status.Annotations[names.PlanAnnotation]
		if text == "" {
			continue
		}
		c, err := plan.ParseCompact(text)
		if err != nil {
			g.t.Error(err)
			continue
		}
		p, err := c.Plan(route.Namespace, route.Name, "cluster.local")
		if err != nil {
			g.t.Error(err)
			continue
		}
		for _, target := range p.Targets {
			if target.Visibility == from && slices.Contains(target.Hosts, host) {
				return p, c.Answer()
			}
		}
	}
	return nil, ""
}

// activator is what an activator tells a probe.
func (g *ground) activator(host string, from plan.Visibility) answer {
	if g.store.Get(endpointSlices, "knative-serving", plan.Resting) == nil {
		return answer{code: 400, why: "plans are not followed"}
	}
	p, hash := g.planOf(host, from)
	if p == nil {
		return answer{code: 404, why: "no plan"}
	}
	return answer{code: 200, hash: hash}
}

// byActivators is a request for a host that a gateway leads to activators.
func (g *ground) byActivators(host string, from plan.Visibility) answer {
	if !g.resting() {
		return answer{code: 503, why: "no activators behind the common HTTPRoute"}
	}
	p, _ := g.planOf(host, from)
	if p == nil {
		return answer{code: 404, why: "activators have no plan"}
	}
	a := answer{code: 200}
	for draw := range uint64(100) {
		c, ok := p.Choose(plan.Request{Host: host, Path: "/", From: from, Fields: func(func(string, string) bool) {}}, draw)
		if !ok || c.Backend == nil {
			return answer{code: 500, why: "no backend in the plan"}
		}
		if !slices.Contains(a.by, c.Backend.Service) {
			a.by = append(a.by, c.Backend.Service)
		}
	}
	for _, revision := range a.by {
		if code, why := g.wakes(revision); code != 200 {
			return answer{code: code, why: why}
		}
	}
	return a
}

// restingActs are what else may happen where hosts rest.
func (s *steady) restingActs() []func(string) {
	return []func(string){s.busy, s.busy, s.busy, s.apart, s.toggle, s.loseTwin}
}

// busy has the gateways send requests of a Service to its pods for a while.
func (s *steady) busy(name string) {
	until := s.now().Add(time.Duration(5+s.rand.IntN(120)) * time.Second)
	s.note("autoscaler: %s is served past the activators", name)
	for _, rev := range s.routedTo(name + ".ns.svc.cluster.local") {
		s.requests[rev], s.busyUntil[rev] = s.now(), until
	}
}

// apart has the user want HTTPRoutes for a Service, or not any more.
func (s *steady) apart(name string) {
	s.edit(name, func(v *servingv1.Service) {
		if v.Annotations[names.RestingAnnotation] != "" {
			delete(v.Annotations, names.RestingAnnotation)
			s.note("user: %s may rest", name)
			return
		}
		if v.Annotations == nil {
			v.Annotations = map[string]string{}
		}
		v.Annotations[names.RestingAnnotation] = "disabled"
		s.note("user: %s may not rest", name)
	})
}

// toggle has the administrator allow that hosts rest, or forbid it.
func (s *steady) toggle(string) {
	s.rests = !s.rests
	s.note("administrator: hosts may rest: %v", s.rests)
	s.set()
}

// loseTwin has somebody delete one of two common HTTPRoutes.
func (s *steady) loseTwin(string) {
	for _, h := range s.systems() {
		if h.Labels[names.CommonLabel] != "" && strings.HasSuffix(h.Name, "-1") {
			s.note("somebody: deletes HTTPRoute %s", h.Name)
			s.store.Remove(httpRoutes, h.Namespace, h.Name)
			return
		}
	}
}
