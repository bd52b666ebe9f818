package main

import (
	"fmt"
	"math"
	"slices"
)

// Formats of a value with its unit; a value that is not there is a dash.

func value(format string, f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return "—"
	}
	return fmt.Sprintf(format, f)
}

func rate(f float64) string   { return value("%.0f/s", f) }
func millis(f float64) string { return value("%.2f ms", f) }
func secs(f float64) string   { return value("%.1f s", f) }
func times(f float64) string  { return value("%.2f", f) }
func share(f float64) string  { return value("%.2f %%", f) }

// both makes a row of one field of the two arms.
func both(name, published string, format func(float64) string, of func(arm string) float64) figure {
	return figure{name, published, format(of("ebb")), format(of("floor"))}
}

func last(all []float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	return all[len(all)-1]
}

func helloFigures(l lines) []figure {
	direct := func(of func(string) float64) func(string) float64 {
		return func(arm string) float64 { return of(arm + "-direct") }
	}
	best := func(arm string) float64 { return l.best(arm, "rps") }
	one := func(arm string) float64 { return l.at(arm, 1, "p50_ms") }
	return []figure{
		both("requests a second through the gateway, at best", "Nuclio about 1700/s", rate, best),
		{"... and through the activator", "", rate(best("ebb-activator")), ""},
		both("past the gateway, at best", "Nuclio about 3000/s", rate, direct(best)),
		both("a single request through the gateway, median", "Nuclio 0.61 ms", millis, one),
		both("past the gateway", "Nuclio 0.36 ms", millis, direct(one)),
		both("median at the most clients, through the gateway", "20 to 50 ms more than for one, where there is a queue", millis,
			func(arm string) float64 { return l.at(arm, last(l.xs()), "p50_ms") }),
	}
}

func httpFigures(l lines) []figure {
	most := last(l.xs())
	return []figure{
		both("p99 at "+value0(most)+" clients", "Nuclio below 500 ms; OpenFaaS has a heavy tail", millis, func(arm string) float64 { return l.at(arm, most, "p99_ms") }),
		both("requests a second", "Kubeless drops", rate, func(arm string) float64 { return l.at(arm, most, "rps") }),
		failed(l),
	}
}

// failed is the row of the requests that had no 2xx.
func failed(l lines) figure {
	return both("requests that failed", "", value0, func(arm string) float64 { return l.where("arm", arm).sum("failed") })
}

func value0(f float64) string { return value("%.0f", f) }

func payloadFigures(l lines) (all []figure) {
	for _, x := range l.xs() {
		all = append(all, figure{"answers of " + inBytes(x) + ", rate of the floor's", "", times(l.at("ebb", x, "rps") / l.at("floor", x, "rps")), "1"})
	}
	if len(all) > 0 {
		all[len(all)-1].published = "OpenFaaS and Knative are ahead with large answers, Nuclio with small ones"
	}
	most := last(l.xs())
	return append(all, both("megabytes a second with the largest", "", value0, func(arm string) float64 { return l.at(arm, most, "rps") * most / 1e6 }))
}

func inBytes(n float64) string {
	if n == 1 {
		return "1 byte"
	}
	return value("%.0f bytes", n)
}

func pathFigures(l lines) []figure {
	p50 := func(arm string) float64 { return l.at(arm, 1, "p50_ms") }
	return []figure{
		both("through the gateway, median", "", millis, p50),
		{"to the pod's door: queue-proxy, or the container itself", "", millis(p50("ebb-queue-proxy")), millis(p50("floor-container"))},
		{"to the container", "", millis(p50("ebb-container")), millis(p50("floor-container"))},
		{"what the gateway adds", "about 1 ms", millis(p50("ebb") - p50("ebb-queue-proxy")), millis(p50("floor") - p50("floor-container"))},
		{"what queue-proxy adds", "", millis(p50("ebb-queue-proxy") - p50("ebb-container")), "0"},
	}
}

