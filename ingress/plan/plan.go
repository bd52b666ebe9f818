// Package plan computes what gateways do for a Route: its hosts, their visibility, and where their
// requests go.
//
// Owns: host names, visibility, weights, the headers that gateways add to requests, what becomes of
// a request, and the plan's hash. Reads: nothing but its arguments. Writes: nothing. Never: depends
// on a vendor, a client or a clock. The same arguments return the same plan, byte for byte.
package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// Visibility is the kind of gateways that serve a host.
type Visibility string

// Visibilities of a host.
const (
	External     Visibility = "external"
	ClusterLocal Visibility = "local"
)

// Protocol of plain requests to a host.
type Protocol string

// What a host does with plain HTTP.
const (
	HTTPServed     Protocol = "served"
	HTTPRedirected Protocol = "redirected" // to https
)

// Share is one revision's part of a target's requests.
type Share struct {
	Revision string
	Percent  int64
	H2C      bool // the revision's public Service has port 81 instead of 80
	TLS      bool // its endpoints serve TLS on port 443
}

// Input is everything a plan depends on.
type Input struct {
	Namespace, Name     string
	Labels, Annotations map[string]string
	// Domain is the suffix of public hosts, ClusterDomain that of Services.
	Domain, ClusterDomain string
	DomainTemplate        settings.Template
	TagTemplate           settings.Template
	// Targets has the shares of each tag; "" is the Route's own host. The percentages of a target
	// add up to 100.
	Targets map[string][]Share
	// Local lists the tags that have no public host; AllLocal means all of them.
	Local    map[string]bool
	AllLocal bool
	// TagHeader lets the header Knative-Serving-Tag choose a tagged target on the Route's own host.
	TagHeader bool
	// Judged makes gateways tell pods which requests came by a tag, whatever their senders say: a
	// judge of rollouts does not count these.
	Judged bool
	// TLS names, by host, the Secret (in the Route's namespace) with its certificate.
	TLS map[string]string
	// Redirect turns plain HTTP on public hosts with TLS into a redirect.
	Redirect bool
	// Async leads asynchronous calls to the courier; nil does not.
	Async *Async
}

// Async is how a Route leads calls to the courier.
type Async struct {
	Namespace string // of the courier
	UID       string // of the Route
	Preferred bool   // requests that prefer it
	Always    bool   // all requests
}

// Plan is what the gateways do for one Route.
type Plan struct {
	Namespace, Name string
	Targets         []Target // the Route's own first, then by tag; external before local
}

// Target is one set of hosts with the same rules.
type Target struct {
	Tag        string
	Name       string   // name of the target: the Route's, or the expanded tag template
	Hosts      []string // external: one; local: the three names of a Service
	Visibility Visibility
	TLSSecret  string // "" = plain HTTP only
	Plain      Protocol
	Rules      []Rule // first match counts; the last one has no Match
}

// Rule sends the requests it matches to backends.
type Rule struct {
	Match    *Header // nil = every request
	Path     string  `json:",omitempty"` // a prefix
	Set      []Header
	Remove   []string `json:",omitempty"` // headers
	Backends []Backend
}

// Header is a header with one value.
type Header struct{ Name, Value string }

// Backend is a revision's public Service, or the courier's.
type Backend struct {
	Namespace string `json:",omitempty"` // "" = the Route's
	Service   string
	Port      int32
	Percent   int64
	Set       []Header
}

// Names of Services in Ebb's namespace: the courier's, and that of the activators for hosts without
// an HTTPRoute of their own.
const (
	Courier = "courier"
	Resting = "activator-resting"
)

// Ports of a revision's public Service (contract 1.5).
const (
	portHTTP1 = 80
	portH2C   = 81
	portTLS   = 443
)

// maxBackends is the most revisions that one rule of an HTTPRoute can name.
const maxBackends = 16

var hostName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)

// A ConfigError means that the settings give no valid host for this Route.
type ConfigError struct{ Reason string }

func (e *ConfigError) Error() string { return e.Reason }

