package gatewayapi

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// envoy does what the Gateway API and Envoy say of HTTPRoutes, for the features that this package
// uses. It is written from their documents, and shares no code with plan.Choose.
type envoy struct {
	routes []*gatewayv1.HTTPRoute // the oldest first
	alike  bool                   // they were made in the same second, so their names decide
	// sets has the Gateways of ListenerSets, by name.
	sets map[string]types.NamespacedName
}

type field struct{ name, value string }

type asked struct {
	gateway    types.NamespacedName
	tls        bool
	host, path string
	fields     []field
}

// candidate is a rule that matches a request, and what its rank depends on: how long its path is,
// how many headers it wants, the place and the name of its HTTPRoute, its place in it.
type candidate struct {
	rule          *gatewayv1.HTTPRouteRule
	path, headers int
	route         int
	name          string
	place         int
}

// rule returns the rule that counts, nil if none matches. The order is the one that the Gateway API
// has for HTTPRouteRule.Matches.
func (e *envoy) rule(a asked) *gatewayv1.HTTPRouteRule {
	host, _, _ := strings.Cut(strings.ToLower(a.host), ":")
	host = strings.TrimSuffix(host, ".")
	// Envoy looks into the virtual host of the most specific name alone.
	name := ""
	for _, route := range e.routes {
		for _, n := range e.hostnames(route) {
			if e.attached(route, a) && isOf(host, n) && (n == host || name != host && len(n) > len(name)) {
				name = n
			}
		}
	}
	var all []candidate
	for i, route := range e.routes {
		if !slices.Contains(e.hostnames(route), name) || !e.attached(route, a) {
			continue
		}
		for place := range route.Spec.Rules {
			rule := &route.Spec.Rules[place]
			for _, match := range rule.Matches {
				if covers(*match.Path.Value, a.path) && hasAll(a.fields, match.Headers) {
					all = append(all, candidate{rule, len(*match.Path.Value), len(match.Headers), i, route.Name, place})
				}
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b candidate) int {
		age := cmp.Compare(a.route, b.route)
		if e.alike {
			age = cmp.Compare(a.name, b.name)
		}
		return cmp.Or(cmp.Compare(b.path, a.path), cmp.Compare(b.headers, a.headers), age, cmp.Compare(a.place, b.place))
	}).rule
}

// hostnames are those of an HTTPRoute, "*" if it has none.
func (e *envoy) hostnames(route *gatewayv1.HTTPRoute) (out []string) {
	for _, n := range route.Spec.Hostnames {
		out = append(out, string(n))
	}
	if len(out) == 0 {
		return []string{"*"}
	}
	return out
}

func isOf(host, name string) bool {
	suffix, wildcard := strings.CutPrefix(name, "*")
	return host == name || wildcard && len(host) > len(suffix) && strings.HasSuffix(host, suffix)
}

// attached reports whether an HTTPRoute has a listener through which the request came.
func (e *envoy) attached(route *gatewayv1.HTTPRoute, a asked) bool {
	return slices.ContainsFunc(route.Spec.ParentRefs, func(p gatewayv1.ParentReference) bool {
		if *p.Kind == "ListenerSet" {
			return a.tls && e.sets[string(p.Name)] == a.gateway
		}
		if string(*p.Namespace) != a.gateway.Namespace || string(p.Name) != a.gateway.Name {
			return false
		}
		return p.SectionName == nil || strings.HasPrefix(string(*p.SectionName), "https-") == a.tls
	})
}

// covers compares a path with a prefix by segments, as PathPrefix does.
func covers(prefix, path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	of, in := strings.Split(strings.TrimRight(prefix, "/"), "/"), strings.Split(path, "/")
	return len(of) <= len(in) && slices.Equal(of, in[:len(of)])
}

// hasAll compares headers as Envoy does: names in any case, all values of a name with commas.
func hasAll(fields []field, wanted []gatewayv1.HTTPHeaderMatch) bool {
	return !slices.ContainsFunc(wanted, func(m gatewayv1.HTTPHeaderMatch) bool {
		var values []string
		for _, f := range fields {
			if strings.EqualFold(f.name, string(m.Name)) {
				values = append(values, f.value)
			}
		}
		return len(values) == 0 || strings.Join(values, ",") != m.Value
	})
}

// filtered returns the fields behind filters, by their names in lower case.
func filtered(fields []field, filters ...[]gatewayv1.HTTPRouteFilter) []field {
	fields = slices.Clone(fields)
	for i := range fields {
		fields[i].name = strings.ToLower(fields[i].name)
	}
	without := func(name string) {
		fields = slices.DeleteFunc(fields, func(f field) bool { return strings.EqualFold(f.name, name) })
	}
	for _, filter := range slices.Concat(filters...) {
		for _, name := range filter.RequestHeaderModifier.Remove {
			without(name)
		}
		for _, h := range filter.RequestHeaderModifier.Set {
			without(string(h.Name))
			fields = append(fields, field{strings.ToLower(string(h.Name)), h.Value})
		}
	}
	slices.SortStableFunc(fields, func(a, b field) int { return cmp.Compare(a.name, b.name) })
	return fields
}

// outcomes are what becomes of a request, and of how many draws of a hundred or another sum.
type outcomes map[string]int64

func arrives(namespace, service string, fields []field) string {
	return fmt.Sprintf("%s/%s gets %q", namespace, service, fields)
}

const (
	notFound = "404"
	nobody   = "500"
	redirect = "301"
)

// answer returns what the gateway does.
func (e *envoy) answer(t *testing.T, namespace, hash string, a asked) outcomes {
	rule := e.rule(a)
	switch {
	case rule == nil:
		return outcomes{notFound: 1}
	case len(rule.BackendRefs) == 0 && rule.Filters[0].RequestRedirect != nil:
		if to := rule.Filters[0].RequestRedirect; *to.Scheme != "https" || *to.StatusCode != 301 || to.Hostname != nil || to.Path != nil {
			t.Fatalf("a redirect to %+v", to)
		}
		return outcomes{redirect: 1}
	case len(rule.BackendRefs) == 0:
		return outcomes{nobody: 1}
	}
	out := outcomes{}
	for _, ref := range rule.BackendRefs {
		fields := filtered(a.fields, rule.Filters, ref.Filters)
		// Only probes read the hash, and every rule sets it.
		said := field{strings.ToLower(wire.HeaderNetworkHash), hash}
		if !slices.Contains(fields, said) {
			t.Fatalf("the plan has the hash %s, and %s gets %q", hash, ref.Name, fields)
		}
		fields = slices.DeleteFunc(fields, func(f field) bool { return f.name == said.name })
		out[arrives(string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(namespace))), string(ref.Name), fields)] += int64(*ref.Weight)
	}
	return out
}

