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

// ShimMode returns the value of ShimAnnotation, "" if there is none. An invalid value reads as
// none.
func ShimMode(annotations map[string]string) (string, *apis.FieldError) {
	mode, ok := annotations[ShimAnnotation]
	if ok && !slices.Contains(ShimModes, mode) {
		return "", apis.ErrInvalidValue(mode, ShimAnnotation, "must be http, streaming or serializing")
	}
	return mode, nil
}

// reservedVariables have a value already.
var reservedVariables = []string{"PORT", "K_SERVICE", "K_CONFIGURATION", "K_REVISION"}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,252}$`)

// ConcurrencyVariable returns the value of ConcurrencyVariableAnnotation, "" if there is none. An
// invalid value reads as none.
func ConcurrencyVariable(annotations map[string]string) (string, *apis.FieldError) {
	name, ok := annotations[ConcurrencyVariableAnnotation]
	switch {
	case !ok:
	case !variableName.MatchString(name):
		return "", apis.ErrInvalidValue(name, ConcurrencyVariableAnnotation, "must be the name of a variable, such as WEB_CONCURRENCY")
	case slices.Contains(reservedVariables, name):
		return "", apis.ErrInvalidValue(name, ConcurrencyVariableAnnotation, "the variable is set by Ebb")
	}
	return name, nil
}
