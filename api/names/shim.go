package names

import (
	"regexp"
	"slices"

	"knative.dev/pkg/apis"
)

// ShimModes are the values of ShimAnnotation: the modes of the shim.
var ShimModes = []string{"http", "streaming", "serializing"}

// ShimHTTP is the mode in which the program is a server. In the others it runs for each request.
const ShimHTTP = "http"

func (r *reader) shim() string {
	mode, ok := r.annotations[ShimAnnotation]
	if ok && !slices.Contains(ShimModes, mode) {
		r.fail(apis.ErrInvalidValue(mode, ShimAnnotation, "must be http, streaming or serializing"))
		return ""
	}
	return mode
}

// reservedVariables have a value already.
var reservedVariables = []string{"PORT", "K_SERVICE", "K_CONFIGURATION", "K_REVISION"}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,252}$`)

func (r *reader) concurrencyVariable() string {
	name, ok := r.annotations[ConcurrencyVariableAnnotation]
	switch {
	case !ok:
	case !variableName.MatchString(name):
		r.fail(apis.ErrInvalidValue(name, ConcurrencyVariableAnnotation, "must be the name of a variable, such as WEB_CONCURRENCY"))
	case slices.Contains(reservedVariables, name):
		r.fail(apis.ErrInvalidValue(name, ConcurrencyVariableAnnotation, "the variable is set by Ebb"))
	default:
		return name
	}
	return ""
}