// chosen returns what one does who follows the plan behind a gateway that sends him everything.
// That gateway takes off what its own rules take off every request, and what names a revision.
func chosen(p *plan.Plan, a asked, from plan.Visibility, draws int64) outcomes {
	before := filtered(a.fields, []gatewayv1.HTTPRouteFilter{{RequestHeaderModifier: &gatewayv1.HTTPHeaderFilter{
		Remove: append([]string{wire.HeaderNamespace, wire.HeaderRevision}, internalHeaders...)}}})
	request := plan.Request{Host: a.host, Path: a.path, From: from, TLS: a.tls, Fields: func(yield func(name, value string) bool) {
		for _, f := range before {
			if !yield(f.name, f.value) {
				return
			}
		}
	}}
	out := outcomes{}
	for draw := range uint64(draws) {
		c, ok := p.Choose(request, draw)
		switch {
		case !ok:
			out[notFound]++
		case c.Redirect:
			out[redirect]++
		case c.Backend == nil:
			out[nobody]++
		default:
			filters := slices.Concat(setHeaders(c.Rule.Set), setHeaders(c.Backend.Set))
			filters = append(filters, gatewayv1.HTTPRouteFilter{RequestHeaderModifier: &gatewayv1.HTTPHeaderFilter{Remove: c.Rule.Remove}})
			out[arrives(cmp.Or(c.Backend.Namespace, p.Namespace), c.Backend.Service, filtered(before, filters))]++
		}
	}
	return out
}