func breakdownFigures(l lines) []figure {
	of := l.medianOf
	thousandth := func(f float64) string { return value("%.3f ms", f) }
	return []figure{
		both("before the function", "Nuclio 0.63, OpenFaaS 1.32, Knative 1.30, Kubeless 4.96 ms", thousandth, of("before_ms")),
		both("in it", "0.001 ms", thousandth, of("in_ms")),
		both("after it", "Nuclio 0.54, OpenFaaS 0.93, Knative 0.62, Kubeless 2.63 ms", thousandth, of("after_ms")),
		both("before, fastest tenth", "", thousandth, of("before_p10_ms")),
		both("after, fastest tenth", "", thousandth, of("after_p10_ms")),
	}
}

func steadyFigures(l lines) []figure {
	of := l.medianOf
	return []figure{
		both("ten pods are Ready after", "Knative 12 s, OpenFaaS 26 s", secs, of("ten_s")),
		both("ten pods have answered after", "", secs, of("served_ten_s")),
		both("the second pod is Ready after", "", secs, of("two_s")),
		both("requests a second in the last third", "", rate, of("late_rps")),
		failed(l),
	}
}

func burstyFigures(l lines) (all []figure) {
	for _, burst := range slices.Compact(l.where("arm", "ebb").values("burst")) {
		of := l.where("burst", burst).medianOf
		all = append(all,
			both(fmt.Sprintf("burst %.0f: requests a second", burst), "Knative follows, OpenFaaS lags", rate, of("rps")),
			both("... p99", "", millis, of("p99_ms")),
			both("... ten pods have answered after", "", secs, of("served_ten_s")),
			figure{"... pods after the pause", "", value0(l.where("burst", burst).median("pods_after_idle")), "10"})
	}
	return all
}

func nineFigures(l lines) []figure {
	of := func(arm, name string) float64 { return l.where("arm", arm).median(name) }
	row := func(name, published, ebb, floor string) figure {
		return figure{name, published, rate(of(ebb, "late_rps")) + "; pods: " + value0(of(ebb, "pods_at_end")), rate(of(floor, "late_rps"))}
	}
	return []figure{
		row("target 10; the floor with one pod", "Knative 200/s on one pod", "ebb", "floor-1"),
		row("learned target; the floor with ten pods", "1500/s would be possible", "ebb-auto", "floor-10"),
		{"factor between the two", "7", times(of("ebb-auto", "late_rps") / of("ebb", "late_rps")), times(of("floor-10", "late_rps") / of("floor-1", "late_rps"))},
	}
}

func stickyFigures(l lines) []figure {
	of := func(arm, name string) float64 { return l.where("arm", arm).median(name) }
	row := func(name, published, field string, format func(float64) string) figure {
		return figure{name, published, format(of("ebb", field)), format(of("floor", field)) + "; past the gateway " + format(of("floor-service", field))}
	}
	return []figure{
		row("pods that get requests in the last third, of five", "OpenFaaS: the old ones only", "pods_served_late", value0),
		row("the least that a pod gets, of an even share", "OpenFaaS: 0", "least_share", times),
		row("requests a second in the last third", "", "late_rps", rate),
	}
}

func hpaFigures(l lines) []figure {
	of := l.medianOf
	return []figure{
		both("the second pod is Ready after", "", secs, of("two_s")),
		both("five pods", "doubles with each step", secs, of("five_s")),
		both("ten pods", "Nuclio 40 s", secs, of("ten_s")),
		both("pods at the end", "10", value0, of("pods_at_end")),
	}
}

func workersFigures(l lines) (all []figure) {
	published := map[float64]string{4: "Nuclio 4", 50: "Nuclio about 10"}
	for _, x := range l.xs() {
		all = append(all, both(fmt.Sprintf("workers: %.0f, rate of one's", x), published[x], times, func(arm string) float64 {
			return l.at(arm, x, "rps") / l.at(arm, 1, "rps")
		}))
	}
	return all
}

