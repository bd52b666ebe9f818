package gatewayapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// routesTo returns the HTTPRoutes of a Route with these shares.
func routesTo(t *testing.T, change func(*plan.Input), shares ...plan.Share) []*gatewayv1.HTTPRoute {
	in := base()
	in.AllLocal = true
	in.Targets[""] = shares
	change(&in)
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	return HTTPRoutes(p, settings.Default().Gateway, Meta{Owner: metav1.OwnerReference{UID: "0b8f"}})
}

func byName(routes []*gatewayv1.HTTPRoute) map[string]*gatewayv1.HTTPRoute {
	out := map[string]*gatewayv1.HTTPRoute{}
	for _, r := range routes {
		out[r.Name] = r
	}
	return out
}

// rulesOf says where the requests of each rule of the first HTTPRoute go: "hello-00002 60,
// hello-00003 40 | spare hello-00001".
func rulesOf(routes []*gatewayv1.HTTPRoute) string {
	if len(routes) == 0 {
		return ""
	}
	var rules []string
	for _, rule := range routes[0].Spec.Rules {
		var refs []string
		spare := ""
		for _, h := range rule.Matches[0].Headers {
			if h.Name == wire.HeaderBackend {
				spare = "spare "
			}
		}
		for _, ref := range rule.BackendRefs {
			text := string(ref.Name)
			if *ref.Weight != 100 && spare == "" {
				text += fmt.Sprint(" ", *ref.Weight)
			}
			refs = append(refs, text)
		}
		rules = append(rules, spare+strings.Join(refs, ", "))
	}
	return strings.Join(rules, " | ")
}

func all(revision string) plan.Share { return plan.Share{Revision: revision, Percent: 100} }

// The gateways know each backend before requests go there, and until requests no longer do.
func TestBackendsChangeInThreeWrites(t *testing.T) {
	same := func(*plan.Input) {}
	a, b, c := all("hello-00001"), all("hello-00002"), all("hello-00003")
	share := func(of plan.Share, percent int64) plan.Share { of.Percent = percent; return of }
	cases := []struct {
		name          string
		have, want    []plan.Share
		first, second string
	}{
		{"nothing changes", []plan.Share{a}, []plan.Share{a}, "", "hello-00001"},
		{"rollout", []plan.Share{a}, []plan.Share{b}, "hello-00001 | spare hello-00002", "hello-00002 | spare hello-00001"},
		{"a split begins", []plan.Share{a}, []plan.Share{share(a, 99), share(b, 1)},
			"hello-00001 | spare hello-00001, hello-00002 | spare hello-00002", "spare hello-00001 | hello-00001 99, hello-00002 1"},
		{"a split begins with another revision", []plan.Share{c}, []plan.Share{share(a, 50), share(b, 50)},
			"hello-00003 | spare hello-00001, hello-00002 | spare hello-00001 | spare hello-00002",
			"spare hello-00001 | hello-00001 50, hello-00002 50 | spare hello-00003"},
		{"a split goes on", []plan.Share{share(a, 99), share(b, 1)}, []plan.Share{share(a, 50), share(b, 50)},
			"", "spare hello-00001 | hello-00001 50, hello-00002 50"},
		{"a split ends", []plan.Share{share(a, 1), share(b, 99)}, []plan.Share{b},
			"spare hello-00002 | hello-00001 1, hello-00002 99", "hello-00002 | spare hello-00001, hello-00002"},
		{"two for two", []plan.Share{share(a, 50), share(b, 50)}, []plan.Share{share(b, 30), share(c, 70)},
			"spare hello-00001 | hello-00001 50, hello-00002 50 | spare hello-00002, hello-00003 | spare hello-00003",
			"spare hello-00002 | hello-00002 30, hello-00003 70 | spare hello-00002, hello-00003 | spare hello-00001"},
		{"two of three", []plan.Share{share(a, 30), share(b, 30), share(c, 40)}, []plan.Share{share(a, 50), share(b, 50)},
			"spare hello-00001 | hello-00001 30, hello-00002 30, hello-00003 40 | spare hello-00001, hello-00002",
			"spare hello-00001 | hello-00001 50, hello-00002 50 | spare hello-00001, hello-00002 | spare hello-00003"},
		{"another port", []plan.Share{a}, []plan.Share{{Revision: "hello-00001", Percent: 100, H2C: true}},
			"hello-00001 | spare hello-00001", "hello-00001 | spare hello-00001"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			have, want := routesTo(t, same, c.have...), routesTo(t, same, c.want...)
			first, values := Prepare(byName(have), want, "prepared")
			if got := rulesOf(first); got != c.first {
				t.Errorf("first write %q, want %q", got, c.first)
			}
			for _, r := range first {
				probed := 0
				for _, rule := range r.Spec.Rules {
					if strings.Contains(fmt.Sprint(rule.Filters[0].RequestHeaderModifier.Set), "prepared") {
						probed++
						if !isSpare(rule) || !slices.Contains(values[r.Name], "0b8f/0/"+key(rule)) {
							t.Errorf("no probe goes to %s", key(rule))
						}
					}
				}
				if probed == 0 || probed != len(values[r.Name]) {
					t.Errorf("%d rules are for the probes of %v", probed, values)
				}
				have = first
			}
			second, retained := Retain(byName(have), want)
			if got := rulesOf(second); got != c.second || retained != (got != rulesOf(want)) {
				t.Errorf("second write %q, want %q; retained %v", got, c.second, retained)
			}
			again, _ := Prepare(byName(second), want, "prepared")
			if stay, _ := Retain(byName(second), want); len(again) > 0 || rulesOf(stay) != c.second {
				t.Errorf("not stable: %q, %q", rulesOf(again), rulesOf(stay))
			}
			if done, retained := Retain(byName(want), want); retained || rulesOf(done) != rulesOf(want) {
				t.Errorf("afterwards: %q", rulesOf(done))
			}
		})
	}
}

