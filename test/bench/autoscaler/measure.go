package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ebb.dev/ebb/wire"
)

// reading is the state of the autoscaler's process at one moment.
type reading struct {
	at  time.Time
	cpu time.Duration
	// anon is anonymous memory, rss all resident memory and peak its maximum, in MiB.
	anon, rss, peak float64
	buckets         map[float64]uint64
}

// counts are what the generator has done so far.
type counts struct {
	scrapes, taken, offered, late int64
	own                           time.Duration // CPU time
}

// clockTick is the unit of CPU time in /proc, a hundredth of a second on every Linux.
const clockTick = 10 * time.Millisecond

func read(pid int) (reading, error) {
	r := reading{at: time.Now(), buckets: map[float64]uint64{}}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return r, err
	}
	// The name in parentheses may contain spaces; the fields after it do not.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		return r, fmt.Errorf("read CPU time: %q", stat)
	}
	r.cpu = time.Duration(user+system) * clockTick
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(status)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(words[1], 64)
		switch words[0] {
		case "RssAnon:":
			r.anon = kib / 1024
		case "VmRSS:":
			r.rss = kib / 1024
		case "VmHWM:":
			r.peak = kib / 1024
		}
	}
	response, err := http.Get(fmt.Sprintf("http://%s:%d%s", autoscalerIP, wire.PortMetrics, wire.PathMetrics))
	if err != nil {
		return r, err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), `ebb_autoscaler_stat_decision_seconds_bucket{le="`)
		if !ok {
			continue
		}
		bound, count, _ := strings.Cut(rest, `"} `)
		le, err1 := strconv.ParseFloat(bound, 64)
		n, err2 := strconv.ParseFloat(count, 64)
		if err1 == nil && err2 == nil {
			r.buckets[le] = uint64(n)
		}
	}
	return r, lines.Err()
}

// decisions is the histogram of the decisions between two readings.
type decisions struct {
	bounds []float64
	counts []uint64 // cumulative
	total  uint64
}

func (r reading) decisions(before reading) decisions {
	var d decisions
	for bound := range r.buckets {
		d.bounds = append(d.bounds, bound)
	}
	slices.Sort(d.bounds)
	for _, bound := range d.bounds {
		d.counts = append(d.counts, r.buckets[bound]-before.buckets[bound])
	}
	if n := len(d.counts); n > 0 {
		d.total = d.counts[n-1]
	}
	return d
}

// quantile returns the upper bound, in milliseconds, of the bucket that holds the quantile.
func (d decisions) quantile(q float64) float64 {
	for i, n := range d.counts {
		if float64(n) >= q*float64(d.total) {
			return d.bounds[i] * 1000
		}
	}
	return math.Inf(1)
}

// own returns the CPU time that the generator, this process, has used.
func own() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// keepProfile writes the autoscaler's CPU profile during the measurement, and its heap profile at
// the end.
func (b *bench) keepProfile(ctx context.Context) error {
	for name, path := range map[string]string{"": fmt.Sprintf("profile?seconds=%d", int(b.lasts.Seconds())), ".heap": "heap"} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/debug/pprof/%s", autoscalerIP, wire.PortProfiling, path), nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		defer response.Body.Close()
		file, err := os.Create(b.profile + name)
		if err != nil {
			return err
		}
		defer file.Close()
		if _, err := io.Copy(file, response.Body); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	}
	return nil
}
