package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	view "ebb.dev/ebb/api/view/v1alpha1"
)

func (p *program) callsCommand() *cobra.Command {
	last := 20
	c := &cobra.Command{
		Use:   "calls SERVICE",
		Short: "Show the records of a Service's newest requests",
		Long: `Show the records of a Service's newest requests: when each one came, how long it waited and ran, in
which pod, whether it waited for a pod to start, and what the answer was.

There are records of asynchronous calls, and with the annotation serving.ebb.dev/records: all on the
template of all requests. They are known about a second after the response. The autoscaler remembers
the newest 20.`,
		Example: `  kubectl ebb calls hello
  kubectl ebb calls hello -n shop --last 5 -o json`,
		Args:              cobra.MatchAll(cobra.ExactArgs(1)),
		ValidArgsFunction: p.completeServices,
		RunE: func(c *cobra.Command, args []string) error {
			return newest(c.Context(), p, args[0], last, func(v *view.ServiceView) []view.Call { return v.Calls },
				func(v *view.ServiceView, calls []view.Call) error { return writeCalls(p.out, v, calls) })
		},
	}
	c.Flags().IntVar(&last, "last", last, "how many to show, at most 20")
	p.addOutput(c)
	return c
}

// cell separates the cells of a row until what a client sent has no control character.
const cell = "\uE000"

func writeCalls(w io.Writer, v *view.ServiceView, calls []view.Call) error {
	if len(calls) == 0 {
		_, err := fmt.Fprintf(w, `%s has no record of a request. There are records of asynchronous calls; of all requests there are some with the
annotation serving.ebb.dev/records: all on the template.
`, v.Name)
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "CAME\tREQUEST\tSTATUS\tWAITED\tOF IT COLD\tRAN\tPOD\tCALL")
	for _, c := range calls {
		cold, status := "-", "none"
		if c.ColdMs > 0 {
			cold = milliseconds(c.ColdMs)
		}
		if c.Status > 0 {
			status = strconv.Itoa(c.Status)
		}
		id := cmp.Or(c.ID, "-")
		if c.Attempt > 1 {
			id += fmt.Sprintf(" (attempt %d)", c.Attempt)
		}
		row := strings.Join([]string{clock(c.At), c.Method + " " + c.Path, status, milliseconds(c.WaitedMs), cold, milliseconds(c.RanMs), c.Pod, id}, cell)
		fmt.Fprintln(out, strings.ReplaceAll(strings.Map(printable, row), cell, "\t"))
	}
	return out.Flush()
}
