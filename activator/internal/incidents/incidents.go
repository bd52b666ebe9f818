// Package incidents tells the autoscaler of cold starts and of requests that got no pod, for those
// who ask why, and of pods that did not answer.
//
// Owns: what was not told yet, at most wire.MaxIncidents of each kind. Reads: ended requests,
// closed accounts of cold starts and attempts to connect. Writes: a POST to the autoscaler each
// second in which there is something to tell, and sooner of a pod that did not answer. Never:
// delays a request; blocks on the autoscaler; keeps more than it may tell at once.
package incidents

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

const (
	period  = time.Second
	timeout = 2 * time.Second
	// soon is after what time a pod is told of that did not answer, with those that come until
	// then.
	soon = 100 * time.Millisecond
)

// Reporter tells the autoscaler of incidents. Fill the fields, then let Run run.
type Reporter struct {
	Pod  string // this activator's name
	Node string // where it runs, "" if it is not known
	URL  string
	// Keys are those of all tokens as they are now.
	Keys func() wire.Keys
	// Failed is called with the error of a POST that failed. What it had is told later.
	Failed func(error)

	// Dropped counts incidents for which there was no room.
	Dropped atomic.Int64

	signer     wire.Signer
	mutex      sync.Mutex
	coldStarts []wire.ColdStarted
	refusals   map[refusal]*wire.Refused
	// unreached is when the newest attempt began to connect to a pod that did not answer.
	unreached map[target]time.Time
	hurry     chan struct{}
	hurryOnce sync.Once
}

// target is a pod.
type target struct {
	key backends.Key
	pod string
}

// refusal is what equal refusals have in common.
type refusal struct {
	key    backends.Key
	status int
	reason string
}

// Register shows Dropped to Prometheus.
func (r *Reporter) Register(registry *prometheus.Registry) error {
	return registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "ebb_activator_incidents_dropped_total",
		Help: "Cold starts, refused requests and pods without an answer that the autoscaler was not told of, because there were too many in a second."},
		func() float64 { return float64(r.Dropped.Load()) }))
}

// ColdStart notes a cold start.
func (r *Reporter) ColdStart(c wire.ColdStarted) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if len(r.coldStarts) == wire.MaxIncidents {
		r.Dropped.Add(1)
		return
	}
	r.coldStarts = append(r.coldStarts, c)
}

// Unreached notes that nobody answered an attempt to connect to a pod, which began at a time. It is
// told soon: others decide by it whether the pod's node has died.
func (r *Reporter) Unreached(key backends.Key, pod string, began time.Time) {
	r.unreach(target{key, pod}, began)
	select {
	case r.hurried() <- struct{}{}:
	default:
	}
}

func (r *Reporter) unreach(what target, began time.Time) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	last, known := r.unreached[what]
	switch {
	case !known && len(r.unreached) == wire.MaxIncidents:
		r.Dropped.Add(1)
		return
	case r.unreached == nil:
		r.unreached = map[target]time.Time{}
	}
	if began.After(last) {
		r.unreached[what] = began
	}
}

func (r *Reporter) hurried() chan struct{} {
	r.hurryOnce.Do(func() { r.hurry = make(chan struct{}, 1) })
	return r.hurry
}

// Ended notes a request that Ebb answered in place of a pod. It implements chain.Handler.Ended.
func (r *Reporter) Ended(x *chain.Exchange, request *forward.Request, result *forward.Result) {
	if reason := reason(x, result); reason != "" {
		r.refuse(refusal{x.Revision.Key, result.Status, wire.Clip(reason)}, request.Started.Add(result.Duration), 1)
	}
}

// reason is "" for a request that was not refused.
func reason(x *chain.Exchange, result *forward.Result) string {
	switch {
	case result.Status == 0:
		return ""
	case result.Cause == forward.Replied:
		return x.Why
	case result.Cause == forward.TimedOut && result.Status == http.StatusGatewayTimeout && x.Pod == "":
		return "request timeout (" + result.Timer.String() + ") while it waited for a pod"
	case result.Cause == forward.TimedOut && result.Status == http.StatusGatewayTimeout:
		return "request timeout (" + result.Timer.String() + ") in pod " + x.Pod
	case result.Cause == forward.UpstreamFailed && result.Status == http.StatusBadGateway:
		return "pod " + x.Pod + ": " + forward.FailureText(result.Err)
	}
	return ""
}

func (r *Reporter) refuse(what refusal, at time.Time, count int64) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	one := r.refusals[what]
	if one == nil {
		if len(r.refusals) == wire.MaxIncidents {
			r.Dropped.Add(count)
			return
		}
		if r.refusals == nil {
			r.refusals = map[refusal]*wire.Refused{}
		}
		one = &wire.Refused{Namespace: what.key.Namespace, Revision: what.key.Name, By: r.Pod, Status: what.status, Reason: what.reason}
		r.refusals[what] = one
	}
	one.Count += count
	if at.After(one.At) {
		one.At = at
	}
}

func (r *Reporter) take(now time.Time) (all wire.Incidents) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for what, began := range r.unreached {
		if ago := max(now.Sub(began), 0); ago <= wire.MaxUnreachedAgo { // an older one proves nothing
			all.Unreached = append(all.Unreached, wire.Unreached{Namespace: what.key.Namespace, Revision: what.key.Name, Pod: what.pod,
				By: r.Pod, Node: r.Node, Ago: ago})
		}
	}
	r.unreached = nil
	all.ColdStarts, r.coldStarts = r.coldStarts, nil
	for _, one := range r.refusals {
		all.Refusals = append(all.Refusals, *one)
	}
	r.refusals = nil
	return all
}

// putBack keeps what could not be told, if there is room for it beside what came since. It was
// taken at a time.
func (r *Reporter) putBack(all wire.Incidents, taken time.Time) {
	for _, u := range all.Unreached {
		r.unreach(target{backends.Key{Namespace: u.Namespace, Name: u.Revision}, u.Pod}, taken.Add(-u.Ago))
	}
	for _, c := range all.ColdStarts {
		r.ColdStart(c)
	}
	for _, one := range all.Refusals {
		r.refuse(refusal{backends.Key{Namespace: one.Namespace, Name: one.Revision}, one.Status, one.Reason}, one.At, one.Count)
	}
}

// Run tells what there is, until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(period)
	defer tick.Stop()
	hurries := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-r.hurried():
			if !hurries { // those that follow do not put it off
				hurries = true
				tick.Reset(soon)
			}
			continue
		}
		if hurries {
			hurries = false
			tick.Reset(period)
		}
		now := time.Now()
		all := r.take(now)
		if len(all.ColdStarts)+len(all.Refusals)+len(all.Unreached) == 0 {
			continue
		}
		if err := r.post(ctx, client, all); err != nil && ctx.Err() == nil {
			r.putBack(all, now)
			r.Failed(err)
		}
	}
}

func (r *Reporter) post(ctx context.Context, client *http.Client, all wire.Incidents) error {
	body, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode incidents: %w", err)
	}
	// One that does not know the path is older than this activator.
	if status, err := r.signer.Post(ctx, client, r.URL, r.Keys().Token("", wire.ActivatorSubject), body); err != nil && status != http.StatusNotFound {
		return fmt.Errorf("tell %s of incidents: %w", r.URL, err)
	}
	return nil
}
