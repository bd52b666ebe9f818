package plan

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// Request is what a choice depends on.
type Request struct {
	Host string // as the client sent it
	Path string // without the query
	// From is the kind of gateways that the request came through, and TLS whether it came there
	// over TLS.
	From Visibility
	TLS  bool
	// Fields are those of its header, names in any case.
	Fields iter.Seq2[string, string]
}

// Choice is what becomes of a request. It points into the plan.
type Choice struct {
	// Redirect sends the client to https. There is no rule then.
	Redirect bool
	// Rule is the one that counts, with its headers.
	Rule *Rule
	// Backend gets the request, with its headers, too. It is nil if no backend has a share.
	Backend *Backend
}

// Choose says what gateways that follow the plan do with a request, so that others can do the same
// in their place. Of all draws, each backend gets its percentage. ok is false if the gateways do
// not know where the request goes, and answer 404.
//
// Each HTTPRoute of package gatewayapi says the same in the words of the Gateway API, in which not
// the first rule counts but the one with the longest path, then the one with a header.
func (p *Plan) Choose(r Request, draw uint64) (c Choice, ok bool) {
	host := Canonical(r.Host)
	for i := range p.Targets {
		if t := &p.Targets[i]; t.Visibility == r.From && slices.Contains(t.Hosts, host) {
			return t.choose(&r, draw)
		}
	}
	return Choice{}, false
}

// Canonical returns a host without its port and final dot, in lower case.
func Canonical(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func (t *Target) choose(r *Request, draw uint64) (c Choice, ok bool) {
	if !strings.HasPrefix(r.Path, "/") {
		return Choice{}, false // OPTIONS *
	}
	if t.Plain == HTTPRedirected && !r.TLS {
		return Choice{Redirect: true}, true
	}
	name, value := "", "" // of the field that was looked up last: most rules match the same one
	for i := range t.Rules {
		rule := &t.Rules[i]
		if m := rule.Match; m != nil {
			if m.Name != name {
				name, value = m.Name, r.only(m.Name)
			}
			if value != m.Value {
				continue
			}
		}
		if under(r.Path, cmp.Or(rule.Path, "/")) {
			return Choice{Rule: rule, Backend: pick(rule.Backends, draw)}, true
		}
	}
	return Choice{}, false
}

// only returns the value of a field, or "" if there is none or more than one: gateways compare all
// values with commas between them, and no rule wants a value with a comma.
func (r *Request) only(name string) (value string) {
	found := false
	for n, v := range r.Fields {
		if !strings.EqualFold(n, name) {
			continue
		}
		if found {
			return ""
		}
		value, found = v, true
	}
	return value
}

// under reports whether a path is a prefix or below it. A prefix ends with a segment: /a covers
// /a/b and not /ab, with or without a final slash.
func under(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(prefix, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// pick divides the draws among the backends by their percentages.
func pick(backends []Backend, draw uint64) *Backend {
	sum := uint64(0)
	for i := range backends {
		sum += uint64(backends[i].Percent)
	}
	if sum == 0 {
		return nil
	}
	draw %= sum
	for i := range backends {
		share := uint64(backends[i].Percent)
		if draw < share {
			return &backends[i]
		}
		draw -= share
	}
	return nil
}
