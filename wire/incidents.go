package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a POST to PathIncidents.
const (
	MaxIncidents      = 256 // of each kind
	MaxIncidentsBytes = 1 << 20
	// maxIncidentText bounds a text, in bytes. Names have their own bound, which is lower or equal.
	maxIncidentText = 253
	// maxPhases bounds the phases of a cold start.
	maxPhases = 8
)

// Incidents are what an activator tells the autoscaler besides load: cold starts that are over, and
// requests that got no pod.
type Incidents struct {
	ColdStarts []ColdStarted `json:"coldStarts,omitempty"`
	Refusals   []Refused     `json:"refusals,omitempty"`
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
	if len(i.ColdStarts) > MaxIncidents || len(i.Refusals) > MaxIncidents {
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
	return i, nil
}

func valid(at time.Time, texts ...string) error {
	if y := at.Year(); y < 1970 || y > 9999 {
		return fmt.Errorf("%w: the year %d", errIncident, y)
	}
	for _, text := range texts {
		if len(text) > maxIncidentText || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }) {
			return fmt.Errorf("%w: the text %.20q", errIncident, text)
		}
	}
	return nil
}
