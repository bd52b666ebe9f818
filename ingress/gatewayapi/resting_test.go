package gatewayapi

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
	"ebb.dev/ebb/wire"
)

func common(visibility plan.Visibility, hosts ...string) *gatewayv1.HTTPRoute {
	route, _ := ToActivators{Namespace: "knative-serving", Name: "common-" + string(visibility), Visibility: visibility, Hosts: hosts}.HTTPRoute(
		settings.Default().Gateway, Meta{})
	return route
}

func TestTheHTTPRoutesToActivators(t *testing.T) {
	bridge, _ := ToActivators{Namespace: "knative-serving", Name: "bridge-0123", Visibility: plan.ClusterLocal,
		Hosts: []string{"hello.default", "hello.default.svc", "hello.default.svc.cluster.local"}}.HTTPRoute(settings.Default().Gateway,
		Meta{Labels: map[string]string{"networking.ebb.dev/bridge": "route-uid"}})
	var text strings.Builder
	for _, route := range []*gatewayv1.HTTPRoute{common(plan.External, "*.example.com"), common(plan.ClusterLocal), bridge} {
		checkInternalHeaders(t, route)
		raw, err := yaml.Marshal(route)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "---\n%s", raw)
	}
	golden.File(t, "testdata/to-activators.yaml", text.String())
}

// There are two common HTTPRoutes for a domain, so that one that is deleted is not missed. A probe
// is to tell them from a bridge, and not from each other.
func TestTwinsHaveOneHash(t *testing.T) {
	hash := func(name string, visibility plan.Visibility, hosts ...string) string {
		_, hash := ToActivators{Namespace: "knative-serving", Name: name, Visibility: visibility, Hosts: hosts}.HTTPRoute(settings.Default().Gateway, Meta{})
		return hash
	}
	one := hash("common-1", plan.External, "*.example.com")
	if other := hash("common-2", plan.External, "*.example.com"); one != other {
		t.Errorf("twins have the hashes %s and %s", one, other)
	}
	for _, other := range []string{hash("bridge", plan.External, "hello.default.example.com"), hash("common-1", plan.ClusterLocal, "*.example.com"), hash("common-1", plan.ClusterLocal)} {
		if one == other {
			t.Errorf("another HTTPRoute has the hash %s, too", other)
		}
	}
}

// Activators believe a header that names the revision, and then one that says that they are to
// choose. A client may send both. So the rules that lead to revisions set the first, and need not
// take the second off; those that lead to activators set the second and take the first off.
func TestAClientCannotNameARevision(t *testing.T) {
	names := []string{wire.HeaderRevision, wire.HeaderNamespace}
	rule := common(plan.External).Spec.Rules[0].Filters[0].RequestHeaderModifier
	for _, name := range names {
		if !slices.Contains(rule.Remove, name) {
			t.Errorf("to activators: %s is not among %v", name, rule.Remove)
		}
	}
	if !sets(rule.Set, wire.HeaderResting) {
		t.Errorf("to activators: %s is not among %v", wire.HeaderResting, rule.Set)
	}
	check := func(what string, routes []*gatewayv1.HTTPRoute) {
		for _, route := range routes {
			for i, rule := range route.Spec.Rules {
				for _, ref := range rule.BackendRefs {
					if ref.Namespace != nil {
						continue // the courier
					}
					var set []gatewayv1.HTTPHeader
					for _, f := range slices.Concat(rule.Filters, ref.Filters) {
						set = append(set, f.RequestHeaderModifier.Set...)
					}
					for _, name := range names {
						if !sets(set, name) {
							t.Errorf("%s: rule %d of %s leads to %s and does not set %s", what, i, route.Name, ref.Name, name)
						}
					}
				}
			}
		}
	}
	for name, in := range cases() {
		p, err := plan.Make(in)
		if err != nil {
			t.Fatal(err)
		}
		g, meta := settings.Default().Gateway, Meta{Owner: metav1.OwnerReference{UID: "route-uid"}}
		routes := HTTPRoutes(p, g, meta)
		check(name, routes)
		spares, _ := Spares(routes)
		check(name+", spare", spares)
		for _, route := range routes {
			mapped, _ := Map(Mapping{Host: "shop.example.org", Target: "hello.default.svc.cluster.local", Rules: route.Spec.Rules}, g, Meta{Labels: map[string]string{}})
			check(name+", mapped", mapped)
		}
	}
}

func sets(headers []gatewayv1.HTTPHeader, name string) bool {
	return slices.ContainsFunc(headers, func(h gatewayv1.HTTPHeader) bool { return strings.EqualFold(string(h.Name), name) })
}