// TargetName returns the name of a target: the Route's own, or for a tag the expanded tag-template.
func (in *Input) TargetName(tag string) (string, error) {
	if tag == "" {
		return in.Name, nil
	}
	name, err := in.TagTemplate.Expand(settings.TagValues{Tag: tag, Name: in.Name})
	if err != nil {
		return "", &ConfigError{fmt.Sprintf("tag-template %q cannot be applied to tag %q of Route %q: %v",
			in.TagTemplate, tag, in.Name, err)}
	}
	if len(name) > 63 || !hostName.MatchString(name) || strings.Contains(name, ".") {
		return "", &ConfigError{fmt.Sprintf("tag-template %q gives %q for tag %q of Route %q, which is not a DNS label of at "+
			"most 63 characters", in.TagTemplate, name, tag, in.Name)}
	}
	return name, nil
}

// PublicHost returns the external host of the target with the given name.
func (in *Input) PublicHost(name string) (string, error) {
	host, err := in.DomainTemplate.Expand(settings.DomainValues{Name: name, Namespace: in.Namespace, Domain: in.Domain,
		Annotations: in.Annotations, Labels: in.Labels})
	if err != nil {
		return "", &ConfigError{fmt.Sprintf("domain-template %q cannot be applied to Route %q: %v", in.DomainTemplate, in.Name, err)}
	}
	if len(host) > 253 || !hostName.MatchString(host) {
		return "", &ConfigError{fmt.Sprintf("domain-template %q gives %q for Route %q, which is not a host name",
			in.DomainTemplate, host, in.Name)}
	}
	return host, nil
}

// LocalHost returns the full host name of the placeholder Service of a target.
func (in *Input) LocalHost(name string) string {
	return name + "." + in.Namespace + ".svc." + in.ClusterDomain
}

// LocalHosts returns the host names of a target inside the cluster, the full one last.
func (in *Input) LocalHosts(name string) []string {
	short := name + "." + in.Namespace
	return []string{short, short + ".svc", in.LocalHost(name)}
}

// IsLocal reports whether a target has no public host.
func (in *Input) IsLocal(tag string) bool {
	return in.AllLocal || in.Local[tag] || in.Domain == "svc."+in.ClusterDomain
}

// Host returns the host of a target in status.url.
func (in *Input) Host(tag string) (string, error) {
	name, err := in.TargetName(tag)
	if err != nil {
		return "", err
	}
	if in.IsLocal(tag) {
		return in.LocalHost(name), nil
	}
	return in.PublicHost(name)
}

// Make returns the plan. The error is a ConfigError if the templates give no valid host. The only
// other error is a target with more revisions than a gateway supports.
func Make(in Input) (*Plan, error) {
	p := &Plan{Namespace: in.Namespace, Name: in.Name}
	tags := slices.Sorted(maps.Keys(in.Targets)) // "" sorts first
	owner, taken := map[string]string{}, hosts{}
	for _, tag := range tags {
		name, err := in.TargetName(tag)
		if err != nil {
			return nil, err
		}
		if other, twice := owner[name]; twice {
			return nil, &ConfigError{fmt.Sprintf("tag-template %q gives %q for both tag %q and %q", in.TagTemplate, name, other, tag)}
		}
		owner[name] = tag
		if err := taken.take(&in, name, in.LocalHosts(name)...); err != nil {
			return nil, err
		}
		rules, err := in.rules(tag, tags)
		if err != nil {
			return nil, err
		}
		if !in.IsLocal(tag) {
			host, err := in.PublicHost(name)
			if err != nil {
				return nil, err
			}
			if err := taken.take(&in, name, host); err != nil {
				return nil, err
			}
			t := in.external(tag, name, host, rules)
			t.TLSSecret = in.TLS[host]
			if in.Redirect && t.TLSSecret != "" {
				t.Plain = HTTPRedirected
			}
			p.Targets = append(p.Targets, t)
		}
		t := in.local(tag, name, rules)
		t.TLSSecret = in.TLS[in.LocalHost(name)]
		p.Targets = append(p.Targets, t)
	}
	return p, nil
}

func (in *Input) external(tag, name, host string, rules []Rule) Target {
	return Target{Tag: tag, Name: name, Hosts: []string{host}, Visibility: External, Plain: HTTPServed, Rules: in.async(name, rules, External)}
}

