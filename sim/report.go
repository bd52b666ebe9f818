package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const introduction = `# Simulated workloads

What would an autoscaler do with this load? ` + "`make simulate`" + ` plays each file of ` + "`sim/workloads`" + ` in virtual time
under several of them and writes this page. The code of *ebb* is the autoscaler's own (` + "`autoscaler/revision`" + `); pods and
requests are a model.

| Autoscaler | What it is |
|---|---|
| *baseline* | the compatible formula, written a second time: it decides every two seconds, and hears of nothing in between but the first request at zero |
| *ebb* | what Ebb does by default |
| *ebb-adaptive* | with ` + "`autoscaling.ebb.dev/target: auto`" + ` |
| *ebb-standby* | with ` + "`autoscaling.ebb.dev/standby: auto`" + ` |
| *ebb-metrics* | with ` + "`autoscaling.ebb.dev/metrics`" + `, for the workload whose pods tell their load (llm) |
| *keepalive-10m* | *baseline*, with pods that stay for 10 minutes after they were wanted |
| *hybrid-histogram* | *baseline*, with the policy of Shahrad et al. (USENIX ATC 2020) |

## Summary

`

const lessons = `
- Where load changes suddenly (bursty, ramp), requests wait less under *ebb*, because it hears of a queue at once.
- Where the configured target is wrong (nine-outstanding), only *ebb-adaptive* corrects it.
- Where requests in flight do not tell the load (llm), only a metric that the pods tell does.
- Under slow or constant load *baseline* and *ebb* do the same, after the start.

Where *ebb* costs more than *baseline*, it is for this reason:

- bursty: *ebb* wants 29 pods when the queue forms, one to two seconds before the baseline's windows show it. The pods run
  that much longer in each of the three bursts, and answer 6 % more requests.
- constant: the load begins with 400 requests a second and no pod. The queue of the first two seconds needs 41 pods, which
  panic mode keeps for one window of 60 s. The baseline's averages show only a part of that queue. After that the two do the
  same.
- slow-single: pods take 20 s to start, so the current queue needs more pods than the average shows. Waits are a fifth shorter.
- shared-processors: the load is that of a whole number of pods, and more decisions follow more of its noise.

In thousand, where a thousand revisions go from zero to a few pods and back three times, *ebb* costs no more than *baseline*.

A request that waits in a pod stays there when more pods come. That is the tail of llm under *ebb-metrics*. In an hour of
prompts to a public cloud (` + "`sim/workloads/day/llm-2023.txt`" + `), where a minute has from 1 to 585 of them, half of the prompts
do not wait at all under *ebb-metrics* and 11 s under *ebb*, for 4.3 times the pod-seconds; the slowest hundredth waits for
140 and 147 s. With ` + "`containerConcurrency: 4`" + ` prompts wait in Ebb instead and take the next free pod: the slowest hundredth
waits for 19 s, for ten times the pod-seconds.

While *ebb-adaptive* learns, it adds pods for some seconds and then removes them, which is two reversals. In
shared-processors the mean load is exactly the capacity of a whole number of pods, so the compatible formula follows the
noise. A learned target has hysteresis: a test checks that nothing changes the scale after the first five minutes.

`

const tableHead = `## All results

- *Wait* is the time from a request's arrival until a pod works on it. It includes the start of a pod if there was none.
- *Pod-seconds* are the cost: the time of each pod from the scale write to its termination.
- *Reversals* count how often the scale changed from rising to falling or back.
- An open load (` + "`rate`" + `) has the same arrivals and the same work under every autoscaler. A closed load (` + "`outstanding`" + `) sends
  a request when one ends, so faster answers mean more requests.

These workloads last minutes. What standby is worth shows in traces of hours, and ` + "`go run ./sim FILE...`" + ` takes traces, too:
` + "`sim/workloads/day`" + ` has those of public clouds whose data is not in the repository. The workload thousand also measures the
simulator: a million requests over a thousand revisions should take less than a minute on two CPUs.

`

// outcome is what simulateAll found.
type outcome struct {
	table     string
	records   []record
	charts    map[string]string
	workloads []Workload
	results   []map[string]*Result // of each workload, by autoscaler
}

func (o outcome) report() string {
	return introduction + o.summary() + lessons + o.pictures() + tableHead + o.table
}

