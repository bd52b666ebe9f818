package main

import (
	"fmt"
	"math"
	"strings"
)

// Size of a plot, and of the margin around its area.
const (
	plotWidth, plotHeight = 860, 260
	marginLeft, marginTop = 52, 28
	marginRight           = 52
	marginBottom          = 34
	mostPoints            = 600
)

// plot draws load (left axis), wanted and ready pods (right axis) over time.
func plot(title string, all []Point) string {
	curve := thin(all)
	seconds := float64(len(curve.points)-1) * curve.step
	most, mostPods := 1.0, 1.0
	for _, p := range curve.points {
		most = math.Max(most, p.Load)
		mostPods = math.Max(mostPods, math.Max(p.Wanted, p.Ready))
	}
	most, mostPods = nice(most), nice(mostPods)
	x := func(i int) float64 {
		return marginLeft + float64(i)/math.Max(1, float64(len(curve.points)-1))*(plotWidth-marginLeft-marginRight)
	}
	y := func(share float64) float64 { return marginTop + (1-share)*(plotHeight-marginTop-marginBottom) }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<text x="%d" y="16" font-size="13">%s</text>`+"\n", marginLeft, escape(title))
	for i := range 5 {
		share := float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`, marginLeft, y(share), plotWidth-marginRight, y(share))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end" fill="#888">%g</text>`, marginLeft-6, y(share)+4, share*most)
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" fill="#1f5fa8">%g</text>`, plotWidth-marginRight+6, y(share)+4, share*mostPods)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#888">%.0f s</text>`+"\n",
			marginLeft+share*(plotWidth-marginLeft-marginRight), plotHeight-14, share*seconds)
	}
	var area strings.Builder
	fmt.Fprintf(&area, "M%.1f %.1f", x(0), y(0))
	for i, p := range curve.points {
		fmt.Fprintf(&area, "L%.1f %.1f", x(i), y(p.Load/most))
	}
	fmt.Fprintf(&area, "L%.1f %.1fZ", x(len(curve.points)-1), y(0))
	fmt.Fprintf(&b, `<path d="%s" fill="#e4e4e4" stroke="#aaa" stroke-width="0.5"/>`+"\n", area.String())
	line := func(value func(Point) float64, style string) {
		var d strings.Builder
		for i, p := range curve.points {
			verb := "L"
			if i == 0 {
				verb = "M"
			}
			fmt.Fprintf(&d, "%s%.1f %.1f", verb, x(i), y(value(p)/mostPods))
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" %s/>`+"\n", d.String(), style)
	}
	line(func(p Point) float64 { return p.Wanted }, `stroke="#d9822b" stroke-width="1.5" stroke-dasharray="4 2"`)
	line(func(p Point) float64 { return p.Ready }, `stroke="#1f5fa8" stroke-width="1.5"`)
	fmt.Fprintf(&b, `<text x="%d" y="16" text-anchor="end"><tspan fill="#888">load (requests in flight)</tspan> <tspan fill="#d9822b">wanted</tspan> <tspan fill="#1f5fa8">ready pods</tspan></text>`+"\n", plotWidth-marginRight)
	b.WriteString("</svg>\n")
	return b.String()
}

type thinned struct {
	points []Point
	step   float64 // seconds
}

// thin keeps the maximum of neighbours, so that peaks stay.
func thin(curve []Point) thinned {
	step := (len(curve) + mostPoints - 1) / mostPoints
	if step <= 1 {
		return thinned{curve, 1}
	}
	out := thinned{step: float64(step)}
	for i := 0; i < len(curve); i += step {
		var p Point
		for _, q := range curve[i:min(i+step, len(curve))] {
			p = Point{math.Max(p.Load, q.Load), math.Max(p.Wanted, q.Wanted), math.Max(p.Ready, q.Ready)}
		}
		out.points = append(out.points, p)
	}
	return out
}

// nice rounds up to 1, 2, 4 or 8 times a power of ten.
func nice(f float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(f)))
	for _, m := range []float64{1, 2, 4, 8, 10} {
		if f <= m*power {
			return math.Max(4, m*power)
		}
	}
	return f
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
