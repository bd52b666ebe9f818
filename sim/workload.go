package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Workload is what a workload file says: revisions, how they scale, and the load on each.
type Workload struct {
	Name, About string
	// Shows says what to see in the chart.
	Shows string
	// Revisions is how many independent copies run, each with its own seed.
	Revisions int

	Min, Max, Initial int32
	Target            float64 // per pod, utilization included
	Total             float64
	Concurrency       int // the hard limit of a pod, 0 for none
	Window            time.Duration
	PanicPercentage   float64
	PanicThreshold    float64
	BurstCapacity     float64
	// Metrics are what the pods tell, for those autoscalers that scale by it.
	Metrics []Metric

	// Start is how long a pod takes from the write of the scale to its readiness.
	Start time.Duration
	// Memory is what an awake pod takes, in MiB, Compressed the share of it that a compressed one
	// does. Wake and WakeCompressed are how long a frozen and a compressed pod take to wake.
	Memory, Compressed   float64
	Wake, WakeCompressed time.Duration
	// Service is the mean time that a request uses a worker, Spread the shape of its distribution.
	// Wait is the time it waits for something else, without a worker.
	Service time.Duration
	Spread  string
	Wait    time.Duration
	// Workers is how many requests one pod works on at once, Processors how many all pods do
	// together on the CPUs that they share; 0 means no limit.
	Workers    int
	Processors int
	// Think is the mean time from a response to the same caller's next request in a closed load.
	Think time.Duration

	Load []Segment
	// Trace, when set, replaces Load: one revision for each function.
	Trace []Function
}

// Segment is a stretch of load.
type Segment struct {
	// Closed load keeps a number of requests outstanding; open load lets them arrive at a rate.
	Closed   bool
	From, To float64
	// Period, when set, swings between From and To as a sine of that period.
	Period time.Duration
	For    time.Duration
}

// of is the workload of one revision.
func (w Workload) of(index int) Workload {
	if len(w.Trace) == 0 {
		return w
	}
	f := w.Trace[index]
	w.Trace, w.Load = w.Trace[index:index+1], f.Load
	if f.Service > 0 {
		w.Service = f.Service
	}
	if f.Memory > 0 {
		w.Memory = f.Memory
	}
	return w
}

// Length is how long the load lasts.
func (w Workload) Length() time.Duration {
	if len(w.Trace) > 0 {
		f := w.Trace[0]
		length := max(time.Duration(len(f.Minutes))*time.Minute, Workload{Load: f.Load}.Length())
		if n := len(f.Arrivals); n > 0 {
			length = max(length, (f.Arrivals[n-1].At + time.Minute).Truncate(time.Minute))
		}
		return length
	}
	var sum time.Duration
	for _, s := range w.Load {
		sum += s.For
	}
	return sum
}

// at is the load after a time in the segment: requests outstanding, or arrivals a second.
func (s Segment) at(after time.Duration) float64 {
	if s.Period > 0 {
		phase := math.Sin(2*math.Pi*after.Seconds()/s.Period.Seconds() - math.Pi/2)
		return s.From + (s.To-s.From)*(1+phase)/2
	}
	return s.From + (s.To-s.From)*after.Seconds()/s.For.Seconds()
}

// What is assumed of the revisions of a trace that comes without a workload file: of one that tells
// arrivals, and of one that tells requests in flight.
const (
	ofArrivals = "window 60s\ntarget 10\nstart 1s\nservice 100ms lognormal\ntrace %s\n"
	ofInFlight = "window 60s\nconcurrency 1\nstart 1s\nservice 1s lognormal\ntrace %s\n"
)

