// Package call is one asynchronous call: what is stored of it, how its request is read and sent
// again, and the record of what became of it.
//
// Owns: the stored form of calls and records, the rules for their headers, the times between
// attempts. Reads: nothing but its arguments. Writes: nothing. Never: has a clock, a client or a
// connection.
package call

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/wire"
)

// Service is what a call is for: a Route of a namespace.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"service"`
}

func (s Service) String() string { return s.Namespace + "/" + s.Name }

// Call is a request that the courier has promised to deliver. Its body is stored beside it.
type Call struct {
	Service
	ID string `json:"id"`
	// Host is the host inside the cluster that gets the request, Asked the one that the client
	// used. Only at the latter the result is read.
	Host   string `json:"host"`
	Asked  string `json:"asked"`
	Method string `json:"method"`
	// Path has the query, too.
	Path   string      `json:"path"`
	Header http.Header `json:"header,omitempty"`
	// Size is the length of the body. A large one is in the store of bodies, under the name Body.
	Size     int64     `json:"size,omitempty"`
	Body     string    `json:"body,omitempty"`
	Accepted time.Time `json:"accepted"`
	// Keyed says that the same call may be accepted again under the same ID, if it has the same
	// Print.
	Keyed    bool   `json:"keyed,omitempty"`
	Print    string `json:"print,omitempty"`
	Callback string `json:"callback,omitempty"`
	Hops     int    `json:"hops,omitempty"`
	// Schedule is the name of the schedule that made the call, "" for a client's.
	Schedule string `json:"schedule,omitempty"`
	// Route is the UID of the Route that accepted the call.
	Route string `json:"route,omitempty"`
}

// State is how far a call is.
type State string

// States of a call.
const (
	Queued    State = "queued"
	Running   State = "running"
	Completed State = "completed" // the service has answered
	Dead      State = "dead"      // the courier has given up
)

// Record is what became of a call.
type Record struct {
	Service
	ID       string     `json:"id"`
	State    State      `json:"state"`
	Asked    string     `json:"host"`
	Method   string     `json:"method"`
	Path     string     `json:"path"`
	Schedule string     `json:"schedule,omitempty"`
	Accepted time.Time  `json:"accepted"`
	Started  *time.Time `json:"started,omitempty"` // of the last attempt
	Ended    *time.Time `json:"ended,omitempty"`
	// Waited and Ran are milliseconds: until the last attempt began, and how long it took.
	Waited   int64 `json:"waitedMilliseconds"`
	Ran      int64 `json:"ranMilliseconds"`
	Attempts int   `json:"attempts"`
	// Status is the service's answer, 0 without one.
	Status int `json:"status,omitempty"`
	// Cold says that the call waited for a pod to start; it is told where config-observability has
	// cold-start-header.
	Cold bool `json:"cold,omitempty"`
	// Reason says why the call is dead, or why its result could not be kept.
	Reason string      `json:"reason,omitempty"`
	Header http.Header `json:"-"`
	Size   int64       `json:"size"`
	Body   string      `json:"-"`
	Print  string      `json:"-"` // of a call with an idempotency key
}

// stored adds to a Record what readers of records do not see.
type stored struct {
	Record
	Header http.Header `json:"header,omitempty"`
	Body   string      `json:"body,omitempty"`
	Print  string      `json:"print,omitempty"`
}

// Encode returns the stored form of a Call or a Record.
func Encode(what any) string {
	switch of := what.(type) {
	case *Record:
		what = stored{*of, each(of.Header, toText), of.Body, of.Print}
	case *Call:
		c := *of
		c.Path, c.Header = toText(c.Path), each(c.Header, toText)
		what = c
	}
	data, err := json.Marshal(what)
	if err != nil {
		panic(fmt.Sprintf("a call is plain data: %v", err))
	}
	return string(data)
}

// Decode reads a stored Call.
func Decode(text string) (*Call, error) {
	c := &Call{}
	if err := json.Unmarshal([]byte(text), c); err != nil {
		return nil, fmt.Errorf("read a stored call: %w", err)
	}
	c.Path, c.Header = ofText(c.Path), each(c.Header, ofText)
	if !ValidID(c.ID) || c.Namespace == "" || c.Name == "" || c.Host == "" || c.Method == "" || !strings.HasPrefix(c.Path, "/") {
		return nil, fmt.Errorf("read a stored call: %q lacks what a call needs", c.ID)
	}
	return c, nil
}

