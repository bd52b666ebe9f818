package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
)

func (p *program) topCommand() *cobra.Command {
	everywhere := false
	c := &cobra.Command{
		Use:   "top",
		Short: "List the pods of Services: ready, asleep and wanted",
		Long: `List the pods of Services: ready, asleep and wanted, and the rule that decided.

A Service with several Revisions has one line, with the pods of all of them; rule and time are those
of the newest decision.`,
		Example: `  kubectl ebb top
  kubectl ebb top -A
  watch kubectl ebb top`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			a, err := p.access()
			if err != nil {
				return err
			}
			if everywhere {
				a.namespace = metav1.NamespaceAll
			}
			services, scalers, err := a.list(c.Context())
			if err != nil {
				return err
			}
			rows := summarize(services, scalers)
			if p.output == "json" {
				return writeJSON(p.out, rows)
			}
			if len(rows) == 0 && !everywhere {
				fmt.Fprintf(p.out, "There is no Service in the namespace %q.\n", a.namespace)
				return nil
			}
			return writeTop(p.out, rows, everywhere, p.now())
		},
	}
	c.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "list Services of all namespaces")
	p.addOutput(c)
	return c
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
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	line := func(namespace string, rest ...any) {
		if namespaces {
			fmt.Fprintf(out, "%s\t", namespace)
		}
		fmt.Fprintf(out, "%v\t%v\t%v\t%v\t%v\t%v\t%v\n", rest...)
	}
	line("NAMESPACE", "SERVICE", "READY", "PODS", "ASLEEP", "WANTED", "RULE", "DECIDED")
	for _, r := range rows {
		ready, decided := r.Ready, "never"
		if r.Reason != "" {
			ready += " (" + r.Reason + ")"
		}
		if !r.Decided.IsZero() {
			decided = duration.HumanDuration(now.Sub(r.Decided)) + " ago"
		}
		line(r.Namespace, r.Service, ready, r.Pods, r.Asleep, r.Wanted, cmp.Or(r.Rule, "-"), decided)
	}
	return out.Flush()
}