func (in *Input) local(tag, name string, rules []Rule) Target {
	return Target{Tag: tag, Name: name, Hosts: in.LocalHosts(name), Visibility: ClusterLocal, Plain: HTTPServed,
		Rules: in.async(name, rules, ClusterLocal)}
}

// hosts maps each host of a Route to its target. A host has one set of rules, so it cannot have two
// targets.
type hosts map[string]string

func (h hosts) take(in *Input, target string, names ...string) error {
	for _, host := range names {
		other, taken := h[host]
		switch {
		case taken && other == target:
			return &ConfigError{fmt.Sprintf("domain-template %q gives Route %q the public host %q, which is its host inside the cluster: "+
				"let the template end in {{.Domain}}, and name a public domain in config-domain", in.DomainTemplate, in.Name, host)}
		case taken:
			return &ConfigError{fmt.Sprintf("under domain-template %q both target %q and target %q of Route %q have the host %q: let the "+
				"template contain {{.Name}}, which tells targets apart, or take the tag out of spec.traffic",
				in.DomainTemplate, other, target, in.Name, host)}
		}
		h[host] = target
	}
	return nil
}

func (in *Input) rules(tag string, tags []string) ([]Rule, error) {
	rule := func(of string) (Rule, error) {
		backends, err := in.backends(of)
		return Rule{Backends: backends}, err
	}
	last, err := rule(tag)
	if err != nil {
		return nil, err
	}
	var rules []Rule
	if in.TagHeader {
		if tag != "" {
			last.Set = []Header{{wire.HeaderTag, tag}}
		} else {
			for _, t := range tags {
				if t == "" {
					continue
				}
				r, err := rule(t)
				if err != nil {
					return nil, err
				}
				r.Match = &Header{wire.HeaderTag, t}
				rules = append(rules, r)
			}
			last.Set = []Header{{wire.HeaderDefaultRoute, "true"}}
		}
	}
	if in.Judged {
		in.distinguish(tag, rules, &last)
	}
	return append(rules, last), nil
}

// distinguish sets the headers that queue-proxy tells the requests of a tag by, and removes the
// client's own ones.
func (in *Input) distinguish(tag string, byHeader []Rule, last *Rule) {
	for i := range byHeader { // they have the client's tag, which is one
		byHeader[i].Remove = []string{wire.HeaderDefaultRoute}
	}
	switch {
	case tag != "":
		last.Set, last.Remove = []Header{{wire.HeaderTag, tag}}, []string{wire.HeaderDefaultRoute}
	case !in.TagHeader:
		last.Remove = []string{wire.HeaderTag, wire.HeaderDefaultRoute}
	}
}

// backends adds up the shares of each revision, and leaves out revisions without any.
func (in *Input) backends(tag string) ([]Backend, error) {
	percent := map[string]int64{}
	h2c, secure := map[string]bool{}, map[string]bool{}
	for _, s := range in.Targets[tag] {
		percent[s.Revision] += s.Percent
		h2c[s.Revision], secure[s.Revision] = s.H2C, s.TLS
	}
	var out []Backend
	for revision, p := range percent {
		if p == 0 {
			continue
		}
		b := Backend{Service: revision, Port: portHTTP1, Percent: p,
			Set: []Header{{wire.HeaderNamespace, in.Namespace}, {wire.HeaderRevision, revision}}}
		switch {
		case secure[revision]:
			b.Port = portTLS
		case h2c[revision]:
			b.Port = portH2C
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b Backend) int { return cmp.Compare(a.Service, b.Service) })
	if len(out) > maxBackends {
		return nil, fmt.Errorf("requests to Route %s/%s are split among %d revisions; a gateway can split among at most %d: "+
			"let fewer entries of spec.traffic have a percentage, and give the others a tag, which has a host of its own",
			in.Namespace, in.Name, len(out), maxBackends)
	}
	return out, nil
}

// Hash returns a hash of the plan. Gateways do the same for two plans with the same hash.
func (p *Plan) Hash() string {
	raw, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("a plan is plain data: %v", err))
	}
	return ShortHash(string(raw))
}

// ShortHash returns a hash of a text, with 16 characters.
func ShortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
