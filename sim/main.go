// Command sim runs workloads against the production decision in virtual time.
//
// Owns: a model of pods, requests, arrivals, the activator's reports and the pods' stats. Reads:
// workload files. Writes: a table, and with -out a report with charts; with -rollouts a report of
// judged rollouts. Never: imports more than the pure packages. The baseline next to them is the
// compatible formula, implemented a second time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ebb.dev/ebb/judge"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// kind is one of the autoscalers.
type kind struct {
	name   string
	create func(Workload, time.Time) scaler
}

// kinds are those that every workload is run under, in the order of the table.
var kinds = []kind{
	{"baseline", func(w Workload, now time.Time) scaler { return newPlain(w, now) }},
	{"ebb", func(w Workload, now time.Time) scaler { return newEbb(w, features{}, now) }},
	{"ebb-adaptive", func(w Workload, now time.Time) scaler { return newEbb(w, features{adaptive: true}, now) }},
	{"ebb-standby", func(w Workload, now time.Time) scaler { return newEbb(w, features{standby: true}, now) }},
	{"keepalive-10m", func(w Workload, now time.Time) scaler { return newKeepAlive(w, now) }},
	{"hybrid-histogram", func(w Workload, now time.Time) scaler { return newHybrid(w, now) }},
}

// kindsOf are those that a workload is run under. Only one that has metrics is scaled by them.
func kindsOf(w Workload) []kind {
	if len(w.Metrics) == 0 {
		return kinds
	}
	return append(slices.Clip(kinds), kind{"ebb-metrics", func(w Workload, now time.Time) scaler { return newEbb(w, features{metrics: true}, now) }})
}

func run(arguments []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	asJSON := flags.String("json", "", "file to write the results to, as an array of objects")
	out := flags.String("out", "", "folder to write the report and its charts to")
	rolled := flags.Int("rollouts", 0, "simulate so many judged rollouts of each kind instead of workloads")
	seed := flags.Int64("seed", 1, "seed of all random numbers")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *rolled > 0 {
		g, err := judge.Parse("on")
		if err == nil {
			_, err = io.WriteString(stdout, rolloutPage(simulateRollouts(*rolled, g, *seed), g))
		}
		return err
	}
	files := flags.Args()
	if len(files) == 0 {
		var err error
		if files, err = filepath.Glob("sim/workloads/*.txt"); err != nil || len(files) == 0 {
			return errors.New("name workload files, or run in the root of the repository")
		}
	}
	o, err := simulateAll(files, *seed, stderr)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, o.table)
	if *asJSON != "" {
		if err := writeJSON(*asJSON, o.records); err != nil {
			return err
		}
	}
	if *out == "" {
		return nil
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	o.charts["README.md"] = o.report()
	for name, content := range o.charts {
		if err := os.WriteFile(filepath.Join(*out, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
