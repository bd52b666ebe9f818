package plan

import (
	"slices"

	"ebb.dev/ebb/wire"
)

// async adds the rules by which requests of a target reach the courier:
//
//	the path of results                      -> courier
//	Prefer: respond-async, or any request    -> courier, if the Service asks for it
//	what the courier delivers                -> the target, if any request is asynchronous
//	everything else                          -> the target
//
// Only hosts inside the cluster have the third.
func (in *Input) async(name string, rules []Rule, visibility Visibility) []Rule {
	if in.Async == nil {
		return rules
	}
	target := wire.AsyncTarget{Namespace: in.Namespace, Route: in.Name, UID: in.Async.UID, Host: in.LocalHost(name)}
	courier := Rule{
		Set:      []Header{{wire.HeaderAsyncTarget, target.String()}},
		Backends: []Backend{{Namespace: in.Async.Namespace, Service: Courier, Port: portHTTP1, Percent: 100}},
	}
	results := courier
	results.Path = wire.PathCalls
	// Neither header is the container's business.
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Remove = slices.Concat(rules[i].Remove, []string{wire.HeaderAsyncDelivery, wire.HeaderAsyncTarget})
	}
	out := []Rule{results}
	if !in.Async.Always {
		if in.Async.Preferred {
			courier.Match = &Header{wire.HeaderPrefer, wire.PreferAsync}
			out = append(out, courier)
		}
		return append(out, rules...)
	}
	last := len(rules) - 1
	if visibility == ClusterLocal {
		delivery := rules[last]
		delivery.Match = &Header{wire.HeaderAsyncDelivery, in.Async.UID}
		out = append(out, delivery)
	}
	return append(append(out, rules[:last]...), courier)
}
