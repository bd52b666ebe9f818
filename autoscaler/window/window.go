// Package window averages what a revision reported over the last seconds.
//
// Owns: the ring of one-second buckets of one series (concurrency or requests per second). Reads:
// nothing; the caller passes the time. Writes: only its ring. A Window has one owner and no lock.
// Never: looks at a clock, or counts a second without data as a second without load.
package window

import (
	"math"
	"time"
)

// Algorithm names how the buckets of a window are weighted.
type Algorithm uint8

const (
	// Linear gives every bucket the same weight.
	Linear Algorithm = iota
	// WeightedExponential gives a bucket of age i the weight c·(1-c)^i, with c chosen so that the
	// whole window carries 99.99 % of the weight, and at least 0.2.
	WeightedExponential
)

// minimumCoefficient is the smallest smoothing coefficient. Below it, a long window would react too
// slowly.
const minimumCoefficient = 0.2

// Window is a ring of one-second buckets. Values added to the same second are summed, because each
// reporter (an activator, the scrape of the pods) reports its own share of the load. For a second
// report of the same reporter in a second, use Replace.
//
// There are three kinds of seconds. Recorded seconds have a value. Seconds without a value count as
// zero if a later second was recorded, because a silent activator has no traffic. Seconds marked by
// Miss have an unknown value, so they never lower an average.
type Window struct {
	length int // in seconds
	// ring is nil before the first write, which a revision at zero may never have, and spent when
	// all that was written is too old to count.
	*ring
}

type ring struct {
	values  []float64
	missing []bool
	// first and last are the seconds (Unix) of the oldest and the newest write.
	first, last int64
	coefficient float64
}

// spent is the ring of all windows whose writes are all too old. Nobody writes to it.
var spent = &ring{first: math.MinInt64 / 2, last: math.MinInt64 / 2}

func newRing(length int) *ring {
	return &ring{values: make([]float64, length), missing: make([]bool, length), coefficient: coefficient(length)}
}

// New returns an empty window over the given length, which is rounded to whole seconds, at least
// one.
func New(length time.Duration) *Window {
	return &Window{length: max(int(length.Round(time.Second)/time.Second), 1)}
}

func coefficient(buckets int) float64 {
	return math.Max(1-math.Pow(1-0.9999, 1/float64(buckets)), minimumCoefficient)
}

// Length is the time the window covers.
func (w *Window) Length() time.Duration { return time.Duration(w.length) * time.Second }

// Add adds a value to the bucket of now. It reports false, and changes nothing, when the value is
// not a finite number of at least zero, or is older than the window.
func (w *Window) Add(now time.Time, value float64) bool {
	if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
		return false
	}
	i, ok := w.bucket(now.Unix())
	if ok {
		w.values[i] += value
	}
	return ok
}

// Replace removes a value that one reporter added to the bucket of now, and adds a new value: a
// reporter that reports twice in a second does not have twice the load. It returns false and
// changes nothing under the same conditions as Add.
func (w *Window) Replace(now time.Time, before, value float64) bool {
	if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
		return false
	}
	i, ok := w.bucket(now.Unix())
	if ok {
		// Rounding must not bring the sum below value.
		w.values[i] = math.Max(w.values[i]-before, 0) + value
	}
	return ok
}

// Miss marks the second of now as partly or wholly unknown, because a scrape failed. Values that
// other reporters add to the second are a lower bound.
func (w *Window) Miss(now time.Time) {
	if i, ok := w.bucket(now.Unix()); ok {
		w.missing[i] = true
	}
}

// Found undoes Miss for the second of now.
func (w *Window) Found(now time.Time) {
	if second := now.Unix(); w.ring != nil && second >= w.first && second <= w.last {
		w.missing[index(second, int64(len(w.missing)))] = false
	}
}

// bucket advances the ring to a second and returns the index of its bucket.
func (w *Window) bucket(second int64) (int, bool) {
	n := int64(w.length)
	switch {
	case w.ring == nil || w.ring == spent:
		w.ring = newRing(w.length)
		w.first, w.last = second, second
	case second-w.last >= n:
		clear(w.values)
		clear(w.missing)
		w.first, w.last = second, second
	case second > w.last:
		for s := w.last + 1; s <= second; s++ {
			w.values[index(s, n)], w.missing[index(s, n)] = 0, false
		}
		w.last = second
	case w.last-second >= n:
		return 0, false
	case second < w.first:
		// Between second and first the ring is clean: either never used, or cleared on a reset.
		w.first = second
	}
	// Older buckets have been overwritten; first must not reach further back than the ring does.
	w.first = max(w.first, w.last-n+1)
	return index(second, n), true
}

func index(second, n int64) int { return int(((second % n) + n) % n) }

// Empty reports whether nothing was written within the window that ends at now.
func (w *Window) Empty(now time.Time) bool {
	return w.ring == nil || now.Unix()-w.last >= int64(w.length)
}

// Clear drops what was written, and not that there was something.
func (w *Window) Clear() { w.ring = spent }

// Written reports whether there ever was a write.
func (w *Window) Written() bool { return w.ring != nil }

