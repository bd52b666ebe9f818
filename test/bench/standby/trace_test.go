package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

// at is a time of the test, in milliseconds.
func at(ms int) string {
	return time.UnixMilli(1_800_000_000_000 + int64(ms)).UTC().Format(time.RFC3339Nano)
}

func moment(t *testing.T, ms int) time.Time {
	parsed, err := time.Parse(time.RFC3339Nano, at(ms))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestWhereTheTimeOfAWakeWasSpent(t *testing.T) {
	var proxy, agent strings.Builder
	changed := func(ms int, from, to string) {
		fmt.Fprintf(&proxy, `{"time":%q,"level":"DEBUG","msg":"sleep","component":"queue-proxy","revision":"ns/a-00001","pod":"a","from":%q,"to":%q,"because":"request"}`+"\n", at(ms), from, to)
	}
	worked := func(pod, kind string, asked, began, ended int) {
		fmt.Fprintf(&agent, `{"timestamp":%q,"severity":"DEBUG","message":"worked","component":"node-agent","pod":%q,"work":%q,"asked":%q,"began":%q}`+"\n",
			at(ended), pod, kind, at(asked), at(began))
	}
	changed(-500, "asleep", "thawing") // an earlier wake
	changed(-490, "thawing", "awake")
	worked("ns/a", "thaw", -499, -499, -498)
	proxy.WriteString("no JSON\n")
	changed(2, "asleep", "thawing")
	changed(20, "thawing", "awake")
	worked("ns/b", "compress", -100, -50, 8)
	worked("ns/c", "freeze", 1, 3, 4)
	worked("ns/c", "freeze", 60, 60, 70) // after the answer
	worked("ns/a", "thaw", 5, 9, 12)

	w := slowWake{"a", moment(t, 0), moment(t, 23)}
	got := w.pieces("ns", lines[change]([]byte(proxy.String()), `"sleep"`), lines[work]([]byte(agent.String()), `"worked"`))
	want := result.Fields{"pod": "a", "wake_ms": 23.0, "before_ms": 2.0, "to_agent_ms": 3.0, "queue_ms": 4.0, "thaw_ms": 3.0, "from_agent_ms": 8.0, "after_ms": 3.0,
		"compress_beside_ms": 8.0, "freeze_beside_ms": 1.0, "thaw_beside_ms": 0.0}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := w.pieces("ns", nil, lines[work]([]byte(agent.String()), `"worked"`)); got["incomplete"] != true || got["compress_beside_ms"] != 8.0 {
		t.Errorf("without the pod's log: %v", got)
	}
}
