package main

import (
	"context"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestAClientThatComesBackGoesOnAfterItsLastEvent(t *testing.T) {
	for name, c := range map[string]struct {
		query, last string
		status      int
		body        string
	}{
		"a new client":       {"?to=2", "", 200, "retry: 1000\n\nid: 1\ndata: 1\n\nid: 2\ndata: 2\n\n"},
		"one that came back": {"?to=3", "2", 200, "retry: 1000\n\nid: 3\ndata: 3\n\n"},
		"one that has all":   {"?to=3", "3", 204, ""},
		"one that has more":  {"?to=3", "4", 204, ""},
		"no number":          {"?to=3", "x", 400, "Last-Event-ID is not a number of 0 or more\n"},
		"a number below 0":   {"?to=-1", "", 400, "to is not a number of 0 or more\n"},
		"a number too large": {"?to=9223372036854775808", "", 400, "to is not a number of 0 or more\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reply, request := httptest.NewRecorder(), httptest.NewRequest("GET", "/events"+c.query, nil)
				if c.last != "" {
					request.Header.Set("Last-Event-ID", c.last)
				}
				count(t.Context(), time.Minute)(reply, request)
				if reply.Code != c.status || reply.Body.String() != c.body {
					t.Errorf("got %d %q, want %d %q", reply.Code, reply.Body, c.status, c.body)
				}
			})
		})
	}
}

func TestAStreamEndsWhenTheClientLeavesOrThePodStops(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			client, leave := context.WithCancel(t.Context())
			program, stop := context.WithCancel(t.Context())
			defer leave()
			defer stop()
			ended := false
			go func() {
				count(program, time.Second)(httptest.NewRecorder(), httptest.NewRequest("GET", "/events", nil).WithContext(client))
				ended = true
			}()
			time.Sleep(time.Minute)
			if ended {
				t.Error("a stream without an end has ended")
			}
			if leaves {
				leave()
			} else {
				stop()
			}
			if synctest.Wait(); !ended {
				t.Errorf("the stream goes on; the client has left: %v", leaves)
			}
		})
	}
}
