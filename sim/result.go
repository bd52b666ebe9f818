package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

// Result is what one or several revisions did.
type Result struct {
	Requests, ColdStarts int
	// PodSeconds counts every pod from the write that asked for it to its leaving.
	PodSeconds float64
	// Memory is what the pods took, in MiB-seconds: those awake or starting, frozen, and
	// compressed.
	Awake, Frozen, Compressed float64
	// Changes of the scale, and Reversals: a rise after a fall or a fall after a rise.
	Changes, Reversals int
	waits, responses   histogram
	direction          int
	// Curve holds one point a second.
	Curve []Point
}

// Point is one second of all revisions together.
type Point struct{ Load, Wanted, Ready float64 }

func newResult() *Result { return &Result{} }

func (r *Result) wait(d time.Duration)     { r.waits.add(d) }
func (r *Result) response(d time.Duration) { r.responses.add(d) }

// memory is what the pods took, in MiB-seconds.
func (r *Result) memory() float64 { return r.Awake + r.Frozen + r.Compressed }

func (r *Result) second(load float64, wanted, ready int32, pods int) {
	r.PodSeconds += float64(pods)
	r.Curve = append(r.Curve, Point{load, float64(wanted), float64(ready)})
}

func (r *Result) scaled(before, after int32) {
	if before == after {
		return
	}
	direction := 1
	if after < before {
		direction = -1
	}
	r.Changes++
	if r.direction != 0 && r.direction != direction {
		r.Reversals++
	}
	r.direction = direction
}

func (r *Result) join(o *Result) {
	r.Requests += o.Requests
	r.ColdStarts += o.ColdStarts
	r.PodSeconds += o.PodSeconds
	r.Awake += o.Awake
	r.Frozen += o.Frozen
	r.Compressed += o.Compressed
	r.Changes += o.Changes
	r.Reversals += o.Reversals
	r.waits.join(&o.waits)
	r.responses.join(&o.responses)
	for i, p := range o.Curve {
		if i == len(r.Curve) {
			r.Curve = append(r.Curve, Point{})
		}
		r.Curve[i].Load += p.Load
		r.Curve[i].Wanted += p.Wanted
		r.Curve[i].Ready += p.Ready
	}
}

// histogram counts durations in buckets 5 % apart, from a microsecond to some hours.
type histogram struct {
	counts [512]uint32
	total  int
}

const growth = 1.05

func (h *histogram) add(d time.Duration) {
	i := 0
	if us := float64(d) / 1e3; us > 1 {
		i = min(1+int(math.Log(us)/math.Log(growth)), len(h.counts)-1)
	}
	h.counts[i]++
	h.total++
}

func (h *histogram) join(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
}

// quantile returns the middle of the bucket in which the quantile lies.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int(math.Ceil(q * float64(h.total)))
	seen := 0
	for i, n := range h.counts {
		if seen += int(n); n > 0 && seen >= rank {
			if i == 0 {
				return 0
			}
			return time.Duration(math.Pow(growth, float64(i)-0.5) * 1e3)
		}
	}
	return 0
}

var header = []string{"workload", "autoscaler", "requests", "cold starts", "wait p50", "wait p99", "response p99", "pod-seconds", "GiB-seconds", "scale actions", "reversals"}

func (r *Result) row(workload, scaler string) []string {
	return []string{workload, scaler, fmt.Sprint(r.Requests), fmt.Sprint(r.ColdStarts), milliseconds(r.waits.quantile(0.5)), milliseconds(r.waits.quantile(0.99)),
		milliseconds(r.responses.quantile(0.99)), fmt.Sprintf("%.0f", r.PodSeconds), fmt.Sprintf("%.0f", r.memory()/1024), fmt.Sprint(r.Changes), fmt.Sprint(r.Reversals)}
}

// record is a Result as an object of -json. Durations are in milliseconds, pod_seconds in seconds,
// memory_seconds and its parts in MiB-seconds.
type record struct {
	Workload      string  `json:"workload"`
	Autoscaler    string  `json:"autoscaler"`
	Requests      int     `json:"requests"`
	ColdStarts    int     `json:"cold_starts"`
	WaitP50       float64 `json:"wait_p50_ms"`
	WaitP99       float64 `json:"wait_p99_ms"`
	ResponseP99   float64 `json:"response_p99_ms"`
	PodSeconds    float64 `json:"pod_seconds"`
	MemorySeconds float64 `json:"memory_seconds"`
	Awake         float64 `json:"memory_seconds_awake"`
	Frozen        float64 `json:"memory_seconds_frozen"`
	Compressed    float64 `json:"memory_seconds_compressed"`
	Changes       int     `json:"scale_changes"`
	Reversals     int     `json:"reversals"`
}

func (r *Result) record(workload, scaler string) record {
	ms := func(d time.Duration) float64 { return math.Round(d.Seconds()*1e6) / 1e3 }
	return record{workload, scaler, r.Requests, r.ColdStarts, ms(r.waits.quantile(0.5)), ms(r.waits.quantile(0.99)), ms(r.responses.quantile(0.99)),
		r.PodSeconds, math.Round(r.memory()), math.Round(r.Awake), math.Round(r.Frozen), math.Round(r.Compressed), r.Changes, r.Reversals}
}

func writeJSON(file string, records []record) error {
	text, err := json.MarshalIndent(records, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func milliseconds(d time.Duration) string {
	ms := d.Seconds() * 1000
	switch {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.0f s", ms/1000)
}

// table prints rows as a Markdown table that is readable as text, too.
func table(rows [][]string) string {
	width := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	var b strings.Builder
	line := func(row []string) {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-len(cell))
			if i < 2 {
				fmt.Fprintf(&b, "| %s%s ", cell, pad)
			} else {
				fmt.Fprintf(&b, "| %s%s ", pad, cell)
			}
		}
		b.WriteString("|\n")
	}
	line(header)
	for i, n := range width {
		if i < 2 {
			fmt.Fprintf(&b, "|%s", strings.Repeat("-", n+2))
		} else {
			fmt.Fprintf(&b, "|%s:", strings.Repeat("-", n+1))
		}
	}
	b.WriteString("|\n")
	for _, row := range rows {
		line(row)
	}
	return b.String()
}
