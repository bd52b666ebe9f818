// Package records tells the autoscaler of the requests that the pod answered, for those who read
// the API view.ebb.dev.
//
// Owns: the newest requests that were not told yet, at most wire.MaxCalls. Reads: exchanges that
// are over. Writes: a POST to the autoscaler each second in which there is something to tell.
// Never: delays a request; blocks on the autoscaler; keeps a query or a header's value but the ID
// of a call.
package records

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/queue-proxy/internal/chain"
	"ebb.dev/ebb/wire"
)

const (
	period  = time.Second
	timeout = 2 * time.Second
)

// Recorder is an Observer of requests. Fill the fields, then let Run run.
type Recorder struct {
	// All keeps all requests, not only asynchronous ones and those that ask for it.
	All                      bool
	Namespace, Revision, Pod string
	Autoscaler               string // host:port
	Token                    func() string
	Failed                   func(error)

	signer wire.Signer
	mutex  sync.Mutex
	newest []wire.Called
}

// Observe implements chain.Observer.
func (k *Recorder) Observe(r *forward.Request, res *forward.Result, e chain.Ended) {
	id := r.Header(wire.HeaderCallID)
	if e.Probe || id == "" && !k.All && !r.HasHeader(wire.HeaderRecord) {
		return
	}
	one := wire.Called{Namespace: k.Namespace, Revision: k.Revision, Pod: k.Pod, At: r.Started, Waited: res.Duration,
		Method: plain(r.Method()), Path: plain(r.Path()), Status: res.Status, Trace: plain(cmp.Or(e.Trace, traceOf(r.Header("Traceparent")))), Call: plain(id)}
	if !e.Sent.IsZero() {
		one.Waited = max(e.Sent.Sub(r.Started), 0)
		one.Ran = max(res.Duration-one.Waited, 0)
	}
	if id != "" {
		one.Attempt, _ = strconv.Atoi(r.Header(wire.HeaderAttempt))
		one.Attempt = max(one.Attempt, 0)
		if at, err := time.Parse(time.RFC3339Nano, r.Header(wire.HeaderAccepted)); err == nil && at.Year() >= 1970 && at.Before(r.Started) {
			one.Accepted = at
		}
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if len(k.newest) == wire.MaxCalls {
		k.newest = slices.Delete(k.newest, 0, 1)
	}
	k.newest = append(k.newest, one)
}

// traceOf returns the trace id of a Traceparent (W3C Trace Context), "" if it is none.
func traceOf(parent string) string {
	parts := strings.Split(parent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 {
		return ""
	}
	return parts[1]
}

// plain copies what the receiver accepts of a text that a client sent.
func plain(text string) string {
	return wire.Clip(strings.Map(func(r rune) rune {
		if r < ' ' {
			return -1
		}
		return r
	}, strings.Clone(text)))
}

func (k *Recorder) take() []wire.Called {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	all := k.newest
	k.newest = nil
	return all
}

// Run tells what there is, until ctx ends, and once more then. What could not be told is told again
// with the next, once: the newest matter.
func (k *Recorder) Run(ctx context.Context) {
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second}}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(period)
	defer tick.Stop()
	var again []wire.Called
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		fresh := k.take()
		all := append(again, fresh...)
		all, again = all[max(0, len(all)-wire.MaxCalls):], nil
		if len(all) == 0 {
			continue
		}
		if err := k.post(context.WithoutCancel(ctx), client, all); err != nil {
			k.Failed(err)
			again = fresh
		}
	}
}

func (k *Recorder) post(ctx context.Context, client *http.Client, all []wire.Called) error {
	body, err := json.Marshal(wire.Incidents{Calls: all})
	if err != nil {
		return fmt.Errorf("encode the records of requests: %w", err)
	}
	to := url.URL{Scheme: "http", Host: k.Autoscaler, Path: wire.PathIncidents, RawQuery: wire.QueryOf(k.Namespace, k.Revision)}
	if _, err := k.signer.Post(ctx, client, to.String(), k.Token(), body); err != nil {
		return fmt.Errorf("tell the autoscaler of requests: %w", err)
	}
	return nil
}