// DecodeRecord reads a stored Record.
func DecodeRecord(text string) (*Record, error) {
	var s stored
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("read a stored record: %w", err)
	}
	s.Record.Header, s.Record.Body, s.Record.Print = each(s.Header, ofText), s.Body, s.Print
	return &s.Record, nil
}

// Record begins the record of a call.
func (c *Call) Record() *Record {
	return &Record{Service: c.Service, ID: c.ID, State: Queued, Asked: c.Asked, Method: c.Method, Path: c.Path,
		Schedule: c.Schedule, Accepted: c.Accepted, Print: c.Print}
}

// hopByHop are the headers of a connection, not of a request (RFC 9110 section 7.6.1).
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade"}

// ofTheRoute are what gateways and Ebb's components set anew on the way to the service.
var ofTheRoute = []string{wire.HeaderAsyncTarget, wire.HeaderAsyncDelivery, wire.HeaderNetworkHash, wire.HeaderNetworkProbe,
	wire.HeaderRevision, wire.HeaderNamespace, wire.HeaderDefaultRoute, wire.HeaderOriginalHost, wire.HeaderProxyRequest, wire.HeaderNoQueue,
	wire.HeaderBackend, wire.HeaderCallback, wire.HeaderHops, wire.HeaderCallID, wire.HeaderAttempt, wire.HeaderAccepted, wire.HeaderSchedule,
	wire.HeaderScheduledAt, "Content-Length", "Expect", "Host"}

// KeptRequest returns the headers of a request that the service gets.
func KeptRequest(given http.Header) http.Header {
	kept := withoutConnection(given)
	for _, name := range ofTheRoute {
		kept.Del(name)
	}
	if preferences := WithoutRespondAsync(kept.Values("Prefer")); len(preferences) > 0 {
		kept["Prefer"] = preferences
	} else {
		kept.Del("Prefer")
	}
	return kept
}

// KeptResponse returns the headers of a response that its reader gets.
func KeptResponse(given http.Header) http.Header {
	kept := withoutConnection(given)
	kept.Del("Content-Length")
	return kept
}

func withoutConnection(given http.Header) http.Header {
	kept := given.Clone()
	if kept == nil {
		return http.Header{}
	}
	for _, list := range given.Values("Connection") {
		for name := range strings.SplitSeq(list, ",") {
			kept.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		kept.Del(name)
	}
	return kept
}

// Hops returns how many asynchronous calls led to a request; ok is false if the header is no such
// number.
func Hops(h http.Header) (hops int, ok bool) {
	values := h.Values(wire.HeaderHops)
	if len(values) == 0 {
		return 0, true
	}
	n, err := strconv.Atoi(values[0])
	return n, err == nil && n >= 0 && n < 1<<20 && len(values) == 1
}

// MayRepeat reports, by the status of an answer, whether another attempt may succeed. If not, the
// service has answered.
func MayRepeat(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported, http.StatusLoopDetected:
		return false
	}
	return status >= 500
}

// Backoff is the pause after an attempt: First, doubled for each attempt, up to Max.
type Backoff struct{ First, Max time.Duration }

// After returns the pause after attempt number n, counted from 1, or what the service asked for by
// Retry-After if that is longer. random is between 0 and 1: half of the pause is random, so that
// calls that failed together do not come back together.
func (b Backoff) After(n int, retryAfter time.Duration, random float64) time.Duration {
	pause := b.Max
	if n < 32 && b.First<<(max(n, 1)-1) < b.Max {
		pause = b.First << (max(n, 1) - 1)
	}
	pause = pause/2 + time.Duration(random*float64(pause/2))
	return min(max(pause, retryAfter), max(b.Max, b.First))
}

// RetryAfter reads the header of that name, in seconds or as a date; 0 if there is none.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(seconds, 0), 1<<20)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// ValidMethod reports whether a request with the method can be stored and sent later.
func ValidMethod(method string) bool {
	return method != http.MethodConnect && method != http.MethodTrace && len(method) <= 32 && !slices.Contains([]string{"", "PRI"}, method)
}
