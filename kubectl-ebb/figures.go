package main

import (
	"fmt"
	"strings"
	"time"

	view "ebb.dev/ebb/api/view/v1alpha1"
)

// loadText says how a Service does.
func loadText(n *view.Now) string {
	parts := []string{number(n.RequestsPerSecond) + " requests/s"}
	if n.P50Ms != nil && n.P99Ms != nil {
		parts = append(parts, "p50 "+milliseconds(*n.P50Ms), "p99 "+milliseconds(*n.P99Ms))
	}
	if n.SuccessRatio != nil {
		parts = append(parts, percent(*n.SuccessRatio)+" succeed")
	}
	return strings.Join(append(parts, number(n.InFlight)+" in flight", number(n.Queued)+" queued"), ", ")
}

func number(f float64) string { return fmt.Sprint(view.Rounded(f)) }

// milliseconds chooses a unit.
func milliseconds(ms float64) string {
	if ms >= 1000 {
		return number(ms/1000) + "s"
	}
	return number(ms) + "ms"
}

// percent says 100 % only if it is.
func percent(ratio float64) string {
	switch text := fmt.Sprintf("%.1f", 100*ratio); {
	case ratio < 1 && text == "100.0":
		return "99.9%"
	default:
		return strings.TrimSuffix(text, ".0") + "%"
	}
}

// optional is "-" for what is not known.
func optional(f *float64, text func(float64) string) string {
	if f == nil {
		return "-"
	}
	return text(*f)
}

// clock is a time of day as people read it beside "ago".
func clock(t time.Time) string { return t.UTC().Format("15:04:05") }
