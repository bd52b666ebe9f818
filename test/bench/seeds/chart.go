package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg" // plot writes SVG with it
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

const (
	chartWidth  = 7.2 * vg.Inch
	chartHeight = 3.6 * vg.Inch
)

// shades are Ebb's blues, the floor's greys, and colours of what was published.
var shades = map[string][]color.Color{
	"ebb":   {rgb(0x1f5fa8), rgb(0x5fb3e6), rgb(0x14c2a3), rgb(0x8a5fd0)},
	"floor": {rgb(0x777777), rgb(0xb5b5b5), rgb(0x444444)},
	"":      {rgb(0xd9822b), rgb(0xc23b4b), rgb(0xe3b23c), rgb(0x8c564b)},
}

func rgb(n uint32) color.Color { return color.RGBA{uint8(n >> 16), uint8(n >> 8), uint8(n), 255} }

// palette gives each series the next colour of its kind.
func palette(all []series) (colors []color.Color) {
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

// svg draws the chart.
func (c chart) svg() ([]byte, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, c.y
	for _, style := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		style.Typeface, style.Variant = "Liberation", "Sans"
	}
	p.Title.TextStyle.Font.Size = vg.Points(13)
	p.Legend.Top, p.Legend.Left, p.Legend.YOffs, p.Legend.Padding = true, true, -vg.Points(2), vg.Points(2)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, rgb(0xe0e0e0)
	p.Add(grid)
	var err error
	if len(c.groups) > 0 {
		err = c.bars(p)
	} else {
		err = c.curves(p)
	}
	if err != nil {
		return nil, fmt.Errorf("draw %s: %w", c.title, err)
	}
	to, err := p.WriterTo(chartWidth, chartHeight, "svg")
	if err != nil {
		return nil, fmt.Errorf("draw %s: %w", c.title, err)
	}
	var out bytes.Buffer
	if _, err := to.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("draw %s: %w", c.title, err)
	}
	// Where the font is not, the browser's own sans-serif serves.
	return bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,sans-serif;")), nil
}

func (c chart) curves(p *plot.Plot) error {
	if !c.logY {
		p.Y.Min = c.from
	}
	colors := palette(c.series)
	most := c.from
	drawn := 0
	for i, s := range c.series {
		xys := make(plotter.XYs, 0, len(s.points))
		for _, q := range s.points {
			if c.logX && q.x <= 0 || c.logY && q.y <= 0 || math.IsNaN(q.y) {
				continue // a logarithm has no place for it
			}
			xys = append(xys, plotter.XY{X: q.x, Y: q.y})
			most = math.Max(most, q.y)
		}
		if len(xys) == 0 {
			continue
		}
		drawn++
		line, dots, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color, line.Width, dots.Color, dots.Shape, dots.Radius = colors[i], vg.Points(1.8), colors[i], draw.CircleGlyph{}, vg.Points(2.2)
		if s.isStep {
			line.StepStyle = plotter.PostStep
		}
		if s.dashed {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(4)}
		}
		p.Add(line)
		if !s.isStep && !s.dashed {
			p.Add(dots)
		}
		p.Legend.Add(s.name, line)
	}
	if drawn == 0 {
		return nil // no axis either
	}
	// The last label needs room at its right.
	if c.logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
		p.X.Max *= math.Pow(p.X.Max/p.X.Min, 0.03)
	} else {
		p.X.Tick.Marker = ticksUpTo(p.X.Max)
		p.X.Max += (p.X.Max - p.X.Min) * 0.03
	}
	if c.logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
		p.Y.Min /= 1.5
		p.Y.Max *= 4
		return nil
	}
	c.linear(p, most)
	return nil
}

func (c chart) bars(p *plot.Plot) error {
	const width = 18
	p.Y.Min = 0
	colors := palette(c.series)
	for i, s := range c.series {
		for at, q := range s.points {
			height, fill := q.y, colors[i]
			if math.IsNaN(height) {
				height = 0
			}
			if len(c.series) == 1 {
				fill = palette([]series{{name: c.groups[at]}})[0]
			}
			bar, err := plotter.NewBarChart(plotter.Values{height}, vg.Points(width))
			if err != nil {
				return err
			}
			bar.XMin, bar.Color, bar.LineStyle.Width = float64(at), fill, 0
			bar.Offset = vg.Points(width) * vg.Length(float64(i)-float64(len(c.series)-1)/2)
			p.Add(bar)
			if at == 0 && len(c.series) > 1 {
				p.Legend.Add(s.name, bar)
			}
		}
	}
	p.NominalX(c.groups...)
	p.X.Min, p.X.Max = -0.6, float64(len(c.groups))-0.4
	c.linear(p, p.Y.Max)
	return nil
}

// linear ends the axis y with room for the legend above most.
func (c chart) linear(p *plot.Plot, most float64) {
	if most <= c.from {
		most = c.from + 1
	}
	const line, area = 15, 200 // points
	p.Y.Max = c.from + (most-c.from)/(1-line*float64(len(c.series))/area)
	p.Y.Tick.Marker = ticksUpTo(most)
}

// ticksUpTo are some round values from the beginning of an axis to the largest value.
func ticksUpTo(most float64) plot.TickerFunc {
	return func(least, _ float64) (ticks []plot.Tick) {
		step := math.Pow(10, math.Floor(math.Log10((most-least)/2)))
		for _, m := range []float64{5, 2, 1} {
			if s := step * m; (most-least)/s >= 3 {
				step = s
				break
			}
		}
		for i := math.Ceil(least / step); i*step <= most*1.0001; i++ {
			ticks = append(ticks, plot.Tick{Value: i * step, Label: fmt.Sprintf("%.6g", i*step)})
		}
		return ticks
	}
}

// logTicks are 1, 2 and 5 times powers of ten, or the powers alone over a long way.
func logTicks(least, most float64) (ticks []plot.Tick) {
	steps := []float64{1, 2, 5}
	if most/least > 2000 {
		steps = steps[:1]
	}
	for power := math.Floor(math.Log10(least)); power <= math.Ceil(math.Log10(most)); power++ {
		for _, step := range steps {
			if at := step * math.Pow(10, power); at >= least*0.999 && at <= most*1.001 {
				ticks = append(ticks, plot.Tick{Value: at, Label: fmt.Sprintf("%.6g", at)})
			}
		}
	}
	return ticks
}
