package settings

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
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
func (s *Store) MetricsExport() (to Export, replaced <-chan struct{}) {
	snapshot, replaced := s.Current()
	to = snapshot.Observability.Metrics
	to.Runtime = snapshot.Observability.RuntimeExportInterval
	return to, replaced
}

// Leases is how the replicas of a component divide its work.
type Leases struct {
	Prefix                                    string // begins the names of the leases
	Buckets                                   uint32
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Leases returns what config-leader-election says for a component now, and a channel that is closed
// once that may have changed. The prefix is the one to use unless the ConfigMap has another.
func (s *Store) Leases(component, prefix string) func() (Leases, <-chan struct{}) {
	return func() (Leases, <-chan struct{}) {
		snapshot, replaced := s.Current()
		l := snapshot.LeaderElection
		leases := Leases{prefix, l.Buckets, l.LeaseDuration, l.RenewDeadline, l.RetryPeriod}
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
