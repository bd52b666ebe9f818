// Command seeds runs the experiments that five papers about request-driven platforms report, on Ebb
// and, in the same run, on a plain Deployment of the same image behind the same gateway, the floor.
// It prints JSON lines; with -report it writes docs/experiments from them.
//
// Owns: a namespace for each experiment, deleted after it. Reads: pods, responses, and for
// breakdown the packets of one pod. Writes: Services, Deployments, the file of JSON lines, the
// report. Never: asserts a figure.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

type options struct {
	experiments []string
	scale       float64
	image       string
	words       string
	file        string
	report      string
}

func main() {
	var o options
	var list string
	flag.StringVar(&list, "experiments", strings.Join(names(), ","), "experiments to run, separated by commas")
	flag.Float64Var(&o.scale, "scale", 0.05, "size of the experiments; 1 is the papers' size, which takes hours")
	flag.StringVar(&o.image, "image", "dev.local/ebb-test/autoscale:dev", "the test image autoscale")
	flag.StringVar(&o.words, "words", "dev.local/ebb-test/words:dev", "the test image words")
	flag.StringVar(&o.file, "file", "", "a file that the lines are added to; with -report, the file that they are read from")
	flag.StringVar(&o.report, "report", "", "run nothing, and write the report of -file, by default results.jsonl in it, to this folder")
	flag.Parse()
	o.experiments = strings.Split(list, ",")
	trial.Main("seeds", func(ctx context.Context) error { return start(ctx, o) })
}

func start(ctx context.Context, o options) error {
	if o.report != "" {
		if o.file == "" {
			o.file = filepath.Join(o.report, "results.jsonl")
		}
		return writeReport(o.file, o.report)
	}
	if o.scale <= 0 || o.scale > 1 {
		return fmt.Errorf("-scale %g: want more than 0, and at most 1", o.scale)
	}
	if err := known(o.experiments); err != nil {
		return err
	}
	var printed bytes.Buffer
	out := io.MultiWriter(os.Stdout, &printed)
	if o.file != "" {
		file, err := os.OpenFile(o.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("open the file of results: %w", err)
		}
		defer file.Close()
		out = io.MultiWriter(out, file)
	}
	c, err := cluster.Connect(ctx)
	if err != nil {
		return err
	}
	failed := run(ctx, c, o, &result.Printer{Bench: "seeds", Out: out})
	all, err := parseLines(printed.Bytes())
	fmt.Fprint(os.Stderr, wanted(all))
	return errors.Join(failed, err)
}
