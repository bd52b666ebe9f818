package decide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// loads are the commands of the scenario files in which averages come out of what is reported.
//
//	resolve [rps] cc=N annotation=X utilization=X percentage=X
//	                                               the target, of the ConfigMap's defaults 100 (70 %) and 200 requests/s
//	series window=10s panic=2s [exponential] [unscraped]
//	                                               windows that have seen nothing; unscraped: only activators report
//	say 0s..9s pods=X a=X b=X [rps]                what the scrape of all pods and activators say in each of these seconds
//	miss 3s..4s                                    a scrape that failed
//	tick 9s ready=N                                decide by the averages of that moment
//	begin scale=N                                  the excess burst before there is a decision
//	activators ready=N                             how many of them belong into the path
type loads struct {
	series    *Series
	algorithm window.Algorithm
	unscraped bool
}

func (l *loads) play(t *testing.T, words []string, c *Config, s *State, out *strings.Builder) {
	t.Helper()
	arguments, flags := parse(t, words[1:])
	seconds := func() (from, to time.Duration) {
		first, last, several := strings.Cut(words[1], "..")
		if !several {
			last = first
		}
		from, err1 := time.ParseDuration(first)
		to, err2 := time.ParseDuration(last)
		if err1 != nil || err2 != nil {
			t.Fatalf("%q are no seconds", words[1])
		}
		return from, to
	}
	switch words[0] {
	case "resolve":
		in := TargetInput{ContainerConcurrency: arguments["cc"], Annotation: arguments["annotation"], UtilizationAnnotation: arguments["utilization"],
			ConcurrencyDefault: 100, ConcurrencyUtilization: cmp.Or(arguments["percentage"], 0.7), RequestsPerSecondDefault: 200}
		c.Metric = Concurrency
		if flags["rps"] {
			in.Metric, c.Metric = RequestsPerSecond, RequestsPerSecond
		}
		c.Total, c.Target = Target(in)
		fmt.Fprintf(out, "%s of %s in a pod\n", number(c.Target), number(c.Total))
	case "series":
		c.StableWindow = time.Duration(arguments["window"] * float64(time.Second))
		l.series = NewSeries(c.StableWindow, time.Duration(arguments["panic"]*float64(time.Second)))
		l.algorithm, l.unscraped = window.Linear, flags["unscraped"]
		if flags["exponential"] {
			l.algorithm = window.WeightedExponential
		}
	case "say":
		from, to := seconds()
		for at := from; at <= to; at += time.Second {
			for _, who := range slices.Sorted(maps.Keys(arguments)) {
				reporter, report := who, Report{Concurrency: arguments[who]}
				if flags["rps"] {
					report = Report{RequestsPerSecond: arguments[who]}
				}
				if who == "pods" {
					reporter = ScrapeReporter
				}
				if !l.series.Add(epoch.Add(at), reporter, report) {
					fmt.Fprintf(out, "%s: %s is not taken\n", at, who)
				}
			}
		}
	case "miss":
		from, to := seconds()
		for at := from; at <= to; at += time.Second {
			l.series.Miss(epoch.Add(at))
		}
	case "tick":
		at, _ := seconds()
		var d Decision
		d, *s = Decide(*c, *s, l.series.Observe(epoch.Add(at), c.Metric, l.algorithm, int32(arguments["ready"]), !l.unscraped), epoch.Add(at))
		tell(out, words[1], d)
	case "begin":
		fmt.Fprintf(out, "excess %v before the first decision\n", InitialExcessBurst(*c, int32(arguments["scale"])))
	case "activators":
		fmt.Fprintf(out, "%d activators\n", Activators(*c, int32(arguments["ready"])))
	default:
		t.Fatalf("unknown command %q", strings.Join(words, " "))
	}
}
