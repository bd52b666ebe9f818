package settings

import "sync/atomic"

// Store holds the current Snapshot. One writer (Watch, or a test), any number of readers; reading takes no lock.
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

// MetricsExport is where the components' metrics go, and a channel that is closed once that may have changed.
func (s *Store) MetricsExport() (to Export, replaced <-chan struct{}) {
	snapshot, replaced := s.Current()
	to = snapshot.Observability.Metrics
	to.Runtime = snapshot.Observability.RuntimeExportInterval
	return to, replaced
}
