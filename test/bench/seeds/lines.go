package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"ebb.dev/ebb/test/internal/result"
)

// lines are those of one experiment, as they were printed.
type lines []result.Fields

// parseLines returns the lines of each experiment in its newest run that did not fail.
func parseLines(data []byte) (map[string]lines, error) {
	type key struct{ experiment, run string }
	all := map[key]lines{}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, 1<<20)
	for number := 1; scanner.Scan(); number++ {
		var fields result.Fields
		if err := json.Unmarshal(scanner.Bytes(), &fields); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if k := (key{text(fields, "experiment"), text(fields, "run")}); k.experiment != "" {
			all[k] = append(all[k], fields)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	newest := map[string]lines{}
	for _, k := range slices.SortedFunc(maps.Keys(all), func(a, b key) int { return strings.Compare(a.run, b.run) }) {
		if before := newest[k.experiment]; before == nil || all[k].done() != nil || before.done() == nil {
			newest[k.experiment] = all[k]
		}
	}
	return newest, nil
}

func text(fields result.Fields, name string) string {
	s, _ := fields[name].(string)
	return s
}

// number returns a field, NaN if it is not a number.
func number(fields result.Fields, name string) float64 {
	if f, ok := fields[name].(float64); ok {
		return f
	}
	return math.NaN()
}

// done returns the closing line of an experiment, nil if it failed.
func (l lines) done() result.Fields {
	for _, fields := range l {
		if fields["done"] == true {
			return fields
		}
	}
	return nil
}

// failure returns why the experiment failed.
func (l lines) failure() string {
	for _, fields := range l {
		if text(fields, "error") != "" {
			return text(fields, "error")
		}
	}
	return "it did not end"
}

// where returns the lines in which a field has a value.
func (l lines) where(name string, value any) (found lines) {
	for _, fields := range l {
		if fields[name] == value {
			found = append(found, fields)
		}
	}
	return found
}

// values returns a field of all lines that have it.
func (l lines) values(name string) (all []float64) {
	for _, fields := range l {
		if f := number(fields, name); !math.IsNaN(f) {
			all = append(all, f)
		}
	}
	return all
}

// median is that of a field over the rounds, NaN of none.
func (l lines) median(name string) float64 { return result.Median(l.values(name)) }

// medianOf returns a field of each arm.
func (l lines) medianOf(name string) func(arm string) float64 {
	return func(arm string) float64 { return l.where("arm", arm).median(name) }
}

// sum adds a field up.
func (l lines) sum(name string) (sum float64) {
	for _, f := range l.values(name) {
		sum += f
	}
	return sum
}

// xs are the different values of x, in order.
func (l lines) xs() []float64 {
	return slices.Compact(slices.Sorted(slices.Values(l.values("x"))))
}

// at returns the median of a field of an arm at a value of x.
func (l lines) at(arm string, x float64, name string) float64 {
	return l.where("arm", arm).where("x", x).median(name)
}

// best returns the largest median of an arm over all values of x.
func (l lines) best(arm, name string) float64 {
	best := math.NaN()
	for _, x := range l.xs() {
		if v := l.at(arm, x, name); !(v <= best) {
			best = v
		}
	}
	return best
}

// byX is a curve of an arm's medians over x.
func (l lines) byX(arm, name string) (curve []point) {
	for _, x := range l.xs() {
		if y := l.at(arm, x, name); !math.IsNaN(y) {
			curve = append(curve, point{x, y})
		}
	}
	return curve
}

// list returns a field that is a list of numbers or of pairs of numbers, of the first line.
func (l lines) list(name string) (points []point) {
	if len(l) == 0 {
		return nil
	}
	items, _ := l[0][name].([]any)
	for i, item := range items {
		switch v := item.(type) {
		case float64:
			points = append(points, point{float64(i), v})
		case []any:
			if len(v) == 2 {
				x, _ := v[0].(float64)
				y, _ := v[1].(float64)
				points = append(points, point{x, y})
			}
		}
	}
	return points
}
