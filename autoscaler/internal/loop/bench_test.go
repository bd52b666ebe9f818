package loop

import (
	"fmt"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

// BenchmarkSample is what one stat costs, from the shard's inbox to the decision, at a steady load.
func BenchmarkSample(b *testing.B) {
	s := spec()
	s.Found = &revision.State{Desired: 3, Zero: zero.State{Active: zero.Yes, Initialized: true}}
	now := time.Now()
	w := &world{specs: map[Key]*Spec{}, counts: map[Key]revision.Counts{}}
	e := New(Options{Shards: 1, Source: w, Pods: w, Actor: w, Clock: func() time.Time { return now }})
	const revisions = 1000
	keys := make([]Key, revisions)
	for i := range keys {
		keys[i] = Key{Namespace: "default", Name: fmt.Sprint("hello-", i)}
		w.specs[keys[i]], w.counts[keys[i]] = s, revision.Counts{Ready: 3}
		e.Changed(keys[i])
	}
	e.shards[0].changed()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		now = now.Add(time.Second / 3 / revisions)
		e.shards[0].report([]Sample{{Key: keys[i%revisions], Arrived: now, Sample: revision.Sample{Reporter: [...]string{"a", "b", "c"}[i/revisions%3], Report: decide.Report{Concurrency: 6}}}}, now)
	}
}
