package main

import (
	"fmt"
	"math"
	"strings"
)

// Size of a panel, and of the margins around its area. A figure has its panels in two columns.
const (
	panelWidth, panelHeight = 450, 190
	columns                 = 2
	legendHeight            = 26
	marginLeft, marginTop   = 48, 26
	marginRight             = 40
	marginBottom            = 26
	maxPoints               = 300
)

// panel is the curve of one autoscaler.
type panel struct {
	title string
	curve []Point
}

// axes are the upper ends of the axes, the same for all panels of a figure.
type axes struct{ load, pods float64 }

// figure draws load (left axis), wanted and ready pods (right axis) over time, in a panel for each
// autoscaler.
func figure(panels []panel) string {
	most := axes{1, 1}
	thinned := make([]thinCurve, len(panels))
	for i, p := range panels {
		thinned[i] = thin(p.curve)
		for _, q := range thinned[i].points {
			most.load = math.Max(most.load, q.Load)
			most.pods = math.Max(most.pods, math.Max(q.Wanted, q.Ready))
		}
	}
	most = axes{nice(most.load), nice(most.pods)}
	rows := (len(panels) + columns - 1) / columns
	width, height := columns*panelWidth, legendHeight+rows*panelHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="17"><tspan fill="#888">grey: requests in flight (left axis)</tspan>  <tspan fill="#d9822b">orange: pods wanted</tspan>  <tspan fill="#1f5fa8">blue: pods ready (right axis)</tspan></text>`+"\n", marginLeft)
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", i%columns*panelWidth, legendHeight+i/columns*panelHeight)
		draw(&b, p.title, thinned[i], most)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func draw(b *strings.Builder, title string, curve thinCurve, most axes) {
	x := func(share float64) float64 { return marginLeft + share*(panelWidth-marginLeft-marginRight) }
	y := func(share float64) float64 { return marginTop + (1-share)*(panelHeight-marginTop-marginBottom) }
	last := math.Max(1, float64(len(curve.points)-1))
	at := func(i int) float64 { return x(float64(i) / last) }

	fmt.Fprintf(b, `<text x="%d" y="16" font-size="13">%s</text>`+"\n", marginLeft, escape(title))
	for i := range 5 {
		share := float64(i) / 4
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`, marginLeft, y(share), panelWidth-marginRight, y(share))
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end" fill="#888">%g</text>`, marginLeft-6, y(share)+4, share*most.load)
		fmt.Fprintf(b, `<text x="%d" y="%.1f" fill="#1f5fa8">%g</text>`, panelWidth-marginRight+6, y(share)+4, share*most.pods)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#888">%.0f s</text>`+"\n",
			x(share), panelHeight-10, share*float64(len(curve.points)-1)*curve.step)
	}
	path := func(value func(Point) float64) string {
		var d strings.Builder
		for i, p := range curve.points {
			verb := "L"
			if i == 0 {
				verb = "M"
			}
			fmt.Fprintf(&d, "%s%.0f %.1f", verb, at(i), y(value(p)))
		}
		return d.String()
	}
	fmt.Fprintf(b, `<path d="%sL%.1f %.1fL%.1f %.1fZ" fill="#e4e4e4" stroke="#aaa" stroke-width="0.5"/>`+"\n",
		path(func(p Point) float64 { return p.Load / most.load }), at(len(curve.points)-1), y(0), x(0), y(0))
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="#d9822b" stroke-width="1.5" stroke-dasharray="4 2"/>`+"\n",
		path(func(p Point) float64 { return p.Wanted / most.pods }))
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>`+"\n",
		path(func(p Point) float64 { return p.Ready / most.pods }))
}

type thinCurve struct {
	points []Point
	step   float64 // seconds
}

// thin keeps the maximum of neighbours, so that peaks stay.
func thin(curve []Point) thinCurve {
	step := (len(curve) + maxPoints - 1) / maxPoints
	if step <= 1 {
		return thinCurve{curve, 1}
	}
	out := thinCurve{step: float64(step)}
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
