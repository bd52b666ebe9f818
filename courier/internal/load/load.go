// Package load tells the autoscaler how many calls wait, as an activator tells how many requests
// do. Calls under way are counted by the activators and pods that have them.
//
// Owns: nothing. Reads: the queues, the Routes. Writes: POSTs to the autoscaler. Never: counts a
// call that is under way.
package load

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/deliver"
	"ebb.dev/ebb/courier/internal/routes"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/wire"
)

const (
	period  = time.Second
	timeout = 2 * time.Second
)

// Reporter posts to the autoscaler.
type Reporter struct {
	Pod   string
	URL   string
	Token func() string // "" while there is none
	Loads func() []deliver.Load
	Find  func(call.Service) *routes.Route
	Log   *slog.Logger

	// Sent counts reports that were accepted, Failed the others.
	Sent, Failed atomic.Int64
	signer       wire.Signer
	client       *http.Client
}

// Run reports each second until ctx is done. The last report of a revision is a zero.
func (r *Reporter) Run(ctx context.Context) error {
	r.client = &http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, IdleConnTimeout: time.Minute}}
	defer r.client.CloseIdleConnections()
	began, before := time.Now(), map[revision]bool{}
	return run.Every(ctx, period, func(now time.Time) error {
		waiting := Waiting(r.Loads(), r.Find)
		var messages []wire.StatMessage
		add := func(of revision, n float64) {
			messages = append(messages, wire.StatMessage{Namespace: of.namespace, Revision: of.name, Stat: wire.Stat{PodName: r.Pod,
				AverageConcurrent: n, Queued: n, ProcessUptime: now.Sub(began).Seconds(), Timestamp: now.UnixMilli()}})
		}
		for of, n := range waiting {
			add(of, n)
		}
		for of := range before {
			if waiting[of] == 0 {
				add(of, 0)
			}
		}
		clear(before)
		for of := range waiting {
			before[of] = true
		}
		for len(messages) > 0 {
			n := min(len(messages), wire.MaxStats)
			if err := r.post(ctx, messages[:n]); err == nil {
				r.Sent.Add(1)
			} else if ctx.Err() == nil {
				r.Failed.Add(1)
				r.Log.Warn("report to the autoscaler failed", "error", err, "revisions", n)
			}
			messages = messages[n:]
		}
		return nil
	})
}

type revision struct{ namespace, name string }

// Waiting divides the calls that wait among the revisions that will get them.
func Waiting(loads []deliver.Load, find func(call.Service) *routes.Route) map[revision]float64 {
	waiting := map[revision]float64{}
	for _, l := range loads {
		route := find(l.Service)
		if l.Waiting == 0 || route == nil {
			continue
		}
		for _, share := range route.Shares {
			waiting[revision{l.Service.Namespace, share.Revision}] += float64(l.Waiting) * float64(share.Percent) / 100
		}
	}
	return waiting
}

func (r *Reporter) post(ctx context.Context, messages []wire.StatMessage) error {
	token := r.Token()
	if token == "" {
		return errors.New("the controller has not filled the Secret " + wire.CourierSecret + " yet: it has to be there, and the controller of this version")
	}
	if _, err := r.signer.Post(ctx, r.client, r.URL, token, wire.EncodeStats(messages)); err != nil {
		return fmt.Errorf("report to %s: %w", r.URL, err)
	}
	return nil
}
