package decide

import (
	"fmt"
	"strings"
)

// Rule names the step that brought a decision to its final value.
type Rule uint8

// The rules, as they appear in metrics, in the PodAutoscaler's status and at the decisions
// endpoint.
const (
	RuleNoData Rule = iota
	RuleStable
	RuleHysteresis
	RulePanic
	RuleBurst
	RulePanicHold
	RuleQueue
	RuleMaxScaleUpRate
	RuleMaxScaleDownRate
	RuleActivationScale
	RuleScaleDownDelay
	RuleWarmUp
	RuleInFlight
	RuleMissingMetric
	RuleMissingData
	RuleBetweenTicks
	ruleCount
)

var ruleNames = [ruleCount]string{"no-data", "stable-window", "hysteresis", "panic-window", "burst", "panic-hold", "queue",
	"max-scale-up-rate", "max-scale-down-rate", "activation-scale", "scale-down-delay", "warm-up", "in-flight", "missing-metric", "missing-data", "between-ticks"}

func (r Rule) String() string {
	if r < ruleCount {
		return ruleNames[r]
	}
	return "unknown"
}

// Reason explains the decision in one sentence.
func (d Decision) Reason() string {
	var b strings.Builder
	o := d.Observation
	quotient := func(name string, value float64, of Deciding, raw int32) {
		fmt.Fprintf(&b, "%s average %s %s / target %s = %s", name, number(value), of.Metric, number(of.Target), countPods(raw))
	}
	average := func(name string, value float64, raw int32) { quotient(name, value, d.by(0), raw) }
	switch d.Rule {
	case RuleNoData:
		return "nothing is known about the load, so the last decision stands"
	case RuleStable:
		by := d.by(d.StableBy)
		quotient("stable", by.Stable, by, d.StableRaw)
	case RuleHysteresis:
		average("stable", o.Stable, d.StableRaw)
		fmt.Fprintf(&b, ", but noise may make a constant load that asks for %s as little as %s, so they stay", countPods(d.Held), number(leastFor(d.Held, d.Target)))
	case RulePanic:
		by := d.by(d.PanicBy)
		quotient("panic", by.Panic, by, d.PanicRaw)
		fmt.Fprintf(&b, " with %d ready", o.Ready)
	case RuleBurst:
		switch {
		case o.Queued > 0:
			fmt.Fprintf(&b, "%s waiting with %s ready; target %s asks for %s", countRequests(o.Queued), countPods(o.Ready), number(d.Target), countPods(d.BurstRaw))
		case o.Pushed:
			fmt.Fprintf(&b, "pushed at this moment: %s %s / target %s = %s", number(o.Burst), d.Metric, number(d.Target), countPods(d.BurstRaw))
		default:
			average("last second's", o.Burst, d.BurstRaw)
		}
	case RulePanicHold:
		fmt.Fprintf(&b, "load was above the panic threshold %s s ago, which holds the %s decided since (the windows ask for %d)",
			number(d.PanicSeconds), countPods(d.Held), max(d.StableRaw, d.PanicRaw, d.BurstRaw))
	case RuleQueue:
		fmt.Fprintf(&b, "%s waiting and no pod ready; target %s asks for %s", countRequests(o.Queued), number(d.Target), countPods(max(d.BurstRaw, 1)))
	case RuleMaxScaleUpRate:
		fmt.Fprintf(&b, "the load asks for %d, max-scale-up-rate allows %s for %d ready", max(d.StableRaw, d.PanicRaw, d.BurstRaw), countPods(d.High), o.Ready)
	case RuleMaxScaleDownRate:
		fmt.Fprintf(&b, "the load asks for %d, max-scale-down-rate keeps %s of %d ready", d.StableRaw, countPods(d.Low), o.Ready)
	case RuleActivationScale:
		fmt.Fprintf(&b, "any load asks for at least activation-scale %d (the windows ask for %d)", d.Desired, max(d.StableRaw, d.PanicRaw, d.BurstRaw))
	case RuleScaleDownDelay:
		fmt.Fprintf(&b, "scale-down-delay holds the highest of its window, %s (the windows ask for %d)", countPods(d.Held), d.StableRaw)
	case RuleWarmUp:
		fmt.Fprintf(&b, "this autoscaler has not yet seen a whole stable window and keeps the %s it found (the windows ask for %d)", countPods(d.Held), d.StableRaw)
	case RuleInFlight:
		fmt.Fprintf(&b, "requests are in flight, on average %s, which keeps 1 pod (the windows ask for %d)", number(o.InFlight), d.StableRaw)
	case RuleMissingData:
		if !o.Missing && o.Known {
			fmt.Fprintf(&b, "an activator is silent and the pods are full, so that requests may wait in it, which never lowers the scale below %d (what is seen asks for %d)", d.Held, d.StableRaw)
			break
		}
		fmt.Fprintf(&b, "the newest load data is missing, which never lowers the scale below %d (older data asks for %d)", d.Held, d.StableRaw)
	case RuleMissingMetric:
		fmt.Fprintf(&b, "fewer than half of the pods tell %s, which never lowers the scale below %d (what is known asks for %d)", o.unknown().Name, d.Held, d.StableRaw)
	case RuleBetweenTicks:
		fmt.Fprintf(&b, "the windows ask for %d, but only a tick lowers the scale from %d", d.StableRaw, d.Held)
	}
	d.aside(&b)
	return b.String()
}

// aside says what else a reader has to know of the numbers.
func (d Decision) aside(b *strings.Builder) {
	for i := range d.Observation.Others {
		l := &d.Observation.Others[i]
		if !l.Known && d.Rule != RuleMissingMetric {
			fmt.Fprintf(b, "; fewer than half of the pods tell %s", l.Name)
		}
		if l.Bounded > 0 {
			fmt.Fprintf(b, "; of %s, %s told more than one pod may ask for, which counts as that", l.Name, countPods(int32(l.Bounded)))
		}
	}
	if d.Learned != "" {
		b.WriteString("; " + d.Learned)
	}
}

func countRequests(n float64) string {
	if n == 1 {
		return "1 request"
	}
	return number(n) + " requests"
}

func countPods(n int32) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// number prints a figure with at most three significant decimals and no trailing zeros.
func number(f float64) string {
	s := fmt.Sprintf("%.3f", f)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}
