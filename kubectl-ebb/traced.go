package main

import (
	"context"
	"fmt"
	"io"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	view "ebb.dev/ebb/api/view/v1alpha1"
)

// traced is what is known of one request, as -o json writes it. Times are milliseconds since it
// began.
type traced struct {
	Service     string          `json:"service"`
	URL         string          `json:"url,omitempty"`
	TraceID     string          `json:"traceID"`
	Began       time.Time       `json:"began"`
	Gateway     string          `json:"gateway,omitempty"`
	Status      int             `json:"status,omitempty"`
	ConnectMs   float64         `json:"connectMs,omitempty"`
	FirstByteMs float64         `json:"firstByteMs,omitempty"`
	TotalMs     float64         `json:"totalMs"`
	Modes       modes           `json:"modes,omitempty"`
	Steps       []timing        `json:"serverTiming,omitempty"`
	Cold        *view.ColdStart `json:"coldStart,omitempty"`
	Call        *view.Call      `json:"call,omitempty"`
	Note        string          `json:"note,omitempty"`
}

// timing is one entry of Server-Timing.
type timing struct {
	Name        string  `json:"name"`
	DurationMs  float64 `json:"durationMs"`
	Description string  `json:"description,omitempty"`
}

// serverTiming reads the entries of the header, and leaves out what makes no sense.
func serverTiming(values []string) (all []timing) {
	for entry := range strings.SplitSeq(strings.Map(printable, strings.Join(values, ",")), ",") {
		name, rest, _ := strings.Cut(entry, ";")
		one := timing{Name: strings.TrimSpace(name)}
		for part := range strings.SplitSeq(rest, ";") {
			key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			value = strings.Trim(strings.TrimSpace(value), `"`)
			switch strings.ToLower(strings.TrimSpace(key)) {
			case "dur":
				one.DurationMs, _ = strconv.ParseFloat(value, 64)
			case "desc":
				one.Description = value
			}
		}
		if one.Name != "" && one.DurationMs >= 0 && len(all) < 32 {
			all = append(all, one)
		}
	}
	return all
}

// printable drops what could control a terminal: the header is the container's word.
func printable(r rune) rune {
	if unicode.IsControl(r) {
		return -1
	}
	return r
}

// stopwatch notes when the steps of a request happened.
type stopwatch struct {
	began, connected, firstByte time.Time
	address                     string
}

func (s *stopwatch) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(i httptrace.GotConnInfo) { s.connected, s.address = time.Now(), i.Conn.RemoteAddr().String() },
		GotFirstResponseByte: func() { s.firstByte = time.Now() },
	})
}

func since(began, at time.Time) float64 {
	return view.Rounded(float64(at.Sub(began)) / float64(time.Millisecond))
}

// maxBody is how much of a response is read.
const maxBody = 64 << 20

func discard(body io.ReadCloser) error {
	defer body.Close()
	_, err := io.Copy(io.Discard, io.LimitReader(body, maxBody))
	return err
}

// write tells who had the request, from the client on.
func (t *traced) write(w io.Writer) error {
	if t.Status == 0 && t.Cold == nil {
		fmt.Fprintf(w, "%s: the request with trace id %s got %d.\n  %s\n", t.Service, t.TraceID, t.Call.Status, inPod(t.Call))
		return nil
	}
	if t.Status == 0 {
		fmt.Fprintf(w, "%s: the request with trace id %s waited for a pod from zero.\n", t.Service, t.TraceID)
		return writeColdStart(w, *t.Cold)
	}
	fmt.Fprintf(w, "%s answered %d after %s.\n\n", t.Service, t.Status, milliseconds(t.TotalMs))
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(who, when, why string) { fmt.Fprintf(out, "  %s\t%s\t%s\n", who, when, why) }
	row("client", clock(t.Began), "GET "+t.URL+", trace "+t.TraceID)
	row("gateway", "after "+milliseconds(t.ConnectMs), "connected to "+t.Gateway)
	for _, m := range t.Modes {
		row("path", "", m.text())
	}
	if c := t.Cold; c != nil {
		row("activator", "for "+milliseconds(c.TotalMs), "it held the request until a pod could take it: "+longest(c))
		if t.Call == nil {
			row("pod", "", c.Pod+" of "+c.Revision)
		}
	}
	if waited := t.before(); waited >= shortWait {
		why := "between the gateway and the pod"
		if slices.ContainsFunc(t.Modes, func(m mode) bool { return autoscaling.Mode(m.Mode) == autoscaling.ModeProxy }) {
			why += ", where an activator holds requests while the pods are full"
		}
		row("queue", "for "+milliseconds(waited), why)
	}
	if c := t.Call; c != nil {
		row("pod", "for "+milliseconds(c.WaitedMs+c.RanMs), inPod(c))
	}
	for _, s := range t.Steps {
		row(s.Name, "for "+milliseconds(s.DurationMs), strings.TrimSpace(s.Description+" (the response's Server-Timing)"))
	}
	row("response", "after "+milliseconds(t.FirstByteMs), fmt.Sprintf("its first byte; its last after %s", milliseconds(t.TotalMs)))
	if err := out.Flush(); err != nil {
		return err
	}
	if t.Note != "" {
		fmt.Fprintln(w, t.Note)
	}
	if t.Cold == nil {
		return nil
	}
	return writeColdStart(w, *t.Cold)
}

// shortWait is what a request waits before the pod that did not wait for it, in milliseconds.
const shortWait = 20

// before is how long a warm request was under way to its pod, in milliseconds.
func (t *traced) before() float64 {
	if t.Call == nil || t.Cold != nil {
		return 0
	}
	return t.TotalMs - t.ConnectMs - t.Call.WaitedMs - t.Call.RanMs
}

// inPod tells of a request in its pod.
func inPod(c *view.Call) string {
	return fmt.Sprintf("%s of %s: it waited there for %s, and ran for %s", c.Pod, c.Revision, milliseconds(c.WaitedMs), milliseconds(c.RanMs))
}

// longest names the phase that took the most time.
func longest(c *view.ColdStart) string {
	var most view.Phase
	for _, p := range c.Phases {
		if p.DurationMs > most.DurationMs {
			most = p
		}
	}
	return fmt.Sprintf("most of the time was %s, %s", most.Name, milliseconds(most.DurationMs))
}
