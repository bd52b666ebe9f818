package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Function is one revision of a trace.
type Function struct {
	Name    string
	Service time.Duration
	Memory  float64 // of an awake pod in MiB, 0 when the trace does not tell
	// Minutes are the arrivals in each minute. Load, when set, replaces them.
	Minutes []float64
	Load    []Segment
	// Arrivals, when set, are the only ones.
	Arrivals []Arrival
}

// Arrival is one request and how long it works.
type Arrival struct{ At, Work time.Duration }

// readTrace reads a trace of one of these shapes, which it tells by their headers:
//
//	function,mean_ms,m0,m1,...               arrivals in each minute
//	function,mean_ms,memory_mib,m0,m1,...    the same
//	app,average_memory_mib,invocations,m0,...   requests in flight in each minute
//	TIMESTAMP,ContextTokens,GeneratedTokens     each request of a language model
//	a folder with invocations.csv, durations.csv and memory.csv: the Azure Functions dataset of 2019
func readTrace(path string) ([]Function, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var all []Function
	if info.IsDir() {
		all, err = readAzure(path)
	} else {
		all, err = readRows(path)
	}
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no function", path)
	}
	return all, nil
}

// sheet is a CSV file with a header.
type sheet struct {
	path   string
	header []string
	rows   [][]string
}

func readSheet(path string) (sheet, error) {
	file, err := os.Open(path)
	if err != nil {
		return sheet{}, err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return sheet{}, fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) == 0 {
		return sheet{}, fmt.Errorf("%s is empty", path)
	}
	return sheet{path, rows[0], rows[1:]}, nil
}

// number is the value of a cell, a row counted from 0 without the header.
func (s sheet) number(row, column int) (float64, error) {
	f, err := strconv.ParseFloat(s.rows[row][column], 64)
	if err != nil || !(f >= 0) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%s:%d: %s: %q is not a number from 0 on", s.path, row+2, s.header[column], s.rows[row][column])
	}
	return f, nil
}

// column is the place of the first of these names in the header.
func (s sheet) column(names ...string) (int, error) {
	for _, name := range names {
		if i := slices.Index(s.header, name); i >= 0 {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%s has no column %s", s.path, strings.Join(names, " or "))
}

// series are the values of a row from a column on.
func (s sheet) series(row, from int) ([]float64, error) {
	out := make([]float64, 0, len(s.header)-from)
	for column := from; column < len(s.header); column++ {
		f, err := s.number(row, column)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// work is a service time, of a millisecond at least.
func work(ms float64) time.Duration {
	return time.Duration(math.Max(ms, 1) * float64(time.Millisecond))
}

func readRows(path string) ([]Function, error) {
	s, err := readSheet(path)
	if err != nil {
		return nil, err
	}
	if slices.Equal(s.header, []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}) {
		return readPrompts(s)
	}
	memory := slices.Index(s.header, "memory_mib")
	inFlight := false
	first := 2
	switch {
	case len(s.header) > 3 && s.header[1] == "average_memory_mib" && s.header[2] == "invocations":
		inFlight, memory, first = true, 1, 3
	case len(s.header) < 3:
		return nil, fmt.Errorf("%s: want the columns function, mean_ms and one for each minute", path)
	case memory == 2:
		first = 3
	case memory >= 0:
		return nil, fmt.Errorf("%s: the column memory_mib comes third", path)
	}
	var all []Function
	for row := range s.rows {
		f := Function{Name: s.rows[row][0]}
		minutes, err := s.series(row, first)
		if err != nil {
			return nil, err
		}
		if memory >= 0 {
			if f.Memory, err = s.number(row, memory); err != nil {
				return nil, err
			}
		}
		if inFlight {
			f.Load = outstanding(minutes)
		} else {
			ms, err := s.number(row, 1)
			if err != nil {
				return nil, err
			}
			f.Service, f.Minutes = work(ms), minutes
		}
		all = append(all, f)
	}
	return all, nil
}

// What a token takes: one of the context, of which a model reads many at once, and one that it
// generates.
const (
	contextToken   = 250 * time.Microsecond
	generatedToken = 30 * time.Millisecond
)

// readPrompts reads the Azure LLM inference dataset of 2023: one function, whose requests work for
// as long as their tokens take.
func readPrompts(s sheet) ([]Function, error) {
	f := Function{Name: "llm"}
	var first time.Time
	for row := range s.rows {
		at, err := time.Parse("2006-01-02 15:04:05", s.rows[row][0])
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", s.path, row+2, err)
		}
		tokens, err := s.series(row, 1)
		if err != nil {
			return nil, err
		}
		if row == 0 {
			first = at
		}
		after := at.Sub(first)
		works := tokens[0]*float64(contextToken) + tokens[1]*float64(generatedToken)
		if n := len(f.Arrivals); n > 0 && after < f.Arrivals[n-1].At || after > maxTrace || !(works <= float64(maxTrace)) {
			return nil, fmt.Errorf("%s:%d: a request comes before the last one, or takes or comes after more than %s", s.path, row+2, maxTrace)
		}
		f.Arrivals = append(f.Arrivals, Arrival{after, max(time.Duration(works), time.Millisecond)})
	}
	if len(f.Arrivals) == 0 {
		return nil, fmt.Errorf("%s has no request", s.path)
	}
	return []Function{f}, nil
}

// maxTrace bounds a trace of single requests.
const maxTrace = 1000 * time.Hour

// outstanding keeps a number of requests in flight in each minute.
func outstanding(minutes []float64) (load []Segment) {
	for _, n := range minutes {
		if last := len(load) - 1; last >= 0 && load[last].From == n {
			load[last].For += time.Minute
			continue
		}
		load = append(load, Segment{Closed: true, From: n, To: n, For: time.Minute})
	}
	return load
}

// readAzure reads the three files of the Azure Functions dataset of 2019. Their rows belong
// together by function, and memory by application where there is no row of the function.
func readAzure(dir string) ([]Function, error) {
	calls, err := readSheet(filepath.Join(dir, "invocations.csv"))
	if err != nil {
		return nil, err
	}
	means, err := lookup(filepath.Join(dir, "durations.csv"), "Average")
	if err != nil {
		return nil, err
	}
	sizes, err := lookup(filepath.Join(dir, "memory.csv"), "AverageAllocatedMb")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	name, err := calls.column("HashFunction")
	if err != nil {
		return nil, err
	}
	trigger, err := calls.column("Trigger")
	if err != nil {
		return nil, err
	}
	var all []Function
	for row := range calls.rows {
		f := Function{Name: calls.rows[row][name]}
		f.Service, f.Memory = work(means[f.Name]), sizes[f.Name]
		if f.Minutes, err = calls.series(row, trigger+1); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// lookup is a column by function.
func lookup(path, value string) (map[string]float64, error) {
	s, err := readSheet(path)
	if err != nil {
		return nil, err
	}
	name, err := s.column("HashFunction")
	if err != nil {
		return nil, err
	}
	column, err := s.column(value)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for row := range s.rows {
		if out[s.rows[row][name]], err = s.number(row, column); err != nil {
			return nil, err
		}
	}
	return out, nil
}
