package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const introduction = `# What the simulator says

` + "`make simulate`" + ` writes this page: each workload of ` + "`sim/workloads`" + ` under three autoscalers, in virtual time and with the same random
numbers. *baseline* is the compatible formula on its two-second tick, told of nothing out of turn but the first request at zero;
*ebb* is what Ebb runs, the same packages; *ebb adaptive* has learning of the target switched on besides.

Wait is the time from a request's arrival until it is worked on; the time that a pod needs to start is part of it where there was
none. Pod-seconds are what it cost. Reversals count how often the scale turned from rising to falling or back. At constant load there
are those of the start alone: the first is the fall from what the requests that waited for the first pods asked for. A lesson of
*ebb adaptive* adds two, its tries with more pods and the way back to what it learned: in the workload constant the scale rises from 3
pods to 7 in second 71, is back in second 81, and then stands still to the end. A mean load that is just what a whole number of pods is for, as in
shared-processors, flips the compatible formula; a target that is learned comes with hysteresis. Any other reversal at constant load is a mistake;
a test holds that there is none once five minutes have passed.

The workload thousand is the measure of the simulator itself: a million requests over a thousand revisions, for which it may take a minute on two
processors. ` + "`go run ./sim sim/workloads/thousand.txt`" + ` tells how long it took for each autoscaler.

`

func pictures(plots map[string]string) string {
	var names []string
	for name := range plots {
		if strings.HasSuffix(name, ".svg") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "\n![%s](%s)\n", strings.TrimSuffix(name, ".svg"), name)
	}
	return b.String()
}

// simulateAll returns the table and the plots of all workloads, and tells how long each of them
// took: the report is the same wherever it is made, the time is not, so it goes elsewhere.
func simulateAll(files []string, seed int64, took io.Writer) (string, map[string]string, error) {
	var rows [][]string
	plots := map[string]string{}
	slices.Sort(files)
	for _, file := range files {
		w, err := ReadWorkload(file)
		if err != nil {
			return "", nil, err
		}
		for _, kind := range kinds {
			began := time.Now()
			r := simulateWorkload(w, kind.create, seed)
			fmt.Fprintf(took, "%s under %s: %d requests of %d revisions in %.1f s\n", w.Name, kind.name, r.Requests, w.Revisions, time.Since(began).Seconds())
			rows = append(rows, r.row(w.Name, kind.name))
			plots[fmt.Sprintf("%s-%s.svg", w.Name, strings.ReplaceAll(kind.name, " ", "-"))] = plot(w.Name+" under "+kind.name, r.Curve)
		}
	}
	return table(rows), plots, nil
}

// simulateWorkload runs all revisions of a workload, on all cores; the outcome does not depend on
// their number.
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
