package report

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/internal/mailbox"
	"ebb.dev/ebb/wire"
)

const (
	// period is how often load is reported (contract section 6.5).
	period = time.Second
	// heartbeat is how often an idle activator says so, which keeps the connection warm for the next cold start.
	heartbeat = 10
	// timeout bounds one POST; a poke that hangs is a cold start that hangs.
	timeout = 2 * time.Second
	// retryFirst is the pause before a poke that failed is sent again; it doubles up to retryMost.
	retryFirst = 10 * time.Millisecond
	retryMost  = time.Second
	// pokeGap bounds how often pokes are sent; what comes in between leaves together.
	pokeGap = 5 * time.Millisecond
	// lookAgain is when a revision that was reported out of turn is looked at once more, for the rest of the burst.
	lookAgain = 25 * time.Millisecond
	// batch bounds the messages of one POST.
	batch = wire.MaxStats
)

// Load is what a Reporter reads of a revision.
type Load struct {
	Key    backends.Key
	Meter  *Meter
	Queued func() int64
}

// Reporter posts to the autoscaler.
type Reporter struct {
	Pod string // this activator's name
	URL string
	Key func() []byte // of tokens
	// Each calls visit with every revision's load.
	Each func(visit func(Load))
	// Find returns one revision's load.
	Find func(backends.Key) (Load, bool)
	Log  *slog.Logger

	// Sent counts POSTs that were taken, Failed those that were not.
	Sent, Failed atomic.Int64
	reachable    atomic.Bool

	pokes  *mailbox.Mailbox[map[backends.Key]struct{}]
	client *http.Client
	began  time.Time
}

// Start makes a Reporter ready; the fields must be set.
func (r *Reporter) Start() *Reporter {
	r.pokes = mailbox.New[map[backends.Key]struct{}]()
	r.client = &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     time.Minute,
	}}
	r.began = time.Now()
	return r
}

// Reachable says whether the last POST was taken.
func (r *Reporter) Reachable() bool { return r.reachable.Load() }

// Poke has a revision reported at once, because requests of it wait or are many more than they were. It never blocks.
func (r *Reporter) Poke(key backends.Key) {
	r.pokes.Update(func(held map[backends.Key]struct{}, full bool) map[backends.Key]struct{} {
		if !full {
			held = map[backends.Key]struct{}{}
		}
		held[key] = struct{}{}
		return held
	})
}

// Run reports until ctx is done. Pokes and regular reports have a goroutine each, so that a hanging
// POST of the one does not delay the other.
func (r *Reporter) Run(ctx context.Context) error {
	regular := make(chan struct{})
	go func() {
		defer close(regular)
		r.regularly(ctx)
	}()
	r.poke(ctx)
	<-regular
	r.client.CloseIdleConnections()
	return nil
}

func (r *Reporter) regularly(ctx context.Context) {
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
		r.Each(func(l Load) {
			if stat, ok := l.Meter.Take(now); ok {
				messages = append(messages, r.message(l, stat, now))
			}
		})
		if len(messages) == 0 && ticks%heartbeat != 0 {
			continue
		}
		for first := true; first || len(messages) > 0; first = false {
			n := min(len(messages), batch)
			if err := r.post(ctx, messages[:n]); err != nil && ctx.Err() == nil {
				r.Log.Warn("the autoscaler did not take a report", "error", err, "revisions", n)
			}
			messages = messages[n:]
		}
	}
}

// poke sends what Poke was called with and repeats it until it is taken or nothing waits any more.
func (r *Reporter) poke(ctx context.Context) {
	pause := time.NewTimer(0)
	<-pause.C
	wait := retryFirst
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.pokes.Ready():
		}
		keys, _ := r.pokes.Take()
		now := time.Now()
		var messages []wire.StatMessage
		for key := range keys {
			if l, ok := r.Find(key); ok && len(messages) < batch {
				messages = append(messages, r.message(l, l.Meter.Peek(), now))
			}
		}
		if len(messages) == 0 {
			continue
		}
		gap := pokeGap
		if err := r.post(ctx, messages); err != nil && ctx.Err() == nil {
			r.Log.Warn("the autoscaler did not take word of waiting or growing requests; trying again while any wait", "error", err, "revisions", len(messages))
			r.client.CloseIdleConnections() // the next attempt must not meet the same dead peer
			for _, m := range messages {
				key := backends.Key{Namespace: m.Namespace, Name: m.Revision}
				if l, ok := r.Find(key); ok && l.Queued() > 0 {
					r.Poke(key)
				}
			}
			gap, wait = wait, min(2*wait, retryMost)
		} else {
			wait = retryFirst
			time.AfterFunc(lookAgain, func() { r.again(messages) })
		}
		pause.Reset(gap)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// again pokes those of the reported revisions whose load has risen since.
func (r *Reporter) again(reported []wire.StatMessage) {
	for _, m := range reported {
		key := backends.Key{Namespace: m.Namespace, Name: m.Revision}
		if l, ok := r.Find(key); ok && l.Meter.Rising() {
			r.Poke(key)
		}
	}
}

func (r *Reporter) message(l Load, stat wire.Stat, now time.Time) wire.StatMessage {
	stat.PodName = r.Pod
	stat.ProcessUptime = now.Sub(r.began).Seconds()
	stat.Timestamp = now.UnixMilli()
	stat.Queued = float64(l.Queued())
	return wire.StatMessage{Namespace: l.Key.Namespace, Revision: l.Key.Name, Stat: stat}
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
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL, bytes.NewReader(wire.EncodeStats(messages)))
	if err != nil {
		return fmt.Errorf("report to %s: %w", r.URL, err)
	}
	request.Header.Set("Authorization", wire.Bearer(wire.Token(r.Key(), "", wire.ActivatorSubject)))
	response, err := r.client.Do(request)
	if err != nil {
		return fmt.Errorf("report to %s: %w", r.URL, err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("report to %s: it answered %s: %s", r.URL, response.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
