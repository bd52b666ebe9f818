package loop

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

// A process that gets no processor, or whose machine is moved, does not see the time pass: at once
// it is later, and nobody was heard meanwhile. The load was there all the time.
func TestAProcessThatStoodStillLowersNothing(t *testing.T) {
	for _, window := range []time.Duration{6 * time.Second, time.Minute} {
		for _, gap := range []time.Duration{3 * time.Second, 20 * time.Second, 70 * time.Second, 10 * time.Minute, 24 * time.Hour} {
			for name, scraped := range map[string]bool{"pods are asked": true, "activators tell": false} {
				t.Run(fmt.Sprintf("%s in a window of %s while %s", gap, window, name), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := spec()
						s.Scraped = scraped
						s.Formula.StableWindow, s.PanicWindow = window, decide.PanicWindow(window, 10)
						s.Found = &revision.State{Desired: 8, Zero: zero.State{Active: zero.Yes, Initialized: true}}
						load := decide.Report{Concurrency: 50, RequestsPerSecond: 50}
						w := &world{specs: map[Key]*Spec{hello: s}, counts: map[Key]revision.Counts{hello: {Ready: 8}}, answer: zero.ProbedActivator, scrape: func() revision.Scrape {
							if scraped {
								return revision.Scrape{Report: load}
							}
							return revision.Scrape{}
						}}
						var later atomic.Int64
						clock := func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
						w.engine = New(Options{Shards: 1, Source: w, Pods: w, Actor: w, Scraper: w, Prober: w, Clock: clock, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
						ctx, cancel := context.WithCancel(t.Context())
						done := make(chan struct{})
						go func() { w.engine.Run(ctx); close(done) }()
						defer func() { cancel(); <-done }()
						w.engine.Changed(hello)
						run := func(seconds int) {
							t.Helper()
							for range seconds {
								time.Sleep(time.Second)
								if !scraped {
									w.engine.Report([]Sample{{Key: hello, Arrived: clock(), Sample: revision.Sample{Reporter: "activator-1", Report: load, Timestamp: clock().UnixMilli()}}})
								}
								synctest.Wait()
								for _, n := range w.written() {
									if n < 8 {
										t.Fatalf("%v pods asked for, for a load of 8: %s", w.written(), w.lastOrder().Reason())
									}
								}
							}
						}
						run(151)
						time.Sleep(500 * time.Millisecond) // the next tick comes before the next word of anybody
						later.Store(int64(gap))
						run(150)
					})
				})
			}
		}
	}
}
