package names

import (
	"fmt"

	"knative.dev/pkg/apis"

	"ebb.dev/ebb/wire"
)

// ResponseTimeoutActionAnnotation on a Revision says what a timer does to a response that has
// begun. ResponseTimeoutEnd ends it cleanly, with a trailer that names the timer.
// ResponseTimeoutCut breaks it off, so that no client takes it for a whole one.
const (
	ResponseTimeoutActionAnnotation = EbbServingGroup + "/response-timeout-action"
	ResponseTimeoutEnd              = wire.ResponseTimeoutEnd
	ResponseTimeoutCut              = wire.ResponseTimeoutCut
)

// handlingAnnotations are those of wire.Handling.
var handlingAnnotations = []Annotation{
	{Key: ResponseTimeoutActionAnnotation, On: onTemplate, Values: anyOf(ResponseTimeoutEnd, ResponseTimeoutCut),
		Default: "`response-timeout-action` in config-defaults", Effect: "What a timeout does to a response that has begun."},
}

// handling reads how both proxies handle requests. otherwise has the settings.
func (r *reader) handling(otherwise wire.Handling) wire.Handling {
	h := otherwise
	switch action, ok := r.annotations[ResponseTimeoutActionAnnotation]; {
	case !ok:
	case action == ResponseTimeoutEnd, action == ResponseTimeoutCut:
		h.CutResponses = action == ResponseTimeoutCut
	default:
		r.fail(apis.ErrInvalidValue(action, ResponseTimeoutActionAnnotation, fmt.Sprintf("must be %s or %s", ResponseTimeoutEnd, ResponseTimeoutCut)))
	}
	return h
}
