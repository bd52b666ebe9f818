package main

import (
	"fmt"
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
none. Pod-seconds are what it cost. Reversals count how often the scale turned from rising to falling or back: at constant load
there should be none.

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

// simulateAll returns the table and the plots of all workloads.
func simulateAll(files []string, seed int64) (string, map[string]string, error) {
	var rows [][]string
	plots := map[string]string{}
	slices.Sort(files)
	for _, file := range files {
		w, err := ReadWorkload(file)
		if err != nil {
			return "", nil, err
		}
		for _, kind := range kinds {
			r := simulateWorkload(w, kind.make, seed)
			rows = append(rows, r.row(w.Name, kind.name))
			plots[fmt.Sprintf("%s-%s.svg", w.Name, strings.ReplaceAll(kind.name, " ", "-"))] = plot(w.Name+" under "+kind.name, r.Curve)
		}
	}
	return table(rows), plots, nil
}

// simulateWorkload runs all revisions of a workload, on all cores; the outcome does not depend on their number.
func simulateWorkload(w Workload, make1 func(Workload, time.Time) scaler, seed int64) *Result {
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
				results[i] = simulate(w, i, make1, seed)
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
