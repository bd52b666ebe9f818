package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strings"
)

type point struct{ x, y float64 }

// series is one curve, or one bar of each group.
type series struct {
	name   string
	points []point
	isStep bool // a value holds until the next
	dashed bool
}

// chart is one picture. With groups, the points of each series are the heights of its bars.
type chart struct {
	title, x, y string
	logX, logY  bool
	series      []series
	groups      []string
	from        float64 // of the axis y, if it is not 0
}

// The picture, and the area in it that the axes enclose.
const (
	chartWidth, chartHeight = 720, 360
	areaLeft, areaRight     = 70, 700
	areaTop, areaBottom     = 60, 305
	barWidth                = 25
)

// shades are Ebb's blues, the floor's greys, and colours of what was published.
var shades = map[string][]string{
	"ebb":   {"#1f5fa8", "#5fb3e6", "#14c2a3", "#8a5fd0"},
	"floor": {"#777777", "#b5b5b5", "#444444"},
	"":      {"#d9822b", "#c23b4b", "#e3b23c", "#8c564b"},
}

// palette gives each series the next colour of its kind.
func palette(all []series) (colors []string) {
	used := map[string]int{}
	for _, s := range all {
		kind := ""
		for _, k := range []string{"ebb", "floor"} {
			if strings.HasPrefix(strings.ToLower(s.name), k) {
				kind = k
			}
		}
		colors = append(colors, shades[kind][used[kind]%len(shades[kind])])
		used[kind]++
	}
	return colors
}

// axis leads from one end of the area to the other.
type axis struct {
	from, to float64
	log      bool
}

// axisOf has room for all values.
func axisOf(log bool, values ...float64) axis {
	a := axis{math.Inf(1), math.Inf(-1), log}
	for _, v := range values {
		a.from, a.to = min(a.from, v), max(a.to, v)
	}
	switch {
	case a.to > a.from:
	case log:
		a.to = a.from * 10
	default:
		a.to = a.from + 1
	}
	return a
}

// at is where a value lies between two ends.
func (a axis) at(value, first, last float64) float64 {
	share := (value - a.from) / (a.to - a.from)
	if a.log {
		share = math.Log(value/a.from) / math.Log(a.to/a.from)
	}
	return first + share*(last-first)
}

// ticks are some round values of the axis.
func (a axis) ticks() (values []float64) {
	if !a.log {
		step := math.Pow(10, math.Floor(math.Log10((a.to-a.from)/2)))
		for _, m := range []float64{5, 2, 1} {
			if s := step * m; (a.to-a.from)/s >= 3 {
				step = s
				break
			}
		}
		for i := math.Ceil(a.from / step); i*step <= a.to*1.0001; i++ {
			values = append(values, i*step)
		}
		return values
	}
	// 1, 2 and 5 times powers of ten, or the powers alone over a long way.
	steps := []float64{1, 2, 5}
	if a.to/a.from > 2000 {
		steps = steps[:1]
	}
	for power := math.Floor(math.Log10(a.from)); power <= math.Ceil(math.Log10(a.to)); power++ {
		for _, step := range steps {
			if v := step * math.Pow(10, power); v >= a.from*0.999 && v <= a.to*1.001 {
				values = append(values, v)
			}
		}
	}
	return values
}

// svg draws the chart.
func (c chart) svg() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="Liberation Sans,Arial,sans-serif" font-size="13">`+"\n", chartWidth, chartHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartWidth, chartHeight)
	label(&b, (areaLeft+areaRight)/2, 20, "middle", `font-size="17"`, c.title)
	label(&b, (areaLeft+areaRight)/2, chartHeight-10, "middle", "", c.x)
	label(&b, 16, (areaTop+areaBottom)/2, "middle", fmt.Sprintf(`transform="rotate(-90 16 %d)"`, (areaTop+areaBottom)/2), c.y)
	if len(c.groups) > 0 {
		c.bars(&b)
	} else {
		c.curves(&b)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func label(b *bytes.Buffer, x, y float64, anchor, more, text string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, more, html.EscapeString(text))
}

// legend names the series above the area.
func legend(b *bytes.Buffer, drawn []series, colors []string, mark string) {
	fmt.Fprintf(b, `<text x="%d" y="%d">`, areaLeft, areaTop-18)
	for i, s := range drawn {
		mark := mark
		if s.dashed {
			mark = "╍╍"
		}
		fmt.Fprintf(b, `<tspan dx="%d" fill="%s">%s</tspan> <tspan>%s</tspan>`, min(i, 1)*16, colors[i], mark, html.EscapeString(s.name))
	}
	b.WriteString("</text>\n")
}

// axisY draws the axis y with its lines through the area.
func axisY(b *bytes.Buffer, y axis) {
	for _, v := range y.ticks() {
		at := y.at(v, areaBottom, areaTop)
		fmt.Fprintf(b, `<path d="M%d %.1fH%d" stroke="#e0e0e0"/>`+"\n", areaLeft, at, areaRight)
		label(b, areaLeft-8, at+4, "end", "", fmt.Sprintf("%.6g", v))
	}
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" fill="none" stroke="black"/>`+"\n", areaLeft, areaTop, areaBottom, areaRight)
}