// Average is the mean over the valid seconds of the window that ends at now, rounded to six
// decimals. A valid second is between the first and the last write and not older than the window.
// Trailing seconds without a write are left out by Linear. WeightedExponential keeps their weight.
//
// A missing second counts as the mean of the known ones, or as its recorded value if that is
// higher. The present second may raise that mean and not lower it: in it, not all reporters may
// have reported yet, and few seconds may be known. Average returns false if nothing was ever
// written, or if all valid seconds are missing. The load is then unknown, and the recorded values
// are a lower bound.
func (w *Window) Average(now time.Time, algorithm Algorithm) (float64, bool) {
	if w.ring == nil {
		return 0, false
	}
	if w.Empty(now) {
		return 0, true
	}
	n := int64(w.length)
	end := max(now.Unix(), w.last)
	low := max(w.first, end-n+1)
	var known, knownWeight, missingWeight, present, presentWeight float64
	var anyKnown, anyMissing bool
	weight := 1 / float64(w.last-low+1)
	factor := 1.0
	if algorithm == WeightedExponential {
		weight = w.coefficient * math.Pow(1-w.coefficient, float64(end-w.last))
		factor = 1 - w.coefficient
	}
	first := weight
	for s := w.last; s >= low; s-- {
		i := index(s, n)
		if w.missing[i] {
			anyMissing = true
			missingWeight += weight
		} else {
			anyKnown = true
			known += weight * w.values[i]
			knownWeight += weight
			if s >= now.Unix() {
				present, presentWeight = present+weight*w.values[i], presentWeight+weight
			}
		}
		weight *= factor
	}
	total := known
	if anyMissing {
		mean := 0.0
		if knownWeight > 0 {
			mean = known / knownWeight
		}
		if before := knownWeight - presentWeight; before > 0 {
			mean = math.Max(mean, (known-present)/before)
		}
		total += missingWeight * mean
		weight = first
		for s := w.last; s >= low; s-- {
			if i := index(s, n); w.missing[i] && w.values[i] > mean {
				total += weight * (w.values[i] - mean)
			}
			weight *= factor
		}
	}
	return math.Round(total*1e6) / 1e6, anyKnown
}

// Known is the number of valid seconds in the window ending at now that were not marked missing.
func (w *Window) Known(now time.Time) int {
	if w.Empty(now) {
		return 0
	}
	n := int64(w.length)
	count := 0
	for s := w.last; s >= max(w.first, now.Unix()-n+1); s-- {
		if !w.missing[index(s, n)] {
			count++
		}
	}
	return count
}

// Resize returns a window of the new length with the contents that still fit, so that a changed
// annotation does not lose data.
func (w *Window) Resize(length time.Duration) *Window {
	r := New(length)
	if r.length == w.length {
		return w
	}
	if w.ring == nil || w.ring == spent {
		r.ring = w.ring
		return r
	}
	n, m := int64(w.length), int64(r.length)
	r.ring = newRing(r.length)
	r.last = w.last
	r.first = max(w.first, w.last-m+1)
	for s := r.first; s <= r.last; s++ {
		r.values[index(s, m)] = w.values[index(s, n)]
		r.missing[index(s, m)] = w.missing[index(s, n)]
	}
	return r
}

// Contents is what a Window holds, for another process to continue with. Values begin at the second
// First. A missing second is negative: -1 less its lower bound.
type Contents struct {
	First  int64
	Values []float64
}

// Export returns what the window holds, nothing when it was never written to or all of it is spent.
func (w *Window) Export() Contents {
	if w.ring == nil || w.ring == spent {
		return Contents{}
	}
	c := Contents{First: w.first, Values: make([]float64, 0, w.last-w.first+1)}
	n := int64(w.length)
	for s := w.first; s <= w.last; s++ {
		value := w.values[index(s, n)]
		if w.missing[index(s, n)] {
			value = -1 - value
		}
		c.Values = append(c.Values, value)
	}
	return c
}

// Import adds the contents that another window had when it was exported at the second until. The
// times are those of another clock, to which shift is added. If both windows have a value for a
// second, the larger one counts, because each process may have seen only a part of the load. The
// seconds between until and this window's first one are missing. Import returns false and changes
// nothing if the contents are invalid.
func (w *Window) Import(c Contents, until, shift int64, now time.Time) bool {
	c.First += shift
	until += shift
	present, n := now.Unix(), int64(w.length)
	if len(c.Values) == 0 {
		return true
	}
	if len(c.Values) > maxContents || c.First < 0 || c.First > present+1 || until < 0 || until > present+1 {
		return false
	}
	last := c.First + int64(len(c.Values)) - 1
	if last > present+1 {
		return false
	}
	for _, value := range c.Values {
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return false
		}
	}
	if until-last >= n || present-last >= n {
		return true // older than the window
	}
	own := w.ring
	if own == spent {
		own = nil
	}
	w.ring = nil
	put := func(second int64, value float64, missing bool) {
		if i, ok := w.bucket(second); ok {
			w.values[i] = math.Max(w.values[i], value)
			w.missing[i] = w.missing[i] || missing
		}
	}
	for i, value := range c.Values {
		if value < 0 {
			put(c.First+int64(i), math.Max(-1-value, 0), true)
		} else {
			put(c.First+int64(i), value, false)
		}
	}
	begin := present + 1
	if own != nil {
		begin = own.first
	}
	for s := max(last, until) + 1; s < begin; s++ {
		put(s, 0, true)
	}
	if own != nil {
		for s := own.first; s <= own.last; s++ {
			put(s, own.values[index(s, n)], own.missing[index(s, n)])
		}
	}
	return true
}

// maxContents is above the length of the longest window, an hour.
const maxContents = 2 * 3600