func watchdogFigures(l lines) (all []figure) {
	most := last(l.xs())
	published := map[string]string{"http": "the fastest", "streaming": "far slower", "serializing": "far slower"}
	for _, mode := range []string{"http", "streaming", "serializing"} {
		all = append(all, figure{fmt.Sprintf("mode %s, requests a second of %s users", mode, value0(most)), published[mode],
			rate(l.at(mode, most, "rps")), rate(l.at("floor", most, "rps"))})
	}
	return append(all, figure{"requests that failed", "", value0(l.sum("failed")), ""})
}

func successFigures(l lines) (all []figure) {
	worst := func(arm string) float64 { return lowest(l.where("arm", arm).values("success_percent")) }
	all = append(all, both("the lowest cell", "Kubeless 100.00, Fission 99.19, OpenFaaS 96.04 %", share, worst),
		both("requests in all", "10 000 in each cell", value0, func(arm string) float64 { return l.where("arm", arm).sum("requests") }))
	for _, pods := range slices.Compact(l.where("arm", "ebb").values("pods")) {
		all = append(all, both(fmt.Sprintf("the lowest with pods: %.0f", pods), "", share, func(arm string) float64 {
			return lowest(l.where("arm", arm).where("pods", pods).values("success_percent"))
		}))
	}
	return all
}

func lowest(all []float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	return slices.Min(all)
}

// lowestLinear is the lowest of linear at any number of clients.
func lowestLinear(l lines, arm string) float64 {
	var all []float64
	for _, x := range l.xs() {
		all = append(all, linear(l, arm, x))
	}
	return lowest(all)
}

// linear is the rate at so many clients, of as many times the rate of one.
func linear(l lines, arm string, clients float64) float64 {
	return l.at(arm, clients, "late_rps") / (clients * l.at(arm, 1, "late_rps"))
}

func concurrencyFigures(l lines) []figure {
	until := func(arm string) float64 {
		reached := 0.0
		for _, x := range l.xs() {
			if linear(l, arm, x) < linearShare {
				break
			}
			reached = x
		}
		return reached
	}
	return []figure{
		both("linear until, clients", "the prototype until 14, Lambda until 15; OpenWhisk is flat until 8", value0, until),
		both("the lowest rate, of as many times that of one", "", times, func(arm string) float64 { return lowestLinear(l, arm) }),
		both("rate of all clients, of as many times that of one", "", times, func(arm string) float64 { return linear(l, arm, last(l.xs())) }),
		failed(l),
	}
}

func backoffFigures(l lines) (all []figure) {
	for _, x := range l.xs() {
		cold := ""
		if c := l.where("arm", "ebb").where("x", x); len(c) > 0 && c[0]["cold"] == true {
			cold = ", a new pod"
		}
		all = append(all, figure{fmt.Sprintf("after %s", gap(x)), "", millis(l.at("ebb", x, "took_ms")) + cold + "; standby " + millis(l.at("ebb-standby", x, "took_ms")),
			millis(l.at("floor", x, "took_ms"))})
	}
	if len(all) > 0 {
		all[len(all)-1].published = "Azure and OpenWhisk start anew after 5 to 10 min, the prototype after 15 min, Lambda not within 30 min"
	}
	return all
}

func gap(seconds float64) string {
	if seconds >= 60 {
		return fmt.Sprintf("%.0f min", seconds/60)
	}
	return fmt.Sprintf("%.0f s", seconds)
}

func sieveFigures(l lines) (all []figure) {
	published := map[float64]string{1: "tinyFaaS: 0.92 of native or more at low load", 1024: "tinyFaaS: 0.60 to 0.67 of native at high load; Kubeless 1/13, Lean OpenWhisk 1/20"}
	for _, x := range l.xs() {
		all = append(all, figure{fmt.Sprintf("clients: %.0f, rate of the floor's", x), published[x], times(l.at("ebb", x, "rps") / l.at("floor", x, "rps")), "1"})
	}
	row := func(name, field string) figure {
		return both(name, "", value0, func(arm string) float64 { return l.where("arm", arm).sum(field) })
	}
	if len(l.values("too_late")) == 0 { // older lines count all of them as failed
		return append(all, row("answers after more than a second, or not 2xx", "failed"))
	}
	return append(all, failed(l), row("answers after more than a second", "too_late"))
}
