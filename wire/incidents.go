package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a POST to PathIncidents.
const (
	MaxIncidents      = 256 // of each kind
	MaxIncidentsBytes = 1 << 20
	MaxCalls          = 20 // in a pod's body
	MaxCallsBytes     = 64 << 10
	// maxIncidentText bounds a text, in bytes. Names have their own bound, which is lower or equal.
	maxIncidentText = 253
	// maxPhases bounds the phases of a cold start.
	maxPhases = 8
	// MaxUnreachedAgo bounds how old an attempt to connect to a pod may be that is told of.
	MaxUnreachedAgo = 10 * time.Second
)

// Incidents are what is told the autoscaler besides load: by an activator cold starts that are
// over, requests that got no pod and pods that did not answer, by a pod the requests that it keeps
// a record of.
type Incidents struct {
	ColdStarts []ColdStarted `json:"coldStarts,omitempty"`
	Refusals   []Refused     `json:"refusals,omitempty"`
	Unreached  []Unreached   `json:"unreached,omitempty"`
	// Calls come from pods, and only they send them.
	Calls []Called `json:"calls,omitempty"`
}

// Called is the record of one request that a pod answered.
type Called struct {
	Namespace string `json:"namespace"`
	Revision  string `json:"revision"`
	Pod       string `json:"pod"`
	// At is when the request came to the pod, Accepted when the courier took it; zero for one that
	// is not asynchronous.
	At       time.Time     `json:"at"`
	Accepted time.Time     `json:"accepted,omitzero"`
	Waited   time.Duration `json:"waited"` // in the pod, for the container; nanoseconds
	Ran      time.Duration `json:"ran"`    // in the container
	Method   string        `json:"method"`
	Path     string        `json:"path"`   // without the query
	Status   int           `json:"status"` // 0 if the client got none
	Trace    string        `json:"trace,omitempty"`
	// Call and Attempt are those of an asynchronous call.
	Call    string `json:"call,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
}

// ColdStarted is one request that waited for a pod from zero. Its phases follow one another without
// a gap.
type ColdStarted struct {
	Namespace string    `json:"namespace"`
	Revision  string    `json:"revision"`
	At        time.Time `json:"at"` // when the request came
	Pod       string    `json:"pod"`
	Trace     string    `json:"trace,omitempty"`
	Phases    []Phase   `json:"phases"`
	// Complete is false if the autoscaler did not say when the pod was asked for and scheduled.
	Complete bool `json:"complete"`
	Pulled   bool `json:"pulled,omitempty"` // as in Birth
}

// Phase is one step of a cold start.
type Phase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"` // in nanoseconds
}

// Refused are equal refusals of a revision's requests within a short time.
type Refused struct {
	Namespace string    `json:"namespace"`
	Revision  string    `json:"revision"`
	At        time.Time `json:"at"` // of the newest
	By        string    `json:"by"` // name of the activator
	Status    int       `json:"status"`
	Reason    string    `json:"reason"`
	Count     int64     `json:"count"`
}

// Unreached says that nobody answered when an activator connected to a pod: there was no
// connection, and nobody refused one.
type Unreached struct {
	Namespace string `json:"namespace"`
	Revision  string `json:"revision"`
	Pod       string `json:"pod"`
	By        string `json:"by"`             // name of the activator
	Node      string `json:"node,omitempty"` // where the activator runs, "" if it does not know
	// Ago is how long before this was sent the newest attempt began, in nanoseconds. It is no time
	// of day: the clocks of two nodes may differ.
	Ago time.Duration `json:"ago"`
}

// Which requests queue-proxy tells the autoscaler of.
const (
	RecordsNone         = "none"
	RecordsAsynchronous = "asynchronous" // the default
	RecordsAll          = "all"
)

// QueryOf says in the URL of a POST to PathIncidents which revision's pod sends it; RevisionOf
// reads it.
func QueryOf(namespace, revision string) string {
	return url.Values{"namespace": {namespace}, "revision": {revision}}.Encode()
}