// The bits that say what a Route of the test below has.
const (
	withTagHeader = 1 << iota
	withCalls
	withCallsOnly
	withCertificates
	withRedirects
	withLocalTags
	withoutPublicHosts
	withoutListenerSets
	withHTTPRoutesOfOneAge
	allBits
)

// randomRoute returns a Route with up to 16 revisions and 50 tags.
func randomRoute(random *rand.Rand, revisions, tags int, bits uint) plan.Input {
	in := base()
	is := func(bit uint) bool { return bits&bit != 0 }
	split := func(n int) (out []plan.Share) {
		left := int64(100)
		for i := range n {
			percent := left
			if i < n-1 {
				percent = random.Int64N(left + 1)
			}
			left -= percent
			out = append(out, plan.Share{Revision: fmt.Sprintf("hello-%05d", i+1), Percent: percent, H2C: i == 1, TLS: i == 2})
		}
		return out
	}
	in.Targets[""] = split(1 + revisions%16)
	in.Local, in.TLS = map[string]bool{}, map[string]string{}
	for i := range tags % 51 {
		tag := fmt.Sprintf("t%d", i)
		switch random.IntN(8) {
		case 0:
			in.Targets[tag] = nil
		case 1:
			in.Targets[tag] = split(1 + random.IntN(3))
		default:
			in.Targets[tag] = split(1)
		}
		in.Local[tag] = is(withLocalTags) && random.IntN(2) == 0
	}
	in.TagHeader, in.Redirect, in.AllLocal = is(withTagHeader), is(withRedirects), is(withoutPublicHosts)
	if is(withCalls) || is(withCallsOnly) {
		in.Async = &plan.Async{Namespace: "knative-serving", UID: "route-uid", Preferred: is(withCalls), Always: is(withCallsOnly)}
	}
	for _, tag := range slices.Sorted(maps.Keys(in.Targets)) {
		name, _ := in.TargetName(tag)
		if public, err := in.PublicHost(name); err == nil && is(withCertificates) && random.IntN(3) > 0 {
			in.TLS[public] = "certificate-" + name
		}
		if is(withCertificates) && random.IntN(3) == 0 {
			in.TLS[in.LocalHost(name)] = "local-" + name
		}
	}
	return in
}