// ReadWorkload reads a workload file, for which a trace is looked for beside it, or a trace alone:
// a folder or a CSV file.
func ReadWorkload(path string) (Workload, error) {
	if info, err := os.Stat(path); err == nil && (info.IsDir() || filepath.Ext(path) == ".csv") {
		return ofTrace(path)
	}
	file, err := os.Open(path)
	if err != nil {
		return Workload{}, err
	}
	defer file.Close()
	w, err := ParseWorkload(file, filepath.Dir(path))
	if err != nil {
		return Workload{}, fmt.Errorf("%s:%w", path, err)
	}
	if w.Name == "" {
		w.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	return w, nil
}

func ofTrace(path string) (w Workload, err error) {
	for _, text := range []string{ofArrivals, ofInFlight} {
		w, err = ParseWorkload(strings.NewReader(fmt.Sprintf(text, filepath.Base(path))), filepath.Dir(path))
		if err != nil {
			return w, fmt.Errorf("%s: %w", path, err)
		}
		if len(w.Trace[0].Load) == 0 {
			break
		}
	}
	w.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	return w, nil
}

// parser is a Workload being read. The target depends on three keys, in any order.
type parser struct {
	Workload
	dir                string
	total, utilization float64
}

// ParseWorkload reads lines of a key and its values; see workloads/README.md.
func ParseWorkload(from io.Reader, dir string) (Workload, error) {
	p := parser{dir: dir, utilization: 0.7, Workload: Workload{Revisions: 1, Initial: 1, Total: 100, Window: time.Minute,
		PanicPercentage: 10, PanicThreshold: 2, BurstCapacity: 211, Start: time.Second,
		Memory: 128, Compressed: 0.37, Wake: 4 * time.Millisecond, WakeCompressed: 12 * time.Millisecond, Service: 10 * time.Millisecond, Spread: "exponential"}}
	lines := bufio.NewScanner(from)
	for number := 1; lines.Scan(); number++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		err := errors.New("a key without a value")
		if len(words) > 1 {
			err = p.set(words[0], words[1:])
		}
		if err != nil {
			return p.Workload, fmt.Errorf("%d: %s: %w", number, strings.TrimSpace(text), err)
		}
	}
	if err := lines.Err(); err != nil {
		return p.Workload, err
	}
	if len(p.Load) == 0 && len(p.Trace) == 0 {
		return p.Workload, errors.New("1: there is no load")
	}
	switch {
	case p.total > 0 && p.Concurrency > 0:
		p.Total = math.Min(p.total, float64(p.Concurrency))
	case p.total > 0:
		p.Total = p.total
	case p.Concurrency > 0:
		p.Total = float64(p.Concurrency)
	}
	p.Target = p.Total * p.utilization
	return p.Workload, nil
}

// set takes one line: how the revision scales, what its pods are like, or its load.
func (p *parser) set(key string, values []string) error {
	for _, set := range []func(string, []string) (bool, error){p.setScale, p.setPod, p.setLoad} {
		if known, err := set(key, values); known || err != nil {
			return err
		}
	}
	return errors.New("no such key")
}

func (p *parser) setScale(key string, values []string) (known bool, err error) {
	switch value := values[0]; key {
	case "min":
		p.Min, err = scale(value)
	case "max":
		p.Max, err = scale(value)
	case "initial":
		p.Initial, err = scale(value)
	case "target":
		p.total, err = positive(value)
	case "utilization":
		p.utilization, err = positive(value)
		p.utilization /= 100
	case "concurrency":
		p.Concurrency, err = whole(value, 0, 10_000)
	case "window":
		p.Window, err = duration(value)
	case "panic-window":
		p.PanicPercentage, err = positive(value)
	case "panic-threshold":
		p.PanicThreshold, err = positive(value)
		p.PanicThreshold /= 100
	case "burst-capacity":
		p.BurstCapacity, err = strconv.ParseFloat(value, 64)
	case "metric":
		err = p.setMetric(values)
	default:
		return false, nil
	}
	return true, err
}

