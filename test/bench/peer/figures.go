package main

import (
	"maps"
	"slices"

	"ebb.dev/ebb/test/internal/result"
)

// figures are values by name and system.
type figures map[string]map[string][]float64

func (f figures) add(name, system string, value float64) {
	if f[name] == nil {
		f[name] = map[string][]float64{}
	}
	f[name][system] = append(f[name][system], value)
}

// summaries tells of each figure the median, the lowest and the highest value, and how much Ebb's
// median is of Knative's.
func (f figures) summaries() (lines []result.Fields) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		line := result.Fields{"figure": name}
		for system, values := range f[name] {
			line[system], line[system+"_low"], line[system+"_high"] = result.Median(values), slices.Min(values), slices.Max(values)
		}
		if ours, theirs := f[name][ebb], f[name][knative]; ours != nil && theirs != nil {
			line["ebb_of_knative"] = result.Median(ours) / result.Median(theirs)
		}
		lines = append(lines, line)
	}
	return lines
}
