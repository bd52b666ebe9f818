package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	view "ebb.dev/ebb/api/view/v1alpha1"
)

func pods(n int32) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// write writes an explanation for people.
func (x *explanation) write(w io.Writer, now time.Time) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, x.Answer)
	if x.Warning != "" {
		fmt.Fprintln(out, x.Warning)
	}
	for _, p := range x.Problems {
		fmt.Fprintf(out, "  %s: %s is %s: %s\n", p.Of, p.Type, p.Status, cmp.Or(p.Message, p.Reason, "no reason is known"))
	}
	if x.Advice != "" {
		fmt.Fprintln(out, "  "+x.Advice)
	}
	if x.Now != nil {
		fmt.Fprintln(out, "Now: "+loadText(x.Now)+".")
	}
	for _, r := range x.Revisions {
		r.write(out, now)
	}
	return out.Flush()
}

func (r *explainedRevision) write(out io.Writer, now time.Time) {
	fmt.Fprintf(out, "\n%s gets %d %% of the requests", r.Name, r.Percent)
	if len(r.Tags) > 0 {
		fmt.Fprintf(out, ", tags %s", strings.Join(r.Tags, ", "))
	}
	fmt.Fprintln(out)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(out, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	if d := r.Decision; d != nil {
		in := d.Inputs
		row("load", "stable average %s, panic average %s %s; %s queued", in["stable"], in["panic"], in["metric"], in["queued"])
		row("formula", "%s; %s", quotient("stable", in), quotient("panic", in))
		row("rule", "%s: %s", d.Rule, d.Reason)
		row("limits", "%s", cmp.Or(strings.Join(r.Limits, ", "), "none on the template"))
		if r.Advice != "" {
			row("advice", "%s", r.Advice)
		}
		row("decided", "%s ago", duration.HumanDuration(now.Sub(d.Time)))
	}
	if j := r.Judged; j != nil {
		row("judged", "in %d s: %d requests, %d failed, p99 %s", j.Seconds, j.Requests, j.Failed, optional(j.P99Ms, milliseconds))
		if j.ByTag > 0 {
			row("by a tag", "in %d s: %d requests, %d failed", j.Seconds, j.ByTag, j.ByTagFailed)
		}
	}
	sleep := ""
	if r.Levels != "" {
		sleep = " (" + r.Levels + ")"
	}
	row("pods", "%d wanted: %d ready, %d asleep%s", r.Wanted, r.Ready, r.Asleep, sleep)
	if r.Bare != "" {
		row("Deployment", "none: %s", r.Bare)
	}
	for _, n := range r.Nodes {
		row("node", "%s there, %s for %s: %s", pods(n.Pods), n.State, duration.HumanDuration(now.Sub(n.Since)), n.Reason)
	}
	if d := r.Decision; d != nil && d.Standby != "" {
		row("standby", "%s", d.Standby)
	}
	switch autoscaling.Mode(r.Path) {
	case autoscaling.ModeServe:
		row("path", "requests go from the gateway to the pods")
	case autoscaling.ModeProxy:
		row("path", "requests go through an activator, which queues those that no pod can take")
	}
	name := "history"
	for _, d := range r.History[:min(len(r.History), newestDecisions)] {
		row(name, "%s", decisionText(d, now))
		name = ""
	}
	name = "changes"
	for _, c := range r.Changes {
		row(name, "%s ago  %s: %s", duration.HumanDuration(now.Sub(c.Time)), c.Reason, c.Message)
		name = ""
	}
}

// decisionText is a run of decisions on a line.
func decisionText(d view.Decision, now time.Time) string {
	times := ""
	if d.Times > 1 {
		times = fmt.Sprintf(", %d times until %s ago", d.Times, duration.HumanDuration(now.Sub(d.Last)))
	}
	return fmt.Sprintf("%s ago%s: %s, %s: %s", duration.HumanDuration(now.Sub(d.First)), times, pods(max(d.Want, 0)), d.Rule, d.Reason)
}

// quotient is an average divided by the target, as the formula does it.
func quotient(name string, in map[string]string) string {
	average, err := strconv.ParseFloat(in[name], 64)
	target, err2 := strconv.ParseFloat(in["target"], 64)
	if err != nil || err2 != nil || target <= 0 {
		return name + " is unknown"
	}
	return fmt.Sprintf("%s %s / %s = %s", name, in[name], in["target"], pods(int32(min(math.Ceil(average/target), math.MaxInt32))))
}
