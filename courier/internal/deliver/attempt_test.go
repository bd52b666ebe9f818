package deliver

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"ebb.dev/ebb/courier/internal/call"
)

func TestWhatFollowsFromAnAttempt(t *testing.T) {
	accepted := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rules := Rules{Attempts: 3, Backoff: call.Backoff{First: 2 * time.Second, Max: time.Minute}, Queue: time.Hour}
	says := func(status int, fields ...string) *answer {
		a := &answer{status: status, header: http.Header{}}
		for i := 0; i < len(fields); i += 2 {
			a.header.Set(fields[i], fields[i+1])
		}
		return a
	}
	for name, test := range map[string]struct {
		got              *answer
		err              error
		attempt, counted int
		after            time.Duration
		want             next
	}{
		"an answer is a result":            {got: says(200), attempt: 1, counted: 1},
		"so is an error of the call":       {got: says(404), attempt: 3, counted: 3},
		"a busy service is asked again":    {got: says(503), attempt: 1, counted: 1, want: next{again: true, pause: time.Second}},
		"when it wants":                    {got: says(503, "Retry-After", "30"), attempt: 1, counted: 1, want: next{again: true, pause: 30 * time.Second}},
		"the pause grows":                  {err: errors.New("it is gone"), attempt: 2, counted: 2, want: next{again: true, pause: 2 * time.Second}},
		"the last attempt":                 {err: errors.New("it is gone"), attempt: 3, counted: 3, want: next{dead: "after 3 attempts it is gone"}},
		"one that the courier's end cut":   {got: says(503), attempt: 3, counted: 2, want: next{again: true, pause: 4 * time.Second}},
		"no time is left":                  {got: says(503), attempt: 1, counted: 1, after: time.Hour, want: next{dead: "after 1 attempts the service answered 503"}},
		"nor for what the service asks":    {got: says(503, "Retry-After", "60"), attempt: 1, counted: 1, after: time.Hour - 30*time.Second, want: next{dead: "after 1 attempts the service answered 503"}},
		"a result may come after all time": {got: says(200), attempt: 3, counted: 3, after: 2 * time.Hour},
	} {
		c := &call.Call{Accepted: accepted}
		if got := after(c, test.got, test.err, test.attempt, test.counted, accepted.Add(test.after), rules, 0); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}
