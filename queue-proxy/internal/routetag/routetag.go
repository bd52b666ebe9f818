// Package routetag says through which of a Route's doors a request came (contract section 5.6).
//
// Owns: the names of the doors. Reads: a request's headers. Never: anything else.
package routetag

import (
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

// Tags that are no name of a target.
const (
	Default   = "kn:default"   // the Route's own host
	Undefined = "kn:undefined" // the Route's own host, with a header that names no target
	Disabled  = "kn:disabled"  // tags by header are switched off
)

// Chosen reports whether a request came by the name of a target. Its sender chose the revision, not
// the split of the Route.
func Chosen(r *forward.Request) bool {
	return r.Header(wire.HeaderTag) != "" && r.Header(wire.HeaderDefaultRoute) != "true"
}

// Of is the tag of a request. It shares the request's buffer.
func Of(r *forward.Request) string {
	name, viaDefault := r.Header(wire.HeaderTag), r.Header(wire.HeaderDefaultRoute)
	switch {
	case viaDefault == "" && name == "":
		return Disabled
	case viaDefault == "true" && name != "":
		return Undefined
	case viaDefault == "true":
		return Default
	}
	return name
}
