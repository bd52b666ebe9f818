// Package plans knows what becomes of requests for hosts without an HTTPRoute of their own: the
// plans of their Routes, and which Route has a host (docs/decisions/0020).
//
// Owns: the table of plans, and the bounds of requests that wait for one. Reads: the calls of watch
// and chain. Writes: nothing else. Never: does I/O; counts a host as a Route's that has no plan.
package plans

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"ebb.dev/ebb/ingress/plan"
)

// Route is what the activator knows of a Route. It never changes.
type Route struct {
	Namespace, Name string
	UID             string
	Created         time.Time

	domain, text string // of the cluster, and of the plan: it can be read
	plan         atomic.Pointer[plan.Plan]
}

// Plan has the targets whose requests activators choose revisions for. It is read when a request
// first needs it, because most Routes of a large cluster have no requests.
func (r *Route) Plan() *plan.Plan {
	p := r.plan.Load()
	if p == nil {
		_, p, _ = r.read()
		r.plan.Store(p)
	}
	return p
}

// Probe returns what probes are told, and the revisions of the Route's namespace that the plan
// names. They are read anew: probes are rare.
func (r *Route) Probe() (answer string, revisions []string) {
	c, p, err := r.read()
	if err != nil {
		return "", nil
	}
	return c.Answer(), revisionsOf(p)
}

func (r *Route) read() (*plan.Compact, *plan.Plan, error) {
	c, err := plan.ParseCompact(r.text)
	if err == nil && c.UID != r.UID {
		err = fmt.Errorf("it is of the Route with the UID %s", c.UID)
	}
	var p *plan.Plan
	if err == nil {
		p, err = c.Plan(r.Namespace, r.Name, r.domain)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("plan of Route %s/%s: %w", r.Namespace, r.Name, err)
	}
	return c, p, nil
}

// key names a Route.
type key struct{ namespace, name string }

// claim is a Route that has a host in its plan.
type claim struct {
	route *Route
	rank  int
}

// before orders the claims of a host as the controller does, so that all activators come to the
// same Route while two controllers do not yet know of each other's.
func before(a, b claim) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), a.route.Created.Compare(b.route.Created),
		cmp.Compare(a.route.Namespace, b.route.Namespace), cmp.Compare(a.route.Name, b.route.Name))
}

// Table has the plans of all Routes.
type Table struct {
	domain   string // of the cluster, such as cluster.local
	followed atomic.Bool

	mutex  sync.RWMutex
	routes map[key]*Route
	// hosts are the claims of each host, the first one counts. Those inside the cluster have their
	// shortest name here.
	public, local map[string][]claim
}

// NewTable returns an empty table. domain is the cluster's.
func NewTable(domain string) *Table {
	return &Table{domain: domain, routes: map[key]*Route{}, public: map[string][]claim{}, local: map[string][]claim{}}
}

// Follow says that the plans of all Routes are here from now on.
func (t *Table) Follow() { t.followed.Store(true) }

// Followed reports whether requests can be led by plans. Until they can, this activator is like one
// that knows nothing of plans.
func (t *Table) Followed() bool { return t.followed.Load() }

// Set stores the plan that stands in a Route's status; text is "" if there is none. One that cannot
// be read is an error, and the Route's last one goes on to count: a later version may have written
// it, and what the last one leads to stays until every activator follows the next.
func (t *Table) Set(namespace, name, uid string, created time.Time, text string) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	k := key{namespace, name}
	if have := t.routes[k]; text == "" || have != nil && have.UID != uid {
		t.dropLocked(k)
	}
	if text == "" {
		return nil
	}
	route := &Route{Namespace: namespace, Name: name, UID: uid, Created: created, domain: t.domain, text: text}
	c, p, err := route.read()
	if err != nil {
		return err
	}
	t.dropLocked(k)
	t.routes[k] = route
	ranks := map[string]int{}
	for i := range c.Targets {
		ranks[c.Targets[i].Tag] = c.Targets[i].Rank
	}
	for i := range p.Targets {
		target := &p.Targets[i]
		rank := 0
		if target.Visibility == plan.External {
			rank = ranks[target.Tag]
		}
		hosts, host := t.of(target.Visibility), part(text, target.Hosts[0])
		claims := append(slices.Clip(hosts[host]), claim{route, rank})
		slices.SortFunc(claims, before)
		hosts[host] = claims
	}
	return nil
}

// Delete forgets a Route.
func (t *Table) Delete(namespace, name string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.dropLocked(key{namespace, name})
}

func (t *Table) dropLocked(k key) {
	route := t.routes[k]
	if route == nil {
		return
	}
	delete(t.routes, k)
	_, p, _ := route.read()
	for i := range p.Targets {
		target := &p.Targets[i]
		hosts, host := t.of(target.Visibility), target.Hosts[0]
		claims := slices.DeleteFunc(slices.Clone(hosts[host]), func(c claim) bool { return c.route == route })
		if hosts[host] = claims; len(claims) == 0 {
			delete(hosts, host)
		}
	}
}

func (t *Table) of(v plan.Visibility) map[string][]claim {
	if v == plan.External {
		return t.public
	}
	return t.local
}

// Find returns the Route that has a host at a kind of gateways, or nil.
func (t *Table) Find(host string, from plan.Visibility) *Route {
	host = plan.Canonical(host)
	switch from {
	case plan.External:
	case plan.ClusterLocal:
		if host = t.shortest(host); host == "" {
			return nil
		}
	default:
		return nil
	}
	t.mutex.RLock()
	defer t.mutex.RUnlock()
	if claims := t.of(from)[host]; len(claims) > 0 {
		return claims[0].route
	}
	return nil
}

// Len is how many Routes have a plan.
func (t *Table) Len() int {
	t.mutex.RLock()
	defer t.mutex.RUnlock()
	return len(t.routes)
}

// shortest returns <name>.<namespace> of a Service's host, or "".
func (t *Table) shortest(host string) string {
	name, rest, _ := strings.Cut(host, ".")
	namespace, rest, _ := strings.Cut(rest, ".")
	if name == "" || namespace == "" {
		return ""
	}
	if domain, is := strings.CutPrefix(rest, "svc."); rest == "" || rest == "svc" || is && strings.EqualFold(domain, t.domain) {
		return host[:len(name)+1+len(namespace)]
	}
	return ""
}

// part returns s as a part of a text that has it, so that it takes no memory of its own.
func part(text, s string) string {
	if i := strings.Index(text, s); i >= 0 {
		return text[i : i+len(s)]
	}
	return s
}

// revisionsOf returns those that a plan names in the Route's namespace.
func revisionsOf(p *plan.Plan) []string {
	named := sets.New[string]()
	for i := range p.Targets {
		for j := range p.Targets[i].Rules {
			for _, b := range p.Targets[i].Rules[j].Backends {
				if b.Namespace == "" {
					named.Insert(b.Service)
				}
			}
		}
	}
	return named.UnsortedList()
}
