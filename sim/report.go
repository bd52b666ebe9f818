package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const introduction = `# Simulated workloads

` + "`make simulate`" + ` writes this page. It plays each file of ` + "`sim/workloads`" + ` in virtual time under six autoscalers:

- *baseline*: the compatible formula, written a second time. It decides on its two-second tick and gets no stats in between, except the
  first request at zero.
- *ebb*: what Ebb runs by default (` + "`autoscaler/revision`" + `, the code of the autoscaler's own loop).
- *ebb-adaptive*: the same, with ` + "`autoscaling.ebb.dev/target: auto`" + `.
- *ebb-standby*: *ebb*, with ` + "`autoscaling.ebb.dev/standby: auto`" + `.
- *keepalive-10m*: *baseline*, with pods that stay for 10 minutes after they were wanted.
- *hybrid-histogram*: *baseline*, with the policy of Shahrad et al. (USENIX ATC 2020).

In short: where load changes suddenly, requests wait less under *ebb* than under *baseline*, at about the same cost
(the start of constant is the exception). If the configured target is wrong (nine-outstanding), only *ebb-adaptive* corrects it.
Under slow or constant load they do the same, after the start. These workloads last minutes; what standby is worth shows in traces of
hours: ` + "`go run ./sim FILE...`" + ` takes traces, too.

## Results

An open load (` + "`rate`" + `) has the same arrivals and the same work under every autoscaler. A closed load (` + "`outstanding`" + `) sends a
request when one ends, so faster answers mean more requests.

`

const explanation = `
How to read the columns:

- *Wait* is the time from a request's arrival until a pod handles it. It includes the start of a pod if there was none.
- *Pod-seconds* are the cost: the time of each pod from the scale write to its termination.
- *Reversals* count how often the scale changed from rising to falling or back.

Why *ebb* costs more than *baseline* in some rows:

- bursty: *ebb* wants 29 pods when the queue forms, one to two seconds before the baseline's windows show it. The pods run that much
  longer in each of the three bursts (3 % more pod-seconds), and answer 6 % more requests.
- constant: the load begins with 400 requests a second and no pod. The queue of the first two seconds needs 41 pods, which panic mode
  keeps for one window of 60 s. The baseline's averages show only a part of that queue, so it wants fewer. After that the two
  do the same.
- slow-single: pods take 20 s to start, so the current queue needs more pods than the average shows. Waits are a fifth shorter.
- *ebb-adaptive*: while learning, it adds pods for some seconds and then removes them, which is two reversals.

At constant load the only reversals come from the start and from learning. In shared-processors the mean load is exactly the capacity
of a whole number of pods, so the compatible formula follows the noise. A learned target has hysteresis. A test checks that nothing
else changes the scale after the first five minutes.

The workload thousand also measures the simulator: a million requests over a thousand revisions should take less than a minute on two
CPUs. ` + "`go run ./sim sim/workloads/thousand.txt`" + ` prints how long it took for each autoscaler.

## Charts

Grey is the load (requests in flight, left axis), orange the pods wanted and blue the pods ready (right axis).
`

// pictures returns the charts, each with a caption, by workload.
func pictures(workloads []Workload) string {
	var b strings.Builder
	for _, w := range workloads {
		fmt.Fprintf(&b, "\n### %s\n\n%s.\n", w.Name, strings.ToUpper(w.About[:min(1, len(w.About))])+w.About[min(1, len(w.About)):])
		for _, kind := range kinds {
			fmt.Fprintf(&b, "\n![%[1]s under %[2]s](%[3]s)\n*%[1]s under %[2]s*\n", w.Name, kind.name, chart(w.Name, kind.name))
		}
	}
	return b.String()
}

func chart(workload, kind string) string {
	return workload + "-" + strings.ReplaceAll(kind, " ", "-") + ".svg"
}

// outcome is what simulateAll found.
type outcome struct {
	table     string
	records   []record
	charts    map[string]string
	workloads []Workload
}

func (o outcome) report() string { return introduction + o.table + explanation + pictures(o.workloads) }

// simulateAll simulates all workloads. It writes how long each took to took and not into the
// report, which is the same on every machine.
func simulateAll(files []string, seed int64, took io.Writer) (outcome, error) {
	var rows [][]string
	o := outcome{charts: map[string]string{}}
	slices.Sort(files)
	for _, file := range files {
		w, err := ReadWorkload(file)
		if errors.Is(err, errNoData) {
			fmt.Fprintf(took, "skipped: %v\n", err)
			continue
		}
		if err != nil {
			return o, err
		}
		o.workloads = append(o.workloads, w)
		for _, kind := range kinds {
			began := time.Now()
			r := simulateWorkload(w, kind.create, seed)
			fmt.Fprintf(took, "%s under %s: %d requests of %d revisions in %.1f s\n", w.Name, kind.name, r.Requests, w.Revisions, time.Since(began).Seconds())
			rows = append(rows, r.row(w.Name, kind.name))
			o.records = append(o.records, r.record(w.Name, kind.name))
			o.charts[chart(w.Name, kind.name)] = plot(w.Name+" under "+kind.name, r.Curve)
		}
	}
	o.table = table(rows)
	return o, nil
}

// simulateWorkload runs all revisions of a workload on all CPUs. The result does not depend on how
// many there are.
func simulateWorkload(w Workload, create func(Workload, time.Time) scaler, seed int64) *Result {
	results := make([]*Result, w.Revisions)
	var next atomic.Int64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= w.Revisions {
					return
				}
				results[i] = simulate(w, i, create, seed)
			}
		})
	}
	all.Wait()
	sum := newResult()
	for _, r := range results {
		sum.join(r)
	}
	return sum
}
