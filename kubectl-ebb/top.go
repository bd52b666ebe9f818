package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
	view "ebb.dev/ebb/api/view/v1alpha1"
)

func (p *program) topCommand() *cobra.Command {
	everywhere, live := false, false
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the load of Services, and their pods: awake, asleep and wanted",
		Long: `Show the load of Services, and their pods: awake, asleep and wanted.

RPS is requests per second, P50 and P99 are latencies, SUCCESS is the share of statuses below 500,
all over the last ten seconds. INFLIGHT requests are in pods and activators, QUEUED ones wait for a
pod. A Service with several Revisions has one line; rule and time are those of the newest decision.

The figures come from the API view.ebb.dev. Without it, the pods are those that the PodAutoscalers
tell of, and the load is not known.`,
		Example: `  kubectl ebb top
  kubectl ebb top -A
  kubectl ebb top -w            # refreshes itself, until Ctrl-C`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			a, err := p.access()
			if err != nil {
				return err
			}
			if everywhere {
				a.namespace = metav1.NamespaceAll
			}
			if live && p.output == "" && terminal(p.out) {
				return p.refresh(c.Context(), a, everywhere)
			}
			return p.top(c.Context(), a, p.out, everywhere)
		},
	}
	c.Flags().BoolVarP(&live, "watch", "w", false, "refresh the table every two seconds; without a terminal it is shown once")
	c.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "list Services of all namespaces")
	p.addOutput(c)
	return c
}

// top shows the table once.
func (p *program) top(ctx context.Context, a *access, out io.Writer, everywhere bool) error {
	services, scalers, err := a.list(ctx)
	if err != nil {
		return err
	}
	rows := summarize(services, scalers)
	views, err := a.views(ctx)
	measure(rows, views)
	if p.output == "json" {
		return writeJSON(out, rows)
	}
	if err != nil {
		fmt.Fprintln(out, whyNoView(err)+" The load is not known.")
	}
	if len(rows) == 0 && !everywhere {
		fmt.Fprintf(out, "There is no Service in the namespace %q.\n", a.namespace)
		return nil
	}
	return writeTop(out, rows, everywhere, p.now())
}

// refreshEvery is how often a table that refreshes itself is read anew.
const refreshEvery = 2 * time.Second

// refresh shows the table in the place of the one before, until ctx ends. What fails once is shown
// and tried again.
func (p *program) refresh(ctx context.Context, a *access, everywhere bool) error {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		var page bytes.Buffer
		if err := p.top(ctx, a, &page, everywhere); err != nil {
			fmt.Fprintln(&page, "error:", err)
		}
		// Home, the page with the rest of each line cleared, and what is below it.
		text := strings.ReplaceAll(page.String(), "\n", "\x1b[K\n")
		if _, err := fmt.Fprintf(p.out, "\x1b[H%s\x1b[J", text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// terminal reports whether a person looks at the output.
func terminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// measure adds what the API tells.
func measure(rows []summary, views []view.ServiceView) {
	known := map[[2]string]*view.Now{}
	for i := range views {
		known[[2]string{views[i].Namespace, views[i].Name}] = &views[i].Now
	}
	for i := range rows {
		n := known[[2]string{rows[i].Namespace, rows[i].Service}]
		if rows[i].Now = n; n != nil {
			rows[i].Pods, rows[i].Asleep, rows[i].Wanted = n.Replicas.Ready, n.Replicas.Asleep, n.Replicas.Wanted
		}
	}
}

// list reads the Services and PodAutoscalers of a namespace.
func (a *access) list(ctx context.Context) ([]serving.Service, []autoscaling.PodAutoscaler, error) {
	services, err := a.ebb.ServingV1().Services(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, a.plain(err)
	}
	scalers, err := a.ebb.AutoscalingV1alpha1().PodAutoscalers(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, a.plain(err)
	}
	return services.Items, scalers.Items, nil
}

// summary is one Service in `top`.
type summary struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Ready is the condition: True, False or Unknown. Reason says why, if it is not True.
	Ready   string    `json:"ready"`
	Reason  string    `json:"reason,omitempty"`
	Pods    int32     `json:"readyPods"`
	Asleep  int32     `json:"asleepPods"`
	Wanted  int32     `json:"wantedPods"`
	Rule    string    `json:"rule,omitempty"`
	Decided time.Time `json:"decided,omitzero"`
	// Now is absent if the API does not tell of the Service.
	Now *view.Now `json:"now,omitempty"`
}

// summarize makes one summary of each Service, by namespace and name.
func summarize(services []serving.Service, scalers []autoscaling.PodAutoscaler) []summary {
	rows := make([]summary, 0, len(services))
	index := map[[2]string]int{}
	for _, s := range services {
		row := summary{Namespace: s.Namespace, Service: s.Name, Ready: "Unknown"}
		if c := s.Status.GetCondition(apis.ConditionReady); c != nil {
			row.Ready, row.Reason = string(c.Status), c.Reason
		}
		index[[2]string{s.Namespace, s.Name}] = len(rows)
		rows = append(rows, row)
	}
	for _, pa := range scalers {
		i, ok := index[[2]string{pa.Namespace, pa.Labels[names.ServiceLabel]}]
		if !ok {
			continue
		}
		row, status := &rows[i], &pa.Status
		row.Pods += ptr.Deref(status.ActualScale, 0)
		row.Wanted += ptr.Deref(status.DesiredScale, 0)
		row.Asleep += ptr.Deref(status.AsleepReplicas, 0)
		if d := status.Decision; d != nil && d.Time.After(row.Decided) {
			row.Rule, row.Decided = d.Rule, d.Time.UTC()
		}
	}
	slices.SortFunc(rows, func(a, b summary) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service))
	})
	return rows
}

func writeTop(w io.Writer, rows []summary, namespaces bool, now time.Time) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(namespace string, rest ...any) {
		if namespaces {
			fmt.Fprintf(out, "%s\t", namespace)
		}
		fmt.Fprintf(out, strings.Repeat("%v\t", len(rest)-1)+"%v\n", rest...)
	}
	line("NAMESPACE", "SERVICE", "READY", "RPS", "P50", "P99", "SUCCESS", "INFLIGHT", "QUEUED", "AWAKE", "ASLEEP", "WANTED", "RULE", "DECIDED")
	for _, r := range rows {
		ready, decided := r.Ready, "never"
		if r.Reason != "" {
			ready += " (" + r.Reason + ")"
		}
		if !r.Decided.IsZero() {
			decided = duration.HumanDuration(now.Sub(r.Decided)) + " ago"
		}
		rps, p50, p99, success, inFlight, queued := "-", "-", "-", "-", "-", "-"
		if n := r.Now; n != nil {
			rps, inFlight, queued = number(n.RequestsPerSecond), number(n.InFlight), number(n.Queued)
			p50, p99, success = optional(n.P50Ms, milliseconds), optional(n.P99Ms, milliseconds), optional(n.SuccessRatio, percent)
		}
		line(r.Namespace, r.Service, ready, rps, p50, p99, success, inFlight, queued, r.Pods, r.Asleep, r.Wanted, cmp.Or(r.Rule, "-"), decided)
	}
	return out.Flush()
}
