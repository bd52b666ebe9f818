// Command sim plays workloads against the production decision in virtual time.
//
// Owns: a model of pods, requests and arrivals. Reads: workload files. Writes: a table, and with -out a report with plots.
// Never: imports anything of the autoscaler but its pure packages, which are the ones that run in production; the
// baseline beside them is the compatible formula written a second time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// kinds of autoscalers, in the order of the table.
var kinds = []struct {
	name string
	make func(Workload, time.Time) scaler
}{
	{"baseline", func(w Workload, now time.Time) scaler { return newPlain(w, now) }},
	{"ebb", func(w Workload, now time.Time) scaler { return newEbb(w, false, now) }},
	{"ebb adaptive", func(w Workload, now time.Time) scaler { return newEbb(w, true, now) }},
}

func run(arguments []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	out := flags.String("out", "", "folder to write the report and its plots to")
	seed := flags.Int64("seed", 1, "seed of all random numbers")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	files := flags.Args()
	if len(files) == 0 {
		var err error
		if files, err = filepath.Glob("sim/workloads/*.txt"); err != nil || len(files) == 0 {
			return errors.New("name workload files, or run in the root of the repository")
		}
	}
	report, plots, err := simulateAll(files, *seed)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, report)
	if *out == "" {
		return nil
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	plots["README.md"] = introduction + report + pictures(plots)
	for name, content := range plots {
		if err := os.WriteFile(filepath.Join(*out, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

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
