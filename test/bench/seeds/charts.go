package main

import (
	"fmt"
	"slices"
)

// arms are the names of an experiment's arms, in the order of its lines.
func (l lines) arms() (names []string) {
	for _, fields := range l {
		if name := text(fields, "arm"); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// curves are a field of each arm over x.
func (l lines) curves(field string) (all []series) {
	for _, arm := range l.arms() {
		all = append(all, series{name: arm, points: l.byX(arm, field)})
	}
	return all
}

func byClients(title, field string) func(lines) chart {
	return func(l lines) chart {
		return chart{title: title, x: "clients", y: "requests a second", logX: true, series: l.curves(field)}
	}
}

func bySize(l lines) chart {
	return chart{title: "Requests a second by the size of the answer, 10 clients", x: "bytes", y: "requests a second", logX: true, logY: true, series: l.curves("rps")}
}

// distribution is the share of requests that took no longer, at the most clients.
func distribution(l lines) chart {
	most := last(l.xs())
	c := chart{title: "Latency at " + value0(most) + " clients", x: "milliseconds", y: "share of requests", logX: true}
	for _, arm := range l.arms() {
		var points []point
		for i, p := range l.where("arm", arm).where("x", most).list("quantiles_ms") {
			if i < len(shares) {
				points = append(points, point{p.y, shares[i]})
			}
		}
		c.series = append(c.series, series{name: arm, points: points})
	}
	return c
}

// bars makes a chart of one bar for each arm.
func bars(l lines, title, y, field string) chart {
	c := chart{title: title, y: y, groups: l.arms(), series: []series{{name: "ebb and floor"}}}
	for _, arm := range c.groups {
		c.series[0].points = append(c.series[0].points, point{0, l.where("arm", arm).median(field)})
	}
	return c
}

func pathChart(l lines) chart {
	return bars(l, "One request at a time", "milliseconds, median", "p50_ms")
}

func stickyChart(l lines) chart {
	return bars(l, "Requests a second on five pods that came one after another", "requests a second", "late_rps")
}

// published are the times before and after the function, in milliseconds (Li et al., 3.2.5).
var published = []struct {
	name          string
	before, after float64
}{{"Nuclio", 0.63, 0.54}, {"OpenFaaS", 1.32, 0.93}, {"Knative", 1.30, 0.62}, {"Kubeless", 4.96, 2.63}}

func breakdownChart(l lines) chart {
	c := chart{title: "Time in the pod", y: "milliseconds, median"}
	before, after := series{name: "before the function"}, series{name: "after it"}
	add := func(name string, b, a float64) {
		c.groups = append(c.groups, name)
		before.points, after.points = append(before.points, point{0, b}), append(after.points, point{0, a})
	}
	for _, arm := range []string{"ebb", "floor"} {
		add(arm, l.where("arm", arm).median("before_ms"), l.where("arm", arm).median("after_ms"))
	}
	for _, p := range published {
		add(p.name+" *", p.before, p.after)
	}
	c.series, c.x = []series{before, after}, "* as published, on other hardware"
	return c
}

func podsOverTime(title string) func(lines) chart {
	return func(l lines) chart {
		c := chart{title: title, x: "seconds", y: "pods"}
		for _, arm := range l.arms() {
			points := l.where("arm", arm).list("pods_curve")
			if n, lasts := len(points), float64(len(l.where("arm", arm).list("rps_curve"))); n > 0 && points[n-1].x < lasts {
				points = append(points, point{lasts, points[n-1].y})
			}
			c.series = append(c.series, series{name: arm, points: points, isStep: true})
		}
		return c
	}
}

// rates is the curve of requests a second of one line. The last second is not a whole one.
func rates(l lines) []point {
	points := l.list("rps_curve")
	return points[:max(0, len(points)-1)]
}

func ratesOverTime(title string) func(lines) chart {
	return func(l lines) chart {
		c := chart{title: title, x: "seconds", y: "requests a second"}
		for _, arm := range l.arms() {
			c.series = append(c.series, series{name: arm, points: rates(l.where("arm", arm)), isStep: true})
		}
		return c
	}
}

func ratesOfBursts(l lines) chart {
	c := chart{title: "Requests a second in bursts of 100 in flight", x: "seconds", y: "requests a second"}
	bursts := slices.Compact(l.where("arm", "ebb").values("burst"))
	for _, burst := range bursts[:min(2, len(bursts))] {
		for _, arm := range l.arms() {
			c.series = append(c.series, series{name: fmt.Sprintf("%s, burst %.0f", arm, burst), points: rates(l.where("arm", arm).where("burst", burst)), isStep: true})
		}
	}
	return c
}

func workersChart(l lines) chart {
	return chart{title: "Requests a second of one pod, 100 clients", x: "workers", y: "requests a second", logX: true, logY: true, series: l.curves("rps")}
}

func successChart(l lines) chart {
	c := chart{title: "Requests that succeed", x: "users", y: "percent", logX: true, from: 95}
	for _, arm := range []string{"ebb", "floor"} {
		var points []point
		for _, x := range l.xs() {
			points = append(points, point{x, lowest(l.where("arm", arm).where("x", x).values("success_percent"))})
		}
		c.series = append(c.series, series{name: arm, points: points})
	}
	for _, p := range []struct {
		name  string
		share float64
	}{{"Fission, lowest published", 99.19}, {"OpenFaaS, lowest published", 96.04}} {
		c.series = append(c.series, series{name: p.name, dashed: true, points: []point{{1, p.share}, {100, p.share}}})
	}
	return c
}

func concurrencyChart(l lines) chart {
	most := last(l.xs())
	ideal := series{name: "10 a second for each client", dashed: true, points: []point{{1, 10}, {most, 10 * most}}}
	return chart{title: "Requests a second by clients", x: "clients", y: "requests a second", series: append(l.curves("late_rps"), ideal)}
}

func backoffChart(l lines) chart {
	return chart{title: "A single call after a gap", x: "gap in seconds", y: "milliseconds", logX: true, logY: true, series: l.curves("took_ms")}
}