func oneOf[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// randomRequest returns a request to a host of the plan, or nearly.
func randomRequest(random *rand.Rand, p *plan.Plan, bits uint) (asked, plan.Visibility) {
	target := p.Targets[random.IntN(len(p.Targets))]
	from := target.Visibility
	if random.IntN(12) == 0 {
		from = oneOf(random, plan.External, plan.ClusterLocal)
	}
	a := asked{tls: random.IntN(2) == 0, host: oneOf(random, target.Hosts...)}
	switch random.IntN(12) {
	case 0:
		a.host += ":8080"
	case 1:
		a.host = strings.ToUpper(a.host) + "."
	case 2:
		a.host = strings.ToUpper(a.host[:1]) + a.host[1:] + ".:80"
	case 3:
		a.host = "x" + a.host
	}
	a.path = oneOf(random, "/", "/", "/a/b", wire.PathCalls, wire.PathCalls+"1", "/.ebb/calls", "/.ebb/callsigns", "/.ebb", "//", "*", wire.PathCalls+"/x")
	tag := func() string { return oneOf(random, fmt.Sprintf("t%d", random.IntN(52)), "t1", "T1", "", "t1,t2") }
	for range random.IntN(5) {
		a.fields = append(a.fields, oneOf(random,
			field{wire.HeaderTag, tag()}, field{"knative-serving-tag", tag()}, field{wire.HeaderDefaultRoute, "false"},
			field{wire.HeaderPrefer, oneOf(random, wire.PreferAsync, "respond-async, wait=1", "wait=1")},
			field{wire.HeaderAsyncDelivery, oneOf(random, "route-uid", "another")}, field{wire.HeaderAsyncTarget, "forged"},
			field{wire.HeaderOriginalHost, "forged"}, field{"k-proxy-request", "activator"}, field{wire.HeaderBackend, "forged/hello-00001:80"},
			field{"Accept", oneOf(random, "text/html", "*/*")}))
	}
	if bits&(withCalls|withCallsOnly) == 0 && random.IntN(4) == 0 {
		// The courier reads neither, so no rule that leads to it takes them off.
		a.fields = append(a.fields, field{wire.HeaderRevision, "forged"}, field{"knative-serving-namespace", "forged"})
	}
	return a, from
}

// compare makes a Route, and asks both about random requests. It counts what they answer.
func compare(t *testing.T, seed uint64, revisions, tags int, bits uint, requests int, seen map[string]int) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	in := randomRoute(random, revisions, tags, bits)
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	followed := told(t, in, p)
	g := settings.Default().Gateway
	if bits&withoutListenerSets != 0 {
		g.External[0], g.Local[0] = WithoutListenerSets(g.External[0]), WithoutListenerSets(g.Local[0])
	}
	meta := Meta{Owner: metav1.OwnerReference{UID: "route-uid"}}
	e := &envoy{routes: HTTPRoutes(p, g, meta), alike: bits&withHTTPRoutesOfOneAge != 0, sets: map[string]types.NamespacedName{}}
	for _, set := range TLSListeners(p, g, meta) {
		e.sets[set.GetName()] = GatewayOf(set)
	}
	hash := p.Hash()
	for range requests {
		a, from := randomRequest(random, p, bits)
		on := g.External[0]
		if from == plan.ClusterLocal {
			on = g.Local[0]
		}
		a.gateway = types.NamespacedName{Namespace: on.Namespace(), Name: on.Name()}
		want := e.answer(t, p.Namespace, hash, a)
		sum := int64(0)
		for what, share := range want {
			sum += share
			seen[kind(what)]++
		}
		if len(want) > 1 {
			seen["split"]++
		}
		if got := chosen(followed, a, from, sum); !maps.Equal(got, want) {
			t.Fatalf("seed %d, %d revisions, %d tags, bits %b: of %+v\nthe plan makes %v\nEnvoy makes   %v", seed, revisions, tags, bits, a, got, want)
		}
	}
}

// told returns the plan as activators learn it.
func told(t *testing.T, in plan.Input, p *plan.Plan) *plan.Plan {
	t.Helper()
	ranks := map[string]int{}
	for tag := range in.Targets {
		ranks[tag] = 0
	}
	c, err := in.Compact(p, "route-uid", ranks)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = plan.ParseCompact(c.String()); err != nil {
		t.Fatal(err)
	}
	followed, err := c.Plan(in.Namespace, in.Name, in.ClusterDomain)
	if err != nil {
		t.Fatal(err)
	}
	return followed
}

// kind tells a revision, the courier and the answers apart.
func kind(outcome string) string {
	switch {
	case strings.HasPrefix(outcome, "knative-serving/courier "):
		return "call"
	case strings.HasPrefix(outcome, "default/hello-"):
		return "revision"
	}
	return outcome
}

// Who follows a plan, as it stands in the status of a Route, does with each request what the
// gateways do that have its HTTPRoutes.
func TestAPlanAndItsHTTPRoutesSayTheSame(t *testing.T) {
	seen := map[string]int{}
	for i := range 128 {
		compare(t, uint64(i), i, i*3, uint(i*37)%allBits, 25, seen)
	}
	compare(t, 1, 15, 50, (allBits-1)&^withoutPublicHosts, 500, seen)
	for _, what := range []string{"revision", "call", "split", notFound, nobody, redirect} {
		if seen[what] < 20 {
			t.Errorf("only %d requests ended with %s: %v", seen[what], what, seen)
		}
	}
}

func FuzzChoose(f *testing.F) {
	f.Add(uint64(1), uint8(15), uint8(50), uint(0))
	f.Add(uint64(2), uint8(15), uint8(50), uint(withTagHeader|withHTTPRoutesOfOneAge))
	f.Add(uint64(3), uint8(15), uint8(50), uint(withTagHeader|withCalls|withCallsOnly|withCertificates|withRedirects))
	f.Fuzz(func(t *testing.T, seed uint64, revisions, tags uint8, bits uint) {
		compare(t, seed, int(revisions), int(tags), bits%allBits, 20, map[string]int{})
	})
}
