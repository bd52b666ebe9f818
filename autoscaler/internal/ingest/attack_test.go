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
			s := &Server{Key: func() []byte { return tokenKey }, Reporter: &inbox{}, Clock: time.Now}
			body := &counted{Reader: bytes.NewReader(tiny)}
			request := httptest.NewRequest(http.MethodPost, wire.PathStats, body)
			request.ContentLength = c.length
			if c.token != "" {
				request.Header.Set("Authorization", wire.Bearer(c.token))
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
	s := &Server{Key: func() []byte { return tokenKey }, Reporter: in, Clock: time.Now}
	if got := post(s, wire.Token(tokenKey, "", wire.ActivatorSubject), wire.EncodeStats(all), nil); got != http.StatusNoContent || len(in.samples) != len(all) {
		t.Errorf("status %d, %d samples", got, len(in.samples))
	}
	if pod := wire.EncodeStats(all[:1]); len(pod) > wire.MaxPodStatsBytes {
		t.Errorf("a pod's own report has %d bytes", len(pod))
	}
}