// Where the HTTPRoutes of a target may be, as package resting says.
const (
	rests = iota
	bridged
	prepared
	both
	own
	places
)

// On the way between its own HTTPRoutes and none a target does with each request what it does with
// all of its own: whichever of two HTTPRoutes is older, and wherever its other targets are.
func TestEachStepBetweenRestAndOwnSaysTheSame(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(200) {
		between(t, seed, seen)
	}
	for _, what := range []string{"revision", "split", notFound, nobody, "by activators", "by the gateway"} {
		if seen[what] < 20 {
			t.Errorf("only %d requests ended with %s: %v", seen[what], what, seen)
		}
	}
}

func between(t *testing.T, seed uint64, seen map[string]int) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 7))
	in := randomRoute(random, random.IntN(16), random.IntN(51), uint(seed)&(withTagHeader|withLocalTags|withoutPublicHosts))
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	g, meta := settings.Default().Gateway, Meta{Owner: metav1.OwnerReference{UID: "route-uid"}}
	all := HTTPRoutes(p, g, meta)
	followed := told(t, in, p)
	e := &envoy{routes: []*gatewayv1.HTTPRoute{common(plan.External, "*.example.com"), common(plan.ClusterLocal)}, sets: map[string]types.NamespacedName{}}
	at := map[string]int{}
	for i := range p.Targets {
		target := &p.Targets[i]
		place := random.IntN(places)
		at[Name(*target)] = place
		bridge, _ := ToActivators{Namespace: "knative-serving", Name: fmt.Sprint("bridge-", i), Visibility: target.Visibility, Hosts: target.Hosts}.HTTPRoute(g, Meta{})
		var routes []*gatewayv1.HTTPRoute
		for _, route := range all {
			if slices.Contains(route.Spec.Hostnames, gatewayv1.Hostname(target.Hosts[0])) && (route.Labels["networking.knative.dev/visibility"] != "") == (target.Visibility == plan.ClusterLocal) {
				routes = append(routes, route)
			}
		}
		if place == prepared {
			routes, _ = Spares(routes)
			for _, route := range routes {
				checkRoom(t, route)
			}
		}
		var there []*gatewayv1.HTTPRoute
		if place >= bridged && place <= both {
			there = append(there, bridge)
		}
		if place >= prepared {
			there = append(there, routes...)
		}
		if random.IntN(2) == 0 && len(there) > 1 && place <= both { // the bridge came last
			there = append(there[1:], bridge)
		}
		e.routes = append(e.routes, there...)
	}
	alone := &envoy{routes: all, sets: e.sets}
	for range 40 {
		a, from := randomRequest(random, p, 0)
		on := g.External[0]
		if from == plan.ClusterLocal {
			on = g.Local[0]
		}
		a.gateway = types.NamespacedName{Namespace: on.Namespace(), Name: on.Name()}
		want := alone.answer(t, p.Namespace, p.Hash(), a)
		sum := int64(0)
		for what, share := range want {
			sum += share
			seen[kind(what)]++
		}
		if len(want) > 1 {
			seen["split"]++
		}
		got := e.answers(t, p, followed, a, sum, seen)
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d, targets at %v: of %+v\nbetween %v\nown     %v", seed, at, a, got, want)
		}
	}
}

func checkRoom(t *testing.T, route *gatewayv1.HTTPRoute) {
	t.Helper()
	if len(route.Spec.Rules) > maxRules {
		t.Fatalf("%s has %d rules", route.Name, len(route.Spec.Rules))
	}
	for _, rule := range route.Spec.Rules {
		if !isSpare(rule) && len(rule.BackendRefs) > 0 {
			t.Fatalf("requests match a rule of %s: %v", route.Name, rule.Matches)
		}
	}
}

// answers returns what the gateway does, or what activators do to which it leads a request.
func (e *envoy) answers(t *testing.T, p, followed *plan.Plan, a asked, sum int64, seen map[string]int) outcomes {
	t.Helper()
	rule := e.rule(a)
	if rule == nil || len(rule.BackendRefs) != 1 || rule.BackendRefs[0].Name != plan.Resting {
		seen["by the gateway"]++
		return e.answer(t, p.Namespace, p.Hash(), a)
	}
	seen["by activators"]++
	fields := filtered(a.fields, rule.Filters)
	from := plan.Visibility("")
	for _, f := range fields {
		if strings.EqualFold(f.name, wire.HeaderResting) {
			from = plan.Visibility(f.value)
		}
	}
	// The activator takes these off.
	a.fields = slices.DeleteFunc(fields, func(f field) bool {
		return strings.EqualFold(f.name, wire.HeaderResting) || strings.EqualFold(f.name, wire.HeaderNetworkHash)
	})
	return chosen(followed, a, from, sum)
}