func (c chart) curves(b *bytes.Buffer) {
	var drawn []series
	var xs, ys []float64
	for _, s := range c.series {
		var points []point
		for _, q := range s.points {
			if c.logX && q.x <= 0 || c.logY && q.y <= 0 || math.IsNaN(q.y) {
				continue // a logarithm has no place for it
			}
			points = append(points, q)
			xs, ys = append(xs, q.x), append(ys, q.y)
		}
		if s.points = points; len(points) > 0 {
			drawn = append(drawn, s)
		}
	}
	if len(drawn) == 0 {
		return // no axis either
	}
	if !c.logY {
		ys = append(ys, c.from)
	}
	x, y := axisOf(c.logX, xs...), axisOf(c.logY, ys...)
	if c.logY {
		y.from, y.to = y.from/1.5, y.to*1.5 // nothing lies at 0
	}
	axisY(b, y)
	for _, v := range x.ticks() {
		at := x.at(v, areaLeft, areaRight)
		fmt.Fprintf(b, `<path d="M%.1f %dv5" stroke="black"/>`+"\n", at, areaBottom)
		label(b, at, areaBottom+19, "middle", "", fmt.Sprintf("%.6g", v))
	}
	colors := palette(drawn)
	legend(b, drawn, colors, "━━")
	for i, s := range drawn {
		var way, dots strings.Builder
		for n, q := range s.points {
			atX, atY := x.at(q.x, areaLeft, areaRight), y.at(q.y, areaBottom, areaTop)
			switch {
			case n == 0:
				fmt.Fprintf(&way, "M%.1f %.1f", atX, atY)
			case s.isStep:
				fmt.Fprintf(&way, "H%.1fV%.1f", atX, atY)
			default:
				fmt.Fprintf(&way, "L%.1f %.1f", atX, atY)
			}
			if !s.isStep && !s.dashed {
				fmt.Fprintf(&dots, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, atX, atY, colors[i])
			}
		}
		dashes := ""
		if s.dashed {
			dashes = ` stroke-dasharray="7 5"`
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2.5"%s/>%s`+"\n", way.String(), colors[i], dashes, dots.String())
	}
}

func (c chart) bars(b *bytes.Buffer) {
	heights := []float64{0}
	for _, s := range c.series {
		for _, q := range s.points {
			if !math.IsNaN(q.y) {
				heights = append(heights, q.y)
			}
		}
	}
	y, colors := axisOf(false, heights...), palette(c.series)
	axisY(b, y)
	if len(c.series) > 1 {
		legend(b, c.series, colors, "■")
	}
	for at, group := range c.groups {
		middle := areaLeft + (float64(at)+0.5)/float64(len(c.groups))*(areaRight-areaLeft)
		label(b, middle, areaBottom+19, "middle", "", group)
		for i, s := range c.series {
			height, fill := s.points[at].y, colors[i]
			if math.IsNaN(height) {
				height = 0
			}
			if len(c.series) == 1 {
				fill = palette([]series{{name: group}})[0]
			}
			left := middle + barWidth*(float64(i)-float64(len(c.series))/2)
			top := y.at(height, areaBottom, areaTop)
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%d" height="%.1f" fill="%s"/>`+"\n", left, top, barWidth, areaBottom-top, fill)
		}
	}
}
