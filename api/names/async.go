package names

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/calls"
)

// Annotations of a Service or Route about asynchronous calls. The courier serves them.
const (
	AsyncAnnotation              = "serving.ebb.dev/async"
	AsyncCallbackAnnotation      = "serving.ebb.dev/async-callback"
	AsyncCallbackHostsAnnotation = "serving.ebb.dev/async-callback-hosts"
	AsyncConcurrencyAnnotation   = "serving.ebb.dev/async-concurrency"
	AsyncRateAnnotation          = "serving.ebb.dev/async-rate"
	SchedulesAnnotation          = "serving.ebb.dev/schedules"
)

// AsyncAnnotations are read on Services and Routes only.
var AsyncAnnotations = []string{AsyncAnnotation, AsyncCallbackAnnotation, AsyncCallbackHostsAnnotation, AsyncConcurrencyAnnotation, AsyncRateAnnotation, SchedulesAnnotation}

// AsyncMode says which requests are asynchronous.
type AsyncMode string

// Values of AsyncAnnotation.
const (
	AsyncAllowed AsyncMode = "allowed" // those that prefer it
	AsyncAlways  AsyncMode = "always"  // all
	// AsyncNever is the default: Prefer: respond-async is the program's own.
	AsyncNever AsyncMode = "never"
)

// Async is what annotations say about asynchronous calls.
type Async struct {
	Mode     AsyncMode
	Callback string
	// CallbackHosts are those that callbacks of a client may have: a host, *.host for all below it,
	// or * for any.
	CallbackHosts []string
	Concurrency   int32   // 0 is not given
	Rate          float64 // calls per second, 0 is not given
	Schedules     []calls.Schedule
}

const maxCallback = 2048

var callbackHost = regexp.MustCompile(`^[a-z0-9_.:-]{1,253}$`)

// MayCallBack reports whether a client may name a callback at a host, which has no port.
func (a Async) MayCallBack(host string) bool {
	host = hostName(host)
	for _, one := range a.CallbackHosts {
		below, wild := strings.CutPrefix(one, "*")
		if one == host || wild && strings.HasSuffix(host, below) && host != below {
			return true
		}
	}
	return false
}

// hostName is a host as hosts are compared (RFC 3986 section 3.2.2): in lower case, and without the
// final dot of a full name.
func hostName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// ParseAsync reads the annotations about asynchronous calls.
func ParseAsync(annotations map[string]string) (Async, *apis.FieldError) {
	r := &reader{annotations: annotations}
	a := Async{Mode: AsyncNever}
	if text, given := annotations[AsyncAnnotation]; given {
		switch mode := AsyncMode(text); mode {
		case AsyncAllowed, AsyncAlways, AsyncNever:
			a.Mode = mode
		default:
			r.fail(apis.ErrInvalidValue(text, AsyncAnnotation, fmt.Sprintf("must be %s, %s or %s", AsyncAllowed, AsyncAlways, AsyncNever)))
		}
	}
	if text, given := annotations[AsyncCallbackAnnotation]; given {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Fragment != "" ||
			len(text) > maxCallback || strings.ContainsAny(text, " \t\r\n") {
			r.fail(apis.ErrInvalidValue(text, AsyncCallbackAnnotation, "must be a URL with http or https, without a user or a fragment"))
		} else {
			a.Callback = text
		}
	}
	if text, given := annotations[AsyncCallbackHostsAnnotation]; given {
		for one := range strings.SplitSeq(text, ",") {
			one = hostName(strings.TrimSpace(one))
			if name := strings.TrimPrefix(one, "*."); one != "*" && !callbackHost.MatchString(name) {
				r.fail(apis.ErrInvalidValue(text, AsyncCallbackHostsAnnotation, fmt.Sprintf("%q must be a host, *.host for all below it, or * for any, without a port", one)))
				break
			}
			a.CallbackHosts = append(a.CallbackHosts, one)
		}
	}
	if n := r.int32(AsyncConcurrencyAnnotation); n != nil {
		a.Concurrency = *n
	}
	if f := r.float(AsyncRateAnnotation); f != nil {
		a.Rate = *f
	}
	if text, given := annotations[SchedulesAnnotation]; given {
		list, err := calls.Parse(text)
		if err != nil {
			r.fail(apis.ErrInvalidValue("schedules", SchedulesAnnotation, err.Error()))
		} else {
			a.Schedules = list
		}
	}
	return a, r.errs
}
