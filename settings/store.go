package settings

import (
	"context"
	"log/slog"
	"sync/atomic"

	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/internal/otlp"
)

// Store holds the current Snapshot. One writer (Watch, or a test), any number of readers; reading
// takes no lock.
type Store struct {
	current atomic.Pointer[generation]
}

type generation struct {
	snapshot *Snapshot
	replaced chan struct{}
}

// NewStore starts with s, or with Default when s is nil.
func NewStore(s *Snapshot) *Store {
	if s == nil {
		s = Default()
	}
	store := &Store{}
	store.current.Store(&generation{snapshot: s, replaced: make(chan struct{})})
	return store
}

// Load returns the current Snapshot, never nil.
func (s *Store) Load() *Snapshot { return s.current.Load().snapshot }

// Current returns the Snapshot and a channel that is closed once a newer one exists.
func (s *Store) Current() (snapshot *Snapshot, replaced <-chan struct{}) {
	g := s.current.Load()
	return g.snapshot, g.replaced
}

// Set publishes a newer Snapshot and wakes everyone who waits on the older one.
func (s *Store) Set(snapshot *Snapshot) {
	old := s.current.Swap(&generation{snapshot: snapshot, replaced: make(chan struct{})})
	close(old.replaced)
}

// MetricsExport is where the components' metrics go, and a channel that is closed once that may
// have changed.
func (s *Store) MetricsExport() (to otlp.Export, replaced <-chan struct{}) {
	snapshot, replaced := s.Current()
	to = snapshot.Observability.Metrics
	to.Runtime = snapshot.Observability.RuntimeExportInterval
	return to, replaced
}

// Leases returns what config-leader-election says for a component now, and a channel that is closed
// once that may have changed. The prefix is the one to use unless the ConfigMap has another.
func (s *Store) Leases(component, prefix string) lease.Source {
	return func() (lease.Scheme, <-chan struct{}) {
		snapshot, replaced := s.Current()
		l := snapshot.LeaderElection
		leases := lease.Scheme{Prefix: prefix, Buckets: l.Buckets, LeaseDuration: l.LeaseDuration, RenewDeadline: l.RenewDeadline, RetryPeriod: l.RetryPeriod}
		if given := l.LeasePrefixes[component]; given != "" {
			leases.Prefix = given + "."
		}
		return leases, replaced
	}
}

// FollowLevel returns a function that keeps level at what config-logging says for a component,
// until its context ends.
func (s *Store) FollowLevel(component string, level *slog.LevelVar) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			snapshot, replaced := s.Current()
			level.Set(snapshot.Logging.LevelOf(component))
			select {
			case <-ctx.Done():
				return nil
			case <-replaced:
			}
		}
	}
}
