// Package report tells the autoscaler the load that an activator sees of each revision.
//
// Owns: when a revision is reported: each period, and at once when its requests queue. Reads: the
// meters of the table. Writes: signed messages to the autoscaler. Never: holds a request up.
package report

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/internal/mailbox"
	"ebb.dev/ebb/wire"
)

const (
	// period is how often load is reported (contract section 6.5).
	period = time.Second
	// heartbeat is the number of periods between the reports of an idle activator. They keep the
	// connection open for the next cold start.
	heartbeat = 10
	// timeout bounds one POST. An urgent report that hangs delays a cold start.
	timeout = 2 * time.Second
	// retryFirst is the pause before a failed urgent report is sent again. It doubles up to
	// retryMax.
	retryFirst = 10 * time.Millisecond
	retryMax   = time.Second
	// urgentGap is the least time between two urgent reports. Revisions in between are sent
	// together.
	urgentGap = 5 * time.Millisecond
	// lookAgain is when a revision is checked again after an urgent report, for the rest of the
	// burst.
	lookAgain = 25 * time.Millisecond
	// batch bounds the messages of one POST.
	batch = wire.MaxStats
)

// Reporter posts to the autoscaler.
type Reporter struct {
	Pod string // this activator's name
	URL string
	// Keys are those of all tokens as they are now.
	Keys func() wire.Keys
	Log  *slog.Logger

	// Sent counts POSTs that the autoscaler accepted, Failed all others.
	Sent, Failed atomic.Int64
	reachable    atomic.Bool

	urgent *mailbox.Mailbox[map[backends.Key]struct{}]
	client *http.Client
	signer wire.Signer
	began  time.Time
}

// Start makes a Reporter ready; the fields must be set.
func (r *Reporter) Start() *Reporter {
	r.urgent = mailbox.New[map[backends.Key]struct{}]()
	r.client = &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     time.Minute,
	}}
	r.began = time.Now()
	return r
}

// Reachable returns whether the autoscaler accepted the last POST.
func (r *Reporter) Reachable() bool { return r.reachable.Load() }

// ReportNow reports a revision at once, because its requests queue or have increased a lot. It
// never blocks.
func (r *Reporter) ReportNow(key backends.Key) {
	r.urgent.Update(func(held map[backends.Key]struct{}, full bool) map[backends.Key]struct{} {
		if !full {
			held = map[backends.Key]struct{}{}
		}
		held[key] = struct{}{}
		return held
	})
}

// Run reports until ctx is done. Urgent and regular reports have one goroutine each, so a POST of
// one kind that hangs does not delay the other.
func (r *Reporter) Run(ctx context.Context, table *backends.Table) error {
	regular := make(chan struct{})
	go func() {
		defer close(regular)
		r.regularly(ctx, table)
	}()
	r.reportUrgent(ctx, table)
	<-regular
	r.client.CloseIdleConnections()
	return nil
}

func (r *Reporter) regularly(ctx context.Context, table *backends.Table) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for ticks := 1; ; ticks++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var messages []wire.StatMessage
		now := time.Now()
		table.Each(func(one *backends.Revision) {
			_, load := one.Used()
			if load == nil {
				return
			}
			if stat, ok := load.Meter.Take(now); ok {
				messages = append(messages, r.message(one, stat, now))
			}
		})
		if len(messages) == 0 && ticks%heartbeat != 0 {
			continue
		}
		for first := true; first || len(messages) > 0; first = false {
			n := min(len(messages), batch)
			if err := r.post(ctx, messages[:n]); err != nil && ctx.Err() == nil {
				r.Log.Warn("report to the autoscaler failed", "error", err, "revisions", n)
			}
			messages = messages[n:]
		}
	}
}

// reportUrgent reports the revisions of ReportNow. It retries until the autoscaler accepts the
// report or no request is queued.
func (r *Reporter) reportUrgent(ctx context.Context, table *backends.Table) {
	pause := time.NewTimer(0)
	<-pause.C
	wait := retryFirst
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.urgent.Ready():
		}
		keys, _ := r.urgent.Take()
		now := time.Now()
		var messages []wire.StatMessage
		for key := range keys {
			if one := table.Get(key); one != nil && len(messages) < batch {
				messages = append(messages, r.message(one, one.Load().Meter.Peek(), now))
			}
		}
		if len(messages) == 0 {
			continue
		}
		gap := urgentGap
		if err := r.post(ctx, messages); err != nil && ctx.Err() == nil {
			r.Log.Warn("urgent report to the autoscaler failed; retrying while requests are queued",
				"error", err, "revisions", len(messages))
			r.client.CloseIdleConnections() // the next attempt must not use the same dead connection
			for _, m := range messages {
				key := backends.Key{Namespace: m.Namespace, Name: m.Revision}
				if one := table.Get(key); one != nil && one.Queued() > 0 {
					r.ReportNow(key)
				}
			}
			gap, wait = wait, min(2*wait, retryMax)
		} else {
			wait = retryFirst
			time.AfterFunc(lookAgain, func() { r.again(table, messages) })
		}
		pause.Reset(gap)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// again reports those revisions whose load has increased since.
func (r *Reporter) again(table *backends.Table, reported []wire.StatMessage) {
	for _, m := range reported {
		key := backends.Key{Namespace: m.Namespace, Name: m.Revision}
		if one := table.Get(key); one != nil && one.Load().Meter.Rising() {
			r.ReportNow(key)
		}
	}
}

func (r *Reporter) message(one *backends.Revision, stat wire.Stat, now time.Time) wire.StatMessage {
	stat.PodName = r.Pod
	stat.ProcessUptime = now.Sub(r.began).Seconds()
	stat.Timestamp = now.UnixMilli()
	stat.Queued = float64(one.Queued())
	return wire.StatMessage{Namespace: one.Key.Namespace, Revision: one.Key.Name, Stat: stat}
}

func (r *Reporter) post(ctx context.Context, messages []wire.StatMessage) (err error) {
	defer func() {
		r.reachable.Store(err == nil)
		if err == nil {
			r.Sent.Add(1)
		} else {
			r.Failed.Add(1)
		}
	}()
	if _, err := r.signer.Post(ctx, r.client, r.URL, r.Keys().Token("", wire.ActivatorSubject), wire.EncodeStats(messages)); err != nil {
		return fmt.Errorf("report to %s: %w", r.URL, err)
	}
	return nil
}
