// Package told knows the numbers by which the user container tells its load: in the header field
// wire.HeaderLoad of its responses, or on a page in Prometheus' text format.
//
// Owns: the newest value of each metric. Reads: the field, and the pages once a second while the
// pod is awake. Writes: nothing. Never: allocates for a response, reads more than a mebibyte of a
// page, or keeps more of it than a line.
package told

import (
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"ebb.dev/ebb/wire"
)

const (
	// headerFresh is how long a value from a response stands.
	headerFresh = 10 * time.Second
	// pageFresh is how long a value from a page stands: one slow page is no missing value.
	pageFresh = 5 * time.Second
	// maxNumber is longer than the shortest spelling of any float64.
	maxNumber = 40
)

// Board has the newest value of each metric; make it with New.
type Board struct {
	metrics []wire.ToldMetric

	mu     sync.Mutex
	values []value
}

type value struct {
	at     time.Time // zero before the first
	number float64
}

// New makes a Board without values.
func New(metrics []wire.ToldMetric) *Board {
	return &Board{metrics: metrics, values: make([]value, len(metrics))}
}

// HasHeader reports whether a metric is in the responses.
func (b *Board) HasHeader() bool {
	for _, m := range b.metrics {
		if m.Port == 0 {
			return true
		}
	}
	return false
}

// Header takes the field of a response, such as "waiting=3, running=8". A value that is no load
// makes the metric unknown.
func (b *Board) Header(text string, now time.Time) {
	for entry := range strings.SplitSeq(text, ",") {
		name, text, ok := strings.Cut(entry, "=")
		if !ok {
			continue
		}
		name = strings.TrimSpace(name)
		for place := range b.metrics {
			if m := &b.metrics[place]; m.Port == 0 && m.Name == name {
				b.set(place, number(strings.TrimSpace(text)), now)
			}
		}
	}
}

// number is NaN for what is none.
func number(text string) float64 {
	if len(text) > maxNumber { // an error would carry it to the heap
		return math.NaN()
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return f
}

func (b *Board) set(place int, number float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values[place] = value{now, number}
}

func valid(f float64) bool { return f >= 0 && !math.IsInf(f, 0) } // false for NaN

// Told returns the values that are known now. inside is how many requests are in the pod: a pod
// without any has no load that its next response could tell.
func (b *Board) Told(now time.Time, inside int) (told wire.Told) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for place := range b.metrics {
		v, fresh := b.values[place], headerFresh
		header := b.metrics[place].Port == 0
		if !header {
			fresh = pageFresh
		}
		switch {
		case !v.at.IsZero() && valid(v.number) && now.Sub(v.at) <= fresh:
			told.Set(place, v.number)
		case header && inside == 0:
			told.Set(place, 0)
		}
	}
	return told
}
