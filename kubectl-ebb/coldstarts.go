package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	view "ebb.dev/ebb/api/view/v1alpha1"
)

func (p *program) coldStartsCommand() *cobra.Command {
	last := 5
	c := &cobra.Command{
		Use:   "coldstarts SERVICE",
		Short: "Show where the time of a Service's newest cold starts went",
		Long: `Show where the time of a Service's newest cold starts went.

A cold start is a request that waited for a pod from zero. Its phases follow one another:

  decide    the request came -> the scale-up is written
  schedule  -> a node is chosen for the pod
  pull      -> its containers run: images pulled, sandbox and containers made
  start     -> the container answers
  announce  -> the activator knows
  forward   -> the response began

They are known about four seconds after the response.`,
		Example: `  kubectl ebb coldstarts hello
  kubectl ebb coldstarts hello -n shop --last 20 -o json`,
		Args:              cobra.MatchAll(cobra.ExactArgs(1)),
		ValidArgsFunction: p.completeServices,
		RunE: func(c *cobra.Command, args []string) error {
			return newest(c.Context(), p, args[0], last, func(v *view.ServiceView) []view.ColdStart { return v.ColdStarts },
				func(v *view.ServiceView, cold []view.ColdStart) error {
					return writeColdStarts(p.out, v, cold, p.now())
				})
		},
	}
	c.Flags().IntVar(&last, "last", last, "how many to show, at most 20")
	p.addOutput(c)
	return c
}

// newest writes the newest, at most last, of what the view of a Service has of a kind.
func newest[T any](ctx context.Context, p *program, service string, last int, of func(*view.ServiceView) []T, write func(*view.ServiceView, []T) error) error {
	if last < 1 {
		return fmt.Errorf("--last %d: show at least 1", last)
	}
	v, err := p.knownView(ctx, service)
	if err != nil {
		return err
	}
	all := of(v)
	all = all[:min(len(all), last)]
	if p.output != "json" {
		return write(v, all)
	}
	if all == nil {
		all = []T{}
	}
	return writeJSON(p.out, all)
}

// knownView reads the view of a Service, or says why there is none.
func (p *program) knownView(ctx context.Context, name string) (*view.ServiceView, error) {
	a, err := p.access()
	if err != nil {
		return nil, err
	}
	v, err := a.viewOf(ctx, name)
	if err == nil {
		return v, nil
	}
	if _, missing := a.ebb.ServingV1().Services(a.namespace).Get(ctx, name, metav1.GetOptions{}); missing != nil {
		return nil, a.noService(name, missing)
	}
	return nil, errors.New(strings.TrimSuffix(whyNoView(err), "."))
}

// noService says why a Service could not be read.
func (a *access) noService(name string, err error) error {
	if apierrors.IsNotFound(err) && a.installed() {
		return fmt.Errorf("there is no Service %q in the namespace %q; `kubectl ebb top -A` lists those that there are", name, a.namespace)
	}
	return a.plain(err)
}

func writeColdStarts(w io.Writer, v *view.ServiceView, cold []view.ColdStart, now time.Time) error {
	if len(cold) == 0 {
		_, err := fmt.Fprintf(w, "%s had no cold start that is remembered. The autoscaler remembers the newest 20 since it began to decide for it.\n", v.Name)
		return err
	}
	fmt.Fprintf(w, "%s: the newest cold start took %s, %s ago.\n", v.Name, milliseconds(cold[0].TotalMs), duration.HumanDuration(now.Sub(cold[0].At)))
	for _, c := range cold {
		if err := writeColdStart(w, c); err != nil {
			return err
		}
	}
	return nil
}

func writeColdStart(w io.Writer, c view.ColdStart) error {
	trace := ""
	if c.TraceID != "" {
		trace = ", trace " + c.TraceID
	}
	fmt.Fprintf(w, "\n%s  %s  pod %s%s\n", clock(c.At), milliseconds(c.TotalMs), c.Pod, trace)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, phase := range c.Phases {
		fmt.Fprintf(out, "  %s\t%s\t%s\n", phase.Name, bar(phase.StartMs, phase.DurationMs, c.TotalMs), milliseconds(phase.DurationMs))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if c.Pulled {
		fmt.Fprintln(w, "  The node did not have an image of the pod and pulled it.")
	}
	if !c.Complete {
		fmt.Fprintln(w, "  When the pod was asked for and scheduled is not known; that time is in pull.")
	}
	return nil
}

// barWidth is that of a whole cold start, in characters.
const barWidth = 50

// bar is a phase on the axis of its cold start. The shortest one has a mark.
func bar(start, took, total float64) string {
	if !(total > 0) {
		return "|" + strings.Repeat(" ", barWidth) + "|"
	}
	place := func(ms float64) int { return int(math.Round(min(max(ms/total, 0), 1) * barWidth)) }
	from, to := place(start), place(start+took)
	switch {
	case to > from:
		return "|" + strings.Repeat(" ", from) + strings.Repeat("=", to-from) + strings.Repeat(" ", barWidth-to) + "|"
	case took > 0:
		from = min(from, barWidth-1)
		return "|" + strings.Repeat(" ", from) + "." + strings.Repeat(" ", barWidth-from-1) + "|"
	}
	return "|" + strings.Repeat(" ", barWidth) + "|"
}