func (p *parser) setPod(key string, values []string) (known bool, err error) {
	switch value := values[0]; key {
	case "start":
		p.Start, err = duration(value)
	case "service":
		p.Service, err = duration(value)
		if len(values) > 1 {
			p.Spread = values[1]
		}
		if p.Spread != "exponential" && p.Spread != "fixed" && p.Spread != "lognormal" {
			err = fmt.Errorf("%q is none of fixed, exponential, lognormal", p.Spread)
		}
	case "wait":
		p.Wait, err = duration(value)
	case "memory":
		p.Memory, err = positive(value)
	case "compressed":
		p.Compressed, err = positive(value)
		p.Compressed /= 100
	case "wake":
		p.Wake, err = duration(value)
	case "wake-compressed":
		p.WakeCompressed, err = duration(value)
	case "workers":
		p.Workers, err = whole(value, 0, 10_000)
	case "processors":
		p.Processors, err = whole(value, 0, 10_000)
	default:
		return false, nil
	}
	return true, err
}

func (p *parser) setLoad(key string, values []string) (known bool, err error) {
	switch key {
	case "about":
		p.About = strings.Join(values, " ")
	case "shows":
		p.Shows = strings.Join(values, " ")
	case "revisions":
		p.Revisions, err = whole(values[0], 1, 100_000)
	case "think":
		p.Think, err = duration(values[0])
	case "load":
		var s Segment
		s, err = segment(values)
		p.Load = append(p.Load, s)
	case "trace":
		if strings.HasPrefix(values[0], "$EBB_DATA/") && os.Getenv("EBB_DATA") == "" {
			return true, errNoData
		}
		p.Trace, err = readTrace(p.path(values[0]))
		p.Revisions = len(p.Trace)
	default:
		return false, nil
	}
	return true, err
}

// path is relative to the workload's own folder. $EBB_DATA stands for a folder of traces that are
// not in the repository.
func (p *parser) path(name string) string {
	if rest, ok := strings.CutPrefix(name, "$EBB_DATA/"); ok {
		return filepath.Join(os.Getenv("EBB_DATA"), rest)
	}
	return filepath.Join(p.dir, name)
}

// errNoData is the error of a workload whose trace is not in the repository.
var errNoData = errors.New("set EBB_DATA to the folder of its trace")

// segment reads: outstanding N [to M] | rate R [to S [period P]] | idle, each followed by: for D.
func segment(words []string) (Segment, error) {
	var s Segment
	if len(words) < 3 || words[len(words)-2] != "for" {
		return s, fmt.Errorf("a load ends in: for DURATION")
	}
	var err error
	if s.For, err = duration(words[len(words)-1]); err != nil {
		return s, err
	}
	words = words[:len(words)-2]
	switch words[0] {
	case "idle":
		return s, nil
	case "outstanding":
		s.Closed = true
	case "rate":
	default:
		return s, fmt.Errorf("%q is none of outstanding, rate, idle", words[0])
	}
	if len(words) != 2 && len(words) != 4 && len(words) != 6 {
		return s, fmt.Errorf("a load is: outstanding|rate N [to M [period DURATION]] for DURATION")
	}
	if s.From, err = strconv.ParseFloat(words[1], 64); err != nil || s.From < 0 {
		return s, fmt.Errorf("%q is no load", words[1])
	}
	s.To = s.From
	if len(words) > 2 {
		if s.To, err = strconv.ParseFloat(words[3], 64); err != nil || s.To < 0 || words[2] != "to" {
			return s, fmt.Errorf("%q is no load", words[3])
		}
	}
	if len(words) > 4 {
		if s.Period, err = duration(words[5]); err != nil {
			return s, err
		}
	}
	return s, nil
}

func whole(text string, low, high int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%q is not a whole number from %d to %d", text, low, high)
	}
	return n, nil
}

func scale(text string) (int32, error) {
	n, err := whole(text, 0, 100_000)
	return int32(n), err
}

func positive(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%q is not a number above 0", text)
	}
	return f, nil
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > 1000*time.Hour {
		return 0, fmt.Errorf("%q is not a duration above 0", text)
	}
	return d, nil
}

// serviceTime draws how long a request works.
func serviceTime(r *rand.Rand, mean time.Duration, spread string) time.Duration {
	switch spread {
	case "fixed":
		return mean
	case "lognormal":
		const sigma = 1
		return time.Duration(float64(mean) * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2))
	}
	return time.Duration(r.ExpFloat64() * float64(mean))
}