// RevisionOf returns the revision whose pod sends a POST to PathIncidents; ok is false for an
// activator's.
func RevisionOf(u *url.URL) (namespace, revision string, ok bool) {
	q := u.Query()
	namespace, revision = q.Get("namespace"), q.Get("revision")
	return namespace, revision, namespace != "" && revision != ""
}

// Clip shortens a text to what an incident may have.
func Clip(text string) string {
	if len(text) <= maxIncidentText {
		return text
	}
	text = text[:maxIncidentText-3]
	for !utf8.ValidString(text) && len(text) > 0 {
		text = text[:len(text)-1]
	}
	return text + "..."
}

var errIncident = errors.New("an incident is not valid")

// DecodeIncidents reads a body of a POST to PathIncidents. It refuses what no activator sends.
func DecodeIncidents(data []byte) (Incidents, error) {
	var i Incidents
	if err := json.Unmarshal(data, &i); err != nil {
		return Incidents{}, fmt.Errorf("read incidents: %w", err)
	}
	if len(i.ColdStarts) > MaxIncidents || len(i.Refusals) > MaxIncidents || len(i.Unreached) > MaxIncidents || len(i.Calls) > MaxIncidents {
		return Incidents{}, fmt.Errorf("%w: a body may have %d of a kind", errIncident, MaxIncidents)
	}
	for _, c := range i.ColdStarts {
		if err := valid(c.At, c.Namespace, c.Revision, c.Pod, c.Trace); err != nil {
			return Incidents{}, err
		}
		if len(c.Phases) > maxPhases {
			return Incidents{}, fmt.Errorf("%w: %d phases", errIncident, len(c.Phases))
		}
		for _, p := range c.Phases {
			if err := valid(c.At, p.Name); err != nil || p.Took < 0 || p.Took > 24*time.Hour {
				return Incidents{}, fmt.Errorf("%w: the phase %.20q took %v", errIncident, p.Name, p.Took)
			}
		}
	}
	for _, r := range i.Refusals {
		if err := valid(r.At, r.Namespace, r.Revision, r.By, r.Reason); err != nil {
			return Incidents{}, err
		}
		if r.Count < 1 || r.Count > 1<<40 || r.Status < 0 || r.Status > 999 {
			return Incidents{}, fmt.Errorf("%w: %d refusals with status %d", errIncident, r.Count, r.Status)
		}
	}
	for _, u := range i.Unreached {
		if err := validTexts(u.Namespace, u.Revision, u.Pod, u.By, u.Node); err != nil {
			return Incidents{}, err
		}
		if u.Ago < 0 || u.Ago > MaxUnreachedAgo {
			return Incidents{}, fmt.Errorf("%w: a pod was not reached %v ago", errIncident, u.Ago)
		}
	}
	for _, c := range i.Calls {
		if err := valid(c.At, c.Namespace, c.Revision, c.Pod, c.Method, c.Path, c.Trace, c.Call); err != nil {
			return Incidents{}, err
		}
		if y := c.Accepted.Year(); !c.Accepted.IsZero() && (y < 1970 || y > 9999) || c.Waited < 0 || c.Ran < 0 || c.Status < 0 || c.Status > 999 || c.Attempt < 0 {
			return Incidents{}, fmt.Errorf("%w: a call", errIncident)
		}
	}
	return i, nil
}

func valid(at time.Time, texts ...string) error {
	if y := at.Year(); y < 1970 || y > 9999 {
		return fmt.Errorf("%w: the year %d", errIncident, y)
	}
	return validTexts(texts...)
}

func validTexts(texts ...string) error {
	for _, text := range texts {
		if len(text) > maxIncidentText || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }) {
			return fmt.Errorf("%w: the text %.20q", errIncident, text)
		}
	}
	return nil
}
