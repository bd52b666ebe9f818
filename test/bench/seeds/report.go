package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const introduction = `# The experiments of the papers

Five documents compare request-driven platforms on Kubernetes. Do their results hold for Ebb? One command runs every experiment of
theirs that a cluster of one node can run:

` + "```sh" + `
make bench-seeds                                           # 25 minutes on two CPUs; ARGS='-scale 1' for the papers' sizes, which takes hours
make bench-seeds ARGS='-file docs/experiments/results.jsonl -experiments steady,hpa'   # some, added to the results
make bench-seeds ARGS='-report docs/experiments'           # this page and its charts, from results.jsonl
` + "```" + `

Beside each figure of Ebb stands that of the **floor**: a plain Deployment of the same program behind the same gateway, measured in the
same run, in turns with Ebb. It has no queue, no autoscaler and no scale to zero; what it answers is what the machine can do. Published
figures stand beside them as a reminder of what was asked. They come from other machines, other years and other versions (Knative 0.8
with Istio 1.1, Nuclio, OpenFaaS, Kubeless, Fission), so that only ratios and shapes compare.

`

const (
	linearShare = 0.95 // of the proportional rate counts as linear
	podTime     = 0.1  // milliseconds before and after the function
)

// writeReport writes the page and a chart for each experiment into a folder.
func writeReport(file, folder string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the results: %w", err)
	}
	all, err := parseLines(data)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	files, err := report(all)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the folder of the report: %w", err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	return nil
}

// report returns the files of the report by name.
func report(all map[string]lines) (map[string][]byte, error) {
	if len(all) == 0 {
		return nil, errors.New("the results have no experiment")
	}
	files := map[string][]byte{}
	var page strings.Builder
	page.WriteString(introduction + conditions(all) + wanted(all))
	for _, s := range sections {
		l, ran := all[s.name]
		fmt.Fprintf(&page, "## %s\n\n%s (%s)\n\n%s\n", s.name, s.question, s.source, wrap(s.how))
		switch {
		case !ran:
			page.WriteString("\nIt was not run.\n\n")
			continue
		case l.done() == nil:
			fmt.Fprintf(&page, "\nIt failed: %s\n\n", l.failure())
			continue
		}
		files[s.name+".svg"] = s.chart(l).svg()
		fmt.Fprintf(&page, "\n| | published | Ebb | floor |\n|---|---|--:|--:|\n")
		for _, f := range s.figures(l) {
			fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", f.name, f.published, f.ebb, f.floor)
		}
		fmt.Fprintf(&page, "\n![%s](%s.svg)\n\n%s\n\n", s.name, s.name, wrap(s.caption))
		if s.grid != "" {
			page.WriteString(grid(l, s.grid, s.x))
		}
		page.WriteString(wrap("*Not comparable:* "+s.apart) + "\n\n")
	}
	files["README.md"] = []byte(strings.TrimRight(page.String(), "\n") + "\n")
	return files, nil
}

// grid is the table of all cells: a row for each x, a column for each arm.
func grid(l lines, field, x string) string {
	arms := l.arms()
	var b strings.Builder
	fmt.Fprintf(&b, "| %s: %s | %s |\n|---|%s\n", unit(field), x, strings.Join(arms, " | "), strings.Repeat("--:|", len(arms)))
	for _, at := range l.xs() {
		fmt.Fprintf(&b, "| %.0f |", at)
		for _, arm := range arms {
			fmt.Fprintf(&b, " %s |", short(l.at(arm, at, field)))
		}
		b.WriteString("\n")
	}
	return b.String() + "\n"
}

// short keeps three digits, and all of a large number.
func short(f float64) string {
	if math.Abs(f) >= 1000 {
		return value("%.0f", f)
	}
	return value("%.3g", f)
}

