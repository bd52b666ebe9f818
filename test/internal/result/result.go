// Package result prints the measurements of a benchmark: one JSON object per line, and a summary at
// the end.
//
// Owns: nothing. Reads: nothing. Writes: the writer it is given. Never: asserts a figure.
package result

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

// Fields are the members of one line; encoding/json writes them in alphabetical order, "bench" is
// added.
type Fields map[string]any

// Printer writes the lines of one benchmark.
type Printer struct {
	Bench string
	Out   io.Writer
	mu    sync.Mutex
}

// Line writes one object.
func (p *Printer) Line(fields Fields) error {
	line := Fields{"bench": p.Bench}
	for key, value := range fields {
		if number, ok := value.(float64); ok {
			value = round(number)
		}
		line[key] = value
	}
	data, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("encode a result of %s: %w", p.Bench, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.Out.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("print a result of %s: %w", p.Bench, err)
	}
	return nil
}

// Summary writes the closing line.
func (p *Printer) Summary(fields Fields) error {
	line := Fields{"summary": true}
	for key, value := range fields {
		line[key] = value
	}
	return p.Line(line)
}

// round keeps three decimals: no clock here is more precise. A number that JSON cannot represent
// becomes null.
func round(number float64) any {
	if math.IsNaN(number) || math.IsInf(number, 0) {
		return nil
	}
	return math.Round(number*1000) / 1000
}

// Quantile returns the q-quantile (0 to 1) of values by the nearest rank, NaN of none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// Median returns the middle of values, the mean of the two middle ones of an even number, NaN of
// none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Milliseconds returns a duration in milliseconds, with its fraction.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
