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
	p.Legend.Top, p.Legend.YOffs, p.Legend.Padding = true, -vg.Points(2), vg.Points(2)
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
	p.Legend.Left = c.roomLeft()
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
	if c.logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	}
	if c.logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
		p.Y.Min /= 1.5
		p.Y.Max *= 4
		return nil
	}
	p.Y.Max = c.from + (most-c.from)*1.3 // room for the legend
	return nil
}

func (c chart) bars(p *plot.Plot) error {
	const width = 14
	colors := palette(c.series)
	p.Y.Min = 0
	for i, s := range c.series {
		var heights plotter.Values
		for _, q := range s.points {
			if math.IsNaN(q.y) {
				q.y = 0
			}
			heights = append(heights, q.y)
		}
		bars, err := plotter.NewBarChart(heights, vg.Points(width))
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Width = colors[i], 0
		bars.Offset = vg.Points(width) * vg.Length(float64(i)-float64(len(c.series)-1)/2)
		p.Add(bars)
		p.Legend.Add(s.name, bars)
	}
	p.NominalX(c.groups...)
	p.Y.Max *= 1.25
	return nil
}

// roomLeft reports whether the left half is the emptier one.
func (c chart) roomLeft() bool {
	var left, right, count float64
	for _, s := range c.series {
		if n := len(s.points); n > 1 {
			left, right, count = left+s.points[0].y, right+s.points[n-1].y, count+1
		}
	}
	return count > 0 && left < right
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
