// Package witness keeps what a judge of rollouts asks for: how the requests of a revision ended in
// each of the last seconds.
//
// Owns: for each revision that somebody asks about, what its pods said last, and the newest
// seconds. Reads: all pods of these revisions, up to a bound, each second. Writes: nothing. Never:
// remembers a revision that nobody has asked about for a while, takes part in scaling, or judges.
package witness

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/wire"
)

const (
	// round is the time between two questions, and answersWithin how long pods have. A pod that
	// takes longer tells the same with the next answer.
	round         = time.Second
	answersWithin = 900 * time.Millisecond
	// forgets is after which time without a question a revision is forgotten.
	forgets = v1alpha1.MaxSeconds * time.Second
	// maxRevisions bounds those that are asked about, maxPods the pods of each that are asked.
	// Which pods these are does not depend on how requests end, so the comparison stays fair.
	maxRevisions = 256
	maxPods      = 100
)

// Witness asks the pods. Its methods may be called from any goroutine.
type Witness struct {
	// Pods lists the pods of a revision that take requests.
	Pods func(loop.Key) []pods.Pod
	// Starting is since when the slowest pod has been starting that has a node, zero if none is.
	Starting func(loop.Key) time.Time
	// Ask asks pods what they count.
	Ask   func(context.Context, loop.Key, []pods.Pod) []wire.Stat
	Clock func() time.Time

	mutex sync.Mutex
	all   map[loop.Key]*revision
}

// revision is what is known of one.
type revision struct {
	first, last time.Time // of the questions about it
	said        map[string]word
	seconds     []v1alpha1.Second
	deaf        int32 // pods whose queue-proxy does not count
}

// word is what a pod said last.
type word struct {
	judged wire.Judged
	uptime float64 // of its queue-proxy
	at     time.Time
}

// Watch notes that somebody asks about a revision. It reports false if there is no room for one
// more.
func (w *Witness) Watch(key loop.Key) bool {
	now := w.Clock()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	one := w.all[key]
	if one == nil {
		if len(w.all) >= maxRevisions {
			return false
		}
		if w.all == nil {
			w.all = map[loop.Key]*revision{}
		}
		one = &revision{first: now, said: map[string]word{}}
		w.all[key] = one
	}
	one.last = now
	return true
}

// Judged returns what is known of a revision, nil if nobody asks about it.
func (w *Witness) Judged(key loop.Key) *v1alpha1.Judged {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	one := w.all[key]
	if one == nil {
		return nil
	}
	j := &v1alpha1.Judged{Seconds: slices.Clone(one.seconds), Uncounted: one.deaf}
	if since := w.Starting(key); !since.IsZero() {
		j.StartingSeconds = max(w.Clock().Sub(since).Seconds(), 0)
	}
	return j
}

// Run asks each second until ctx ends.
func (w *Witness) Run(ctx context.Context) error {
	return run.Every(ctx, round, func(time.Time) error {
		w.Round(ctx)
		return nil
	})
}

// Round asks the pods of all revisions that somebody asks about, and returns when they have
// answered or their time is over.
func (w *Witness) Round(ctx context.Context) {
	now := w.Clock()
	var due []loop.Key
	w.mutex.Lock()
	for key, one := range w.all {
		if now.Sub(one.last) > forgets {
			delete(w.all, key)
		} else {
			due = append(due, key)
		}
	}
	w.mutex.Unlock()
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	var asking sync.WaitGroup
	for _, key := range due {
		asking.Go(func() {
			all := w.Pods(key)
			if len(all) > maxPods {
				// Always the same ones, because what a pod counts is told by two answers.
				all = slices.SortedFunc(slices.Values(all), func(a, b pods.Pod) int { return cmp.Compare(a.Name, b.Name) })[:maxPods]
			}
			w.heard(key, len(all), w.Ask(ctx, key, all), now)
		})
	}
	asking.Wait()
}

// heard adds the second of a round. It ends with the beginning of the round for all revisions,
// whenever their pods have answered: a judge compares those of the same time. If pods were asked
// and none said what it counts, nothing is known of that time; what it counted then comes with the
// next answers.
func (w *Witness) heard(key loop.Key, asked int, stats []wire.Stat, round time.Time) {
	now := w.Clock()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	one := w.all[key]
	if one == nil {
		return
	}
	var sum counts
	told := asked == 0
	one.deaf = 0
	for i := range stats {
		s := &stats[i]
		if s.Judged == nil {
			one.deaf++
			continue
		}
		told = true
		sum.add(one.news(s, now))
	}
	for pod, before := range one.said {
		if now.Sub(before.at) > forgets {
			delete(one.said, pod)
		}
	}
	if !told {
		return
	}
	if len(one.seconds) == v1alpha1.MaxSeconds {
		one.seconds = slices.Delete(one.seconds, 0, 1)
	}
	one.seconds = append(one.seconds, sum.second(round))
}

// news is what a pod has counted since its last answer. Of a process that began since it was last
// asked, or since somebody first asked about the revision, that is all. Of another one that is
// heard for the first time, nothing is known.
func (one *revision) news(s *wire.Stat, now time.Time) (d wire.Judged) {
	before, known := one.said[s.PodName]
	began := now.Add(-time.Duration(s.ProcessUptime * float64(time.Second)))
	switch {
	case known && s.ProcessUptime >= before.uptime:
		d = s.Judged.Since(&before.judged)
	case known, began.After(one.first):
		d = *s.Judged
	}
	one.said[s.PodName] = word{*s.Judged, s.ProcessUptime, now}
	return d
}

// counts are sums over pods.
type counts struct {
	good, failed uint64
	latency      [wire.LatencyBuckets]uint64
	senders      [wire.SenderDrawers][2]uint64
	tagged       [2]uint64
}

func (c *counts) add(j wire.Judged) {
	c.good += uint64(j.Good)
	c.failed += uint64(j.Failed)
	for i, n := range j.Latency {
		c.latency[i] += uint64(n)
	}
	for i, s := range j.Senders {
		c.senders[i][0] += uint64(s.Good)
		c.senders[i][1] += uint64(s.Failed)
	}
	c.tagged[0] += uint64(j.Tagged.Good)
	c.tagged[1] += uint64(j.Tagged.Failed)
}

// second leaves out the empty buckets at both ends, and the empty drawers at the end.
func (c *counts) second(at time.Time) v1alpha1.Second {
	s := v1alpha1.Second{At: at.UTC(), Good: c.good, Failed: c.failed, Tagged: c.tagged}
	first, last := 0, len(c.latency)
	for last > 0 && c.latency[last-1] == 0 {
		last--
	}
	for first < last && c.latency[first] == 0 {
		first++
	}
	if first < last {
		s.FirstBucket, s.Buckets = first, slices.Clone(c.latency[first:last])
	}
	drawers := len(c.senders)
	for drawers > 0 && c.senders[drawers-1] == [2]uint64{} {
		drawers--
	}
	s.Senders = append(s.Senders, c.senders[:drawers]...)
	return s
}
