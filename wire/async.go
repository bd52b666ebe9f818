package wire

import "strings"

// HeaderPrefer and PreferAsync are the header (RFC 7240) of a request that may be answered later.
const (
	HeaderPrefer = "Prefer"
	PreferAsync  = "respond-async"
)

// AsyncTarget is the value of HeaderAsyncTarget. A client cannot set it, because the Route does. To
// others it is a secret: the UID is.
type AsyncTarget struct {
	Namespace, Route, UID string
	// Host is one of the Route's hosts inside the cluster.
	Host string
}

// String returns the four parts with a slash between them.
func (t AsyncTarget) String() string {
	return t.Namespace + "/" + t.Route + "/" + t.UID + "/" + t.Host
}

// ParseAsyncTarget is the inverse of String; ok is false if a part is missing.
func ParseAsyncTarget(text string) (t AsyncTarget, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 4 {
		return t, false
	}
	for _, part := range parts {
		if part == "" {
			return t, false
		}
	}
	return AsyncTarget{Namespace: parts[0], Route: parts[1], UID: parts[2], Host: parts[3]}, true
}