// A second rollout may begin before the gateways follow the first. Then requests may still go to
// the first revision.
func TestASecondChangeKeepsTheBackendsOfTheFirst(t *testing.T) {
	same := func(*plan.Input) {}
	one, two, three := routesTo(t, same, all("hello-00001")), routesTo(t, same, all("hello-00002")), routesTo(t, same, all("hello-00003"))
	first, _ := Prepare(byName(one), two, "")
	second, _ := Retain(byName(first), two)
	third, _ := Prepare(byName(second), three, "")
	fourth, _ := Retain(byName(third), three)
	for _, name := range []string{"spare hello-00001", "spare hello-00002", "hello-00003 |"} {
		if got := rulesOf(fourth); !strings.Contains(got, name) {
			t.Errorf("%q lacks %q", got, name)
		}
	}
}

// A Route may move to another gateway when its backends change. Probes ask the new gateway for the
// spare rules, and requests still come through the old one.
func TestBothGatewaysKnowTheSpareRules(t *testing.T) {
	same := func(*plan.Input) {}
	have, want := routesTo(t, same, all("hello-00001")), routesTo(t, same, all("hello-00002"))
	old := want[0].Spec.ParentRefs[0]
	old.Name = "old"
	have[0].Spec.ParentRefs = []gatewayv1.ParentReference{old}
	first, _ := Prepare(byName(have), want, "")
	second, retained := Retain(byName(first), want)
	if got := len(first[0].Spec.ParentRefs); got != 2 {
		t.Errorf("first, there are %d parents", got)
	}
	if got := second[0].Spec.ParentRefs; len(got) != 2 || !retained {
		t.Errorf("until the new one follows, the parents are %v (a third write: %v)", got, retained)
	}
	again, _ := Prepare(byName(first), want, "")
	if got := len(again[0].Spec.ParentRefs); got != 2 {
		t.Errorf("not stable: %d parents", got)
	}
}

// A new host has no requests to lose, and an HTTPRoute has room for 16 rules.
func TestHTTPRoutesWithoutSpareRules(t *testing.T) {
	same := func(*plan.Input) {}
	if first, _ := Prepare(nil, routesTo(t, same, all("hello-00001")), ""); len(first) > 0 {
		t.Errorf("a new host: %s", rulesOf(first))
	}
	full := func(in *plan.Input) {
		in.TagHeader = true
		for i := range maxRules - 1 {
			in.Targets[fmt.Sprintf("t%02d", i)] = []plan.Share{all("hello-00001")}
		}
	}
	have, want := routesTo(t, full, all("hello-00001")), routesTo(t, full, all("hello-00002"))
	first, _ := Prepare(byName(have), want, "")
	second, retained := Retain(byName(have), want)
	for _, r := range slices.Concat(first, second) {
		if len(r.Spec.Rules) > maxRules {
			t.Errorf("%s has %d rules", r.Name, len(r.Spec.Rules))
		}
	}
	if retained || len(second) != len(want) {
		t.Errorf("retained %v, %d HTTPRoutes of %d", retained, len(second), len(want))
	}
}

// A client knows the names of revisions, or guesses them. It does not know the UID of a Route, so
// it cannot choose among the revisions of a split, nor reach one that has no requests yet.
func TestAClientCannotChooseABackend(t *testing.T) {
	same := func(*plan.Input) {}
	split := []plan.Share{all("hello-00001"), all("hello-00002")}
	split[0].Percent, split[1].Percent = 99, 1
	have, want := routesTo(t, same, split...), routesTo(t, same, all("hello-00003"))
	first, values := Prepare(byName(have), want, "")
	second, _ := Retain(byName(first), want)
	spares := 0
	for _, route := range slices.Concat(have, first, second) {
		for _, rule := range route.Spec.Rules {
			for _, m := range rule.Matches {
				for _, h := range m.Headers {
					if spares++; !strings.HasPrefix(h.Value, "0b8f/") {
						t.Errorf("%s can be reached with %s: %s", key(rule), h.Name, h.Value)
					}
				}
			}
		}
	}
	if spares < 3 || len(values) == 0 {
		t.Errorf("%d spare rules, values %v", spares, values)
	}
}

// A former parent stays until the new one serves, unless another HTTPRoute takes it, as a redirect
// to https does.
func TestAFormerParentStaysUnlessItIsTaken(t *testing.T) {
	to := func(name string, parents ...string) *gatewayv1.HTTPRoute {
		route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, p := range parents {
			route.Spec.ParentRefs = append(route.Spec.ParentRefs, gatewayv1.ParentReference{Name: gatewayv1.ObjectName(p)})
		}
		return route
	}
	have := byName([]*gatewayv1.HTTPRoute{to("host", "old")})
	if second, retained := RetainParents(have, []*gatewayv1.HTTPRoute{to("host", "new")}); !retained || len(second[0].Spec.ParentRefs) != 2 {
		t.Errorf("the former parent is gone: %+v", second[0].Spec.ParentRefs)
	}
	second, retained := RetainParents(have, []*gatewayv1.HTTPRoute{to("host", "new"), to("redirect", "old")})
	if retained || len(second[0].Spec.ParentRefs) != 1 {
		t.Errorf("a parent that the redirect takes stays: %+v", second[0].Spec.ParentRefs)
	}
}