// summary compares the default with the baseline, a row for each workload, and names an option that
// answers much sooner.
func (o outcome) summary() string {
	var b strings.Builder
	b.WriteString("| Workload | Wait p99: baseline | ebb | Response p99: baseline | ebb | Pod-seconds of ebb | Better yet |\n|---|--:|--:|--:|--:|--:|---|\n")
	for i, w := range o.workloads {
		plain, ours := o.results[i]["baseline"], o.results[i]["ebb"]
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s | %s | %s | %s |\n", w.Name, w.Name,
			milliseconds(plain.waits.quantile(0.99)), milliseconds(ours.waits.quantile(0.99)),
			milliseconds(plain.responses.quantile(0.99)), milliseconds(ours.responses.quantile(0.99)), than(ours, plain), o.option(i))
	}
	return b.String()
}

// worthwhile is the shortest wait that is worth an option.
const worthwhile = 10 * time.Millisecond

// option names the feature of Ebb with which the slowest hundredth of the requests waits for two
// thirds of the time or less, at the least cost.
func (o outcome) option(i int) string {
	var best string
	ours := o.results[i]["ebb"]
	wait := ours.waits.quantile(0.99)
	if wait < worthwhile {
		return ""
	}
	for _, k := range kindsOf(o.workloads[i]) {
		r := o.results[i][k.name]
		if strings.HasPrefix(k.name, "ebb-") && r.waits.quantile(0.99) <= wait*2/3 &&
			(best == "" || r.PodSeconds < o.results[i][best].PodSeconds) {
			best = k.name
		}
	}
	if best == "" {
		return ""
	}
	r := o.results[i][best]
	return fmt.Sprintf("*%s*: waits p99 %s, pod-seconds %s", best, milliseconds(r.waits.quantile(0.99)), than(r, ours))
}

// than is how much more pod-seconds a result has than another, in percent.
func than(r, other *Result) string {
	return fmt.Sprintf("%+.0f %%", math.Round(100*(r.PodSeconds/other.PodSeconds-1))+0)
}

// pictures returns the figures, each with a caption.
func (o outcome) pictures() string {
	var b strings.Builder
	b.WriteString("## Charts\n\nAll panels of a figure have the same axes.\n")
	for i, w := range o.workloads {
		plain, ours := o.results[i]["baseline"], o.results[i]["ebb"]
		fmt.Fprintf(&b, "\n### %s\n\n%s.\n\n![%s](%s)\n\n", w.Name, sentence(w.About), w.Name, chart(w.Name))
		if w.Shows != "" {
			fmt.Fprintf(&b, "What to see: %s.\n", w.Shows)
		}
		fmt.Fprintf(&b, "Requests wait for %s at most in 99 %% of the cases under *ebb*, %s under *baseline*, with %s pod-seconds.\n",
			milliseconds(ours.waits.quantile(0.99)), milliseconds(plain.waits.quantile(0.99)), than(ours, plain))
	}
	return b.String() + "\n"
}

// sentence begins with a capital.
func sentence(s string) string {
	n := min(1, len(s))
	return strings.ToUpper(s[:n]) + s[n:]
}

func chart(workload string) string { return workload + ".svg" }

// simulateAll simulates all workloads. It writes how long each took to took and not into the
// report, which is the same on every machine.
func simulateAll(files []string, seed int64, took io.Writer) (outcome, error) {
	var rows [][]string
	o := outcome{charts: map[string]string{}}
	slices.Sort(files)
	for _, file := range files {
		w, err := ReadWorkload(file)
		if errors.Is(err, errNoData) {
			fmt.Fprintf(took, "%s: skipped: %v\n", file, err)
			continue
		}
		if err != nil {
			return o, err
		}
		results := map[string]*Result{}
		var panels []panel
		for _, kind := range kindsOf(w) {
			began := time.Now()
			r := simulateWorkload(w, kind.create, seed)
			fmt.Fprintf(took, "%s under %s: %d requests of %d revisions in %.1f s\n", w.Name, kind.name, r.Requests, w.Revisions, time.Since(began).Seconds())
			rows = append(rows, r.row(w.Name, kind.name))
			o.records = append(o.records, r.record(w.Name, kind.name))
			results[kind.name] = r
			panels = append(panels, panel{kind.name, r.Curve})
		}
		o.workloads, o.results = append(o.workloads, w), append(o.results, results)
		o.charts[chart(w.Name)] = figure(panels)
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
