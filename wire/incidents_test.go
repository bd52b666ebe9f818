package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTheLargestIncidentsFitTheirBound(t *testing.T) {
	long := Clip(strings.Repeat("ü<", 500)) // two bytes, and one that JSON writes as six
	at := time.Unix(1e9, 123456789)
	var all Incidents
	for range MaxIncidents {
		c := ColdStarted{Namespace: strings.Repeat("n", 63), Revision: strings.Repeat("r", 63), At: at, Pod: strings.Repeat("p", 253), Trace: strings.Repeat("a", 32)}
		for range maxPhases {
			c.Phases = append(c.Phases, Phase{"schedule", time.Hour})
		}
		all.ColdStarts = append(all.ColdStarts, c)
		all.Refusals = append(all.Refusals, Refused{Namespace: c.Namespace, Revision: c.Revision, At: at, By: c.Pod, Status: 503, Reason: long, Count: 1e9})
		all.Unreached = append(all.Unreached, Unreached{Namespace: c.Namespace, Revision: c.Revision, Pod: c.Pod, By: c.Pod, Node: c.Pod, Ago: MaxUnreachedAgo})
	}
	text, err := json.Marshal(all)
	if err != nil || len(text) > MaxIncidentsBytes {
		t.Fatalf("%d bytes, more than %d: %v", len(text), MaxIncidentsBytes, err)
	}
	if back, err := DecodeIncidents(text); err != nil || len(back.ColdStarts) != MaxIncidents || back.Refusals[7].Reason != long || back.Unreached[7].Ago != MaxUnreachedAgo {
		t.Errorf("%v", err)
	}
}

func TestTheLargestRecordsOfAPodFitTheirBound(t *testing.T) {
	long := Clip(strings.Repeat("<", 500))
	at := time.Unix(1e9, 123456789)
	var all Incidents
	for range MaxCalls {
		all.Calls = append(all.Calls, Called{Namespace: strings.Repeat("n", 63), Revision: strings.Repeat("r", 63), Pod: strings.Repeat("p", 253), At: at, Accepted: at,
			Waited: time.Hour, Ran: time.Hour, Method: Clip(strings.Repeat("M", 500)), Path: long, Status: 200, Trace: strings.Repeat("a", 32), Call: strings.Repeat("c", 27), Attempt: 1e6})
	}
	text, err := json.Marshal(all)
	if err != nil || len(text) > MaxCallsBytes {
		t.Fatalf("%d bytes, more than %d: %v", len(text), MaxCallsBytes, err)
	}
	if back, err := DecodeIncidents(text); err != nil || len(back.Calls) != MaxCalls || back.Calls[7].Path != long {
		t.Errorf("%v", err)
	}
}

func TestIncidentsThatCannotBeAreRefused(t *testing.T) {
	const at = `"at":"2026-01-01T00:00:00Z"`
	for name, text := range map[string]string{
		"no JSON":            "x",
		"too many":           `{"refusals":[` + strings.Repeat(`{`+at+`,"count":1},`, MaxIncidents) + `{` + at + `,"count":1}]}`,
		"no time":            `{"refusals":[{"count":1,"at":"0001-01-01T00:00:00Z"}]}`,
		"none":               `{"refusals":[{"count":0,` + at + `}]}`,
		"a status":           `{"refusals":[{"count":1,"status":1000,` + at + `}]}`,
		"a long text":        `{"refusals":[{"count":1,"reason":"` + strings.Repeat("x", 300) + `",` + at + `}]}`,
		"a control":          `{"refusals":[{"count":1,"reason":"\u001b[2J",` + at + `}]}`,
		"a negative run":     `{"calls":[{"ran":-1,` + at + `}]}`,
		"a call of no time":  `{"calls":[{"ran":1}]}`,
		"a control in path":  `{"calls":[{"path":"/\u001b",` + at + `}]}`,
		"too many pods":      `{"unreached":[` + strings.Repeat(`{},`, MaxIncidents) + `{}]}`,
		"a pod tomorrow":     `{"unreached":[{"ago":-1}]}`,
		"a pod long ago":     `{"unreached":[{"ago":10000000001}]}`,
		"a control in node":  `{"unreached":[{"node":"\u001b"}]}`,
		"a long pod":         `{"unreached":[{"pod":"` + strings.Repeat("x", 254) + `"}]}`,
		"a negative phase":   `{"coldStarts":[{` + at + `,"phases":[{"name":"pull","took":-1}]}]}`,
		"more phases than a": `{"coldStarts":[{` + at + `,"phases":[` + strings.Repeat(`{"name":"x","took":1},`, maxPhases) + `{"name":"x","took":1}]}]}`,
	} {
		if i, err := DecodeIncidents([]byte(text)); err == nil {
			t.Errorf("%s: got %+v", name, i)
		}
	}
}

func FuzzDecodeIncidents(f *testing.F) {
	f.Add([]byte(`{"coldStarts":[{"at":"2026-01-01T00:00:00Z","phases":[{"name":"pull","took":5}]}],"refusals":[{"count":1,"at":"2026-01-01T00:00:00Z"}],"unreached":[{"pod":"a","node":"b","ago":5}],"calls":[{"at":"2026-01-01T00:00:00Z","accepted":"2026-01-01T00:00:00Z","path":"/a","ran":5}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		i, err := DecodeIncidents(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(i)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := DecodeIncidents(text); err != nil || fmt.Sprint(again) != fmt.Sprint(i) {
			t.Fatalf("%+v became %+v: %v", i, again, err)
		}
	})
}