// wrap breaks a paragraph into lines of at most 120 columns.
func wrap(paragraph string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(paragraph) {
		switch {
		case column == 0:
		case column+1+len(word) > 120:
			b.WriteString("\n")
			column = 0
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

func unit(field string) string {
	switch field {
	case "rps", "late_rps":
		return "requests a second"
	case "p99_ms":
		return "p99, ms"
	case "took_ms":
		return "ms"
	}
	return field
}

// conditions say on what the figures were measured.
func conditions(all map[string]lines) string {
	var b strings.Builder
	b.WriteString("## Conditions\n\n| Experiments | Date | Scale | CPUs | Kubernetes | Load average when they began |\n|---|---|--:|--:|---|---|\n")
	type run struct{ key, row string }
	var rows []run
	named := map[string][]string{}
	loads := map[string][]float64{}
	for _, s := range sections {
		l := all[s.name]
		done := l.done()
		if done == nil {
			continue
		}
		key := text(done, "run")
		if named[key] == nil {
			date := key
			if at, err := time.Parse(time.RFC3339, key); err == nil {
				date = at.Format("2006-01-02 15:04")
			}
			rows = append(rows, run{key, fmt.Sprintf("%s | %g | %.0f | %s", date, number(done, "scale"), number(done, "cpus"), text(done, "kubernetes"))})
		}
		named[key] = append(named[key], s.name)
		loads[key] = append(loads[key], lines{done}.values("load_before")...)
	}
	for _, r := range rows {
		busy := "—"
		if len(loads[r.key]) > 0 {
			busy = fmt.Sprintf("%.1f to %.1f", lowest(loads[r.key]), highest(loads[r.key]))
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.Join(named[r.key], ", "), r.row, busy)
	}
	b.WriteString("\n" + wrap("One machine carries Kubernetes, Istio, Ebb, the pods and the clients. A cell is the median of its rounds; Ebb and floor "+
		"take turns within a round, and the next round has the other order. Below scale 1, loads last 1.5 to 50 s instead of minutes, there are two "+
		"rounds instead of five, success-ratio and sieve have fewer requests, success-ratio has at most 25 pods, and the gaps of backoff are seconds. "+
		"The load average includes the experiment before; where it is high, other programs ran, too, and cells scatter.") + "\n\n")
	return b.String()
}

// wanted compares with what the project wants of itself.
func wanted(all map[string]lines) string {
	var b strings.Builder
	b.WriteString("## What is wanted, and what is missed\n\n| | wanted | measured | |\n|---|---|---|---|\n")
	row := func(name, want, measured, verdict string) {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, want, measured, verdict)
	}
	if l := all["success-ratio"]; l.done() != nil {
		worst := lowest(l.where("arm", "ebb").values("success_percent"))
		row("[success-ratio](#success-ratio), the lowest cell", "100.00 %", share(worst), verdict(100-worst, share))
	}
	if l := all["concurrency"]; l.done() != nil {
		got := lowestLinear(l, "ebb")
		row("[concurrency](#concurrency), the lowest rate of the proportional one", times(linearShare)+" or more",
			times(got)+", floor "+times(lowestLinear(l, "floor")), verdict(linearShare-got, times))
	}
	if l := all["breakdown"]; l.done() != nil {
		for _, part := range []string{"before", "after"} {
			got, floor := l.where("arm", "ebb").median(part+"_ms"), l.where("arm", "floor").median(part+"_ms")
			row("[breakdown](#breakdown), "+part+" the function", "less than "+value("%.1f ms", podTime),
				value("%.3f ms", got)+", floor "+value("%.3f ms", floor), verdict(got-podTime, func(f float64) string { return value("%.3f ms", f) }))
		}
	}
	return b.String() + "\n"
}

func verdict(missing float64, format func(float64) string) string {
	switch {
	case math.IsNaN(missing):
		return "not measured"
	case missing > 1e-9:
		return "**missed** by " + format(missing)
	}
	return "met"
}

func highest(all []float64) float64 {
	most := math.NaN()
	for _, f := range all {
		if !(f <= most) {
			most = f
		}
	}
	return most
}
