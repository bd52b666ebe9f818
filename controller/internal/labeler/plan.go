package labeler

import (
	"maps"
	"slices"
	"strings"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// targets are the Configurations and Revisions in a Route's spec (wanted) or status (still
// serving).
type targets struct{ configurations, revisions map[string]bool }

func targetsOf(route *servingv1.Route) targets {
	t := targets{map[string]bool{}, map[string]bool{}}
	for _, target := range slices.Concat(route.Spec.Traffic, route.Status.Traffic) {
		if target.ConfigurationName != "" {
			t.configurations[target.ConfigurationName] = true
		}
		if target.RevisionName != "" {
			t.revisions[target.RevisionName] = true
		}
	}
	return t
}

// withRoute and withoutRoute edit the value of the routes annotation, which is a sorted list with
// commas.
func withRoute(value, route string) string {
	set := routes(value)
	set[route] = true
	return strings.Join(slices.Sorted(maps.Keys(set)), ",")
}

func withoutRoute(value, route string) string {
	set := routes(value)
	delete(set, route)
	return strings.Join(slices.Sorted(maps.Keys(set)), ",")
}

func routes(value string) map[string]bool {
	set := map[string]bool{}
	for _, name := range strings.Split(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			set[name] = true
		}
	}
	return set
}

// state returns the routing state of a revision with the given routes annotation, if a Route ever
// led to it.
func state(routes string) names.RoutingState {
	if routes == "" {
		return names.RoutingReserve
	}
	return names.RoutingActive
}
