package gateway

import (
	"fmt"

	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/ingress/plan"
)

// byPlan indexes Routes by what the plan in their status says.
const byPlan = "plan"

// Planned tells of the Routes whose plans activators follow. A Route that rests has no HTTPRoute.
type Planned struct{ routes cache.Indexer }

// NewPlanned reads the plans of an informer of Routes that has not started yet.
func NewPlanned(routes cache.SharedIndexInformer) Planned {
	if _, there := routes.GetIndexer().GetIndexers()[byPlan]; !there {
		err := routes.AddIndexers(cache.Indexers{byPlan: func(object any) (keys []string, _ error) {
			route, ok := object.(*servingv1.Route)
			if !ok {
				return nil, nil
			}
			c, told := Told(route)
			if !told {
				return nil, nil
			}
			keys = append(keys, "")
			for _, host := range publicHosts(c) {
				keys = append(keys, "host "+host)
			}
			for revision := range Revisions(c) {
				keys = append(keys, "revision "+route.Namespace+"/"+revision)
			}
			return keys, nil
		}})
		if err != nil {
			panic(fmt.Sprintf("index Routes by plan: %v", err)) // only a started informer refuses
		}
	}
	return Planned{routes.GetIndexer()}
}

// Told returns the plan that activators follow, with whether there is one. It is empty if it cannot
// be read: a later version may have written it.
func Told(route *servingv1.Route) (c *plan.Compact, told bool) {
	text := route.Status.Annotations[names.PlanAnnotation]
	if text == "" {
		return &plan.Compact{}, false
	}
	c, err := plan.ParseCompact(text)
	if err != nil || c.UID != string(route.UID) {
		return &plan.Compact{}, true
	}
	return c, true
}

func publicHosts(c *plan.Compact) (out []string) {
	for i := range c.Targets {
		if host := c.Targets[i].Host; host != "" {
			out = append(out, host)
		}
	}
	return out
}

// Revisions returns the revisions that a plan leads to.
func Revisions(c *plan.Compact) map[string]bool {
	out := map[string]bool{}
	for i := range c.Targets {
		for _, share := range c.Targets[i].Shares {
			out[share.Revision] = true
		}
	}
	return out
}

func (p Planned) by(value string) (out []*servingv1.Route) {
	found, _ := p.routes.ByIndex(byPlan, value) // fails only if there is no such index
	for _, object := range found {
		out = append(out, object.(*servingv1.Route))
	}
	return out
}

// All returns all Routes with a plan. They must not be changed.
func (p Planned) All() []*servingv1.Route { return p.by("") }

// Len is how many Routes have a plan.
func (p Planned) Len() int {
	keys, _ := p.routes.IndexKeys(byPlan, "")
	return len(keys)
}

// With returns the Routes that have a public host in their plans.
func (p Planned) With(host string) []*servingv1.Route { return p.by("host " + host) }

// LeadsTo reports whether a plan leads to a revision.
func (p Planned) LeadsTo(namespace, revision string) bool {
	keys, _ := p.routes.IndexKeys(byPlan, "revision "+namespace+"/"+revision)
	return len(keys) > 0
}

// NoMore returns the revisions to which the plan of a Route led before, and does not now.
func NoMore(before, after *servingv1.Route) (out []string) {
	if before.Status.Annotations[names.PlanAnnotation] == after.Status.Annotations[names.PlanAnnotation] {
		return nil
	}
	old, _ := Told(before)
	next, _ := Told(after)
	now := Revisions(next)
	for revision := range Revisions(old) {
		if !now[revision] {
			out = append(out, revision)
		}
	}
	return out
}

// Hosts returns the public hosts of a Route in its plan.
func (p Planned) Hosts(route *servingv1.Route) []string {
	c, _ := Told(route)
	return publicHosts(c)
}
