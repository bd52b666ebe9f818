package ingest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/wire"
)

// counted is a body that counts what is read of it.
type counted struct {
	io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// The body that ended the autoscaler: 4 MiB of messages of two bytes, each of which became a
// struct.
func TestABodyOfTinyStatsTakesNoMemory(t *testing.T) {
	tiny := bytes.Repeat([]byte{0x0a, 0}, 2<<20)
	for _, c := range []struct {
		who, token string
		length     int64 // -1: in chunks
		most       int64
	}{
		{"nobody", "", int64(len(tiny)), 0},
		{"a made-up token", "made-up", int64(len(tiny)), 0},
		{"a made-up token, in chunks", "made-up", -1, 2 * wire.MaxPodStatsBytes},
		{"a pod", wire.Token(tokenKey, "default", "hello-00001"), -1, 2 * wire.MaxPodStatsBytes},
		{"an activator's token", wire.Token(tokenKey, "", wire.ActivatorSubject), -1, 2 * wire.MaxStatsBytes},
	} {
		t.Run(c.who, func(t *testing.T) {
			s := &Server{Keys: keys, Reporter: &inbox{}, Clock: time.Now}
			body := &counted{Reader: bytes.NewReader(tiny)}
			request := httptest.NewRequest(http.MethodPost, wire.PathStats, body)
			request.ContentLength = c.length
			request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tiny)), nil }
			if c.token != "" {
				if err := new(wire.Signer).Sign(request, c.token); err != nil {
					t.Fatal(err)
				}
			}
			answer := httptest.NewRecorder()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s.ServeHTTP(answer, request)
			runtime.ReadMemStats(&after)
			if answer.Code != http.StatusUnauthorized && answer.Code != http.StatusRequestEntityTooLarge {
				t.Errorf("status %d", answer.Code)
			}
			if body.n > c.most {
				t.Errorf("%d bytes of the body were read, at most %d may be", body.n, c.most)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
				t.Errorf("it took %d KiB to refuse the body", took>>10)
			}
			if answer.Header().Get("Connection") != "close" {
				t.Error("the connection is kept, so the rest of the body is read")
			}
		})
	}
}

// What a neighbour has recorded of an activator's report is refused, with its body or another one.
func TestARecordedReportIsRefused(t *testing.T) {
	in := &inbox{}
	s := &Server{Keys: keys, Reporter: in, Clock: time.Now}
	body := wire.EncodeStats([]wire.StatMessage{message("hello-00001", wire.Stat{PodName: "p", AverageConcurrent: 1})})
	for _, token := range []string{wire.Token(tokenKey, "", wire.ActivatorSubject), wire.Token(tokenKey, "default", "hello-00001")} {
		in.samples = nil
		var recorded string
		record := func(r *http.Request) { recorded = r.Header.Get("Authorization") }
		repeat := func(r *http.Request) { r.Header.Set("Authorization", recorded) }
		before := s.Guard.Replayed.Load()
		if status := post(s, token, body, record); status != http.StatusNoContent || len(in.samples) != 1 {
			t.Errorf("the report itself: %d, %d samples", status, len(in.samples))
		}
		if status := post(s, token, body, repeat); status != http.StatusUnauthorized || s.Guard.Replayed.Load() != before+1 {
			t.Errorf("again: %d, %d counted", status, s.Guard.Replayed.Load()-before)
		}
		other := wire.EncodeStats([]wire.StatMessage{message("hello-00001", wire.Stat{PodName: "p", AverageConcurrent: 1e6})})
		if status := post(s, token, other, repeat); status != http.StatusUnauthorized {
			t.Errorf("with another body: %d", status)
		}
		if len(in.samples) != 1 {
			t.Errorf("%d samples", len(in.samples))
		}
	}
}

// A full batch of an activator with the longest names that there are must fit.
func TestTheLargestBatchOfAnActivatorIsTaken(t *testing.T) {
	name := strings.Repeat("n", 63)
	one := message(name, wire.Stat{PodName: name, AverageConcurrent: 1, AverageProxiedConcurrent: 1, Requests: 1, ProxiedRequests: 1,
		ProcessUptime: 1, Timestamp: time.Now().UnixMilli(), Queued: 1, Completed: 1, BusySeconds: 1, OutOfTurn: true})
	one.Namespace = name
	all := make([]wire.StatMessage, wire.MaxStats)
	for i := range all {
		all[i] = one
	}
	in := &inbox{}
	s := &Server{Keys: keys, Reporter: in, Clock: time.Now}
	if got := post(s, wire.Token(tokenKey, "", wire.ActivatorSubject), wire.EncodeStats(all), nil); got != http.StatusNoContent || len(in.samples) != len(all) {
		t.Errorf("status %d, %d samples", got, len(in.samples))
	}
	if pod := wire.EncodeStats(all[:1]); len(pod) > wire.MaxPodStatsBytes {
		t.Errorf("a pod's own report has %d bytes", len(pod))
	}
}
