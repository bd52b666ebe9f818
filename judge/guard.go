package judge

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a guard may say.
const (
	minErrors, maxErrors     = 0.01, 50
	minQuantile, maxQuantile = 50, 99.9
	minFactor, maxFactor     = 1.4, 100
	minStarts, maxStarts     = time.Second, time.Hour
	maxRequests              = 1_000_000
	maxQuantiles             = 4
)

// Guard is what a new revision must keep to while it gets its share of the requests. The zero Guard
// judges nothing.
type Guard struct {
	// Errors is the percentage of its requests that a new revision may fail, even if the old one
	// fails none; 0 does not look at errors.
	Errors float64
	// Slower are the bounds of the times that requests take.
	Slower []Slower
	// Starts is how long a pod of the new revision may take to become ready, from the time at which
	// it has a node; 0 for as long as it likes.
	Starts time.Duration
	// Requests is how many requests the new revision must have answered before it gets all of them;
	// 0 does not wait for any.
	Requests uint64
}

// Slower bounds a quantile of the new revision's times, in percent, by that of the old one's, times
// Factor.
type Slower struct{ Quantile, Factor float64 }

// standard is what the one word "on" stands for.
var standard = Guard{Errors: 0.5, Slower: []Slower{{99, 2}}, Starts: time.Minute}

// On reports whether the guard judges anything.
func (g Guard) On() bool { return g.Errors > 0 || len(g.Slower) > 0 || g.Starts > 0 }

const example = `"on", "off" or bounds such as "errors<1%, p99<2x, starts<60s, requests>100"`

// Parse reads a guard.
func Parse(text string) (Guard, error) {
	var g Guard
	switch strings.TrimSpace(text) {
	case "":
		return g, errors.New("it says nothing: write " + example)
	case "on":
		g = standard
		g.Slower = slices.Clone(g.Slower)
		return g, nil
	case "off":
		return g, nil
	}
	seen := map[string]bool{}
	for term := range strings.SplitSeq(text, ",") {
		term = strings.TrimSpace(term)
		if term == "on" || term == "off" {
			return Guard{}, fmt.Errorf("%q stands alone: write %s", term, example)
		}
		at := strings.IndexAny(term, "<>")
		if at < 0 {
			return Guard{}, fmt.Errorf("%q is no bound: write %s", term, example)
		}
		name, sign, value := strings.TrimSpace(term[:at]), term[at], strings.TrimSpace(term[at+1:])
		if err := g.bound(name, sign, value); err != nil {
			return Guard{}, err
		}
		if seen[name] {
			return Guard{}, fmt.Errorf("%s is bounded twice", name)
		}
		seen[name] = true
	}
	if !g.On() {
		return Guard{}, errors.New("requests> only says for how many requests to wait: add what they are judged by, such as errors<1%")
	}
	return g, nil
}

// bound takes one bound.
func (g *Guard) bound(name string, sign byte, value string) (err error) {
	want, quantile := byte('<'), 0.0
	switch {
	case name == "requests":
		want = '>'
	case name == "errors", name == "starts":
	case strings.HasPrefix(name, "p"):
		if quantile, err = number(name[1:], "", minQuantile, maxQuantile); err != nil {
			return fmt.Errorf("%s: a quantile is from p50 to p99.9", name)
		}
	default:
		return fmt.Errorf("%q cannot be bounded, only errors, p50 to p99.9, starts and requests", name)
	}
	if sign != want {
		return fmt.Errorf("%s takes %c, not %c", name, want, sign)
	}
	switch name {
	case "errors":
		if g.Errors, err = number(value, "%", minErrors, maxErrors); err != nil {
			return fmt.Errorf("errors<%s: %w", value, err)
		}
	case "starts":
		g.Starts, err = time.ParseDuration(value)
		if err != nil || g.Starts < minStarts || g.Starts > maxStarts {
			return fmt.Errorf("starts<%s: it is a duration from 1s to 1h", value)
		}
	case "requests":
		g.Requests, err = strconv.ParseUint(value, 10, 64)
		if err != nil || g.Requests < 1 || g.Requests > maxRequests {
			return fmt.Errorf("requests>%s: it is a whole number from 1 to %d", value, maxRequests)
		}
	default:
		if len(g.Slower) == maxQuantiles {
			return fmt.Errorf("%s is one quantile too many: at most %d", name, maxQuantiles)
		}
		var factor float64
		if factor, err = number(value, "x", minFactor, maxFactor); err != nil {
			return fmt.Errorf("%s<%s: %w; 2x is twice what the old revision takes", name, value, err)
		}
		g.Slower = append(g.Slower, Slower{quantile, factor})
	}
	return nil
}

// number reads a finite number with its unit.
func number(text, unit string, least, most float64) (float64, error) {
	digits, ok := strings.CutSuffix(text, unit)
	n, err := strconv.ParseFloat(digits, 64)
	plain := strings.Trim(digits, "0123456789.") == "" // no sign, exponent, hexadecimal, NaN
	if !ok || err != nil || !plain || n < least || n > most {
		return 0, fmt.Errorf("it is a number from %v%s to %v%s", least, unit, most, unit)
	}
	return n, nil
}

// String spells the guard as Parse reads it.
func (g Guard) String() string {
	var terms []string
	if g.Errors > 0 {
		terms = append(terms, "errors<"+short(g.Errors)+"%")
	}
	for _, s := range g.Slower {
		terms = append(terms, fmt.Sprintf("p%s<%sx", short(s.Quantile), short(s.Factor)))
	}
	if g.Starts > 0 {
		terms = append(terms, "starts<"+g.Starts.String())
	}
	if g.Requests > 0 {
		terms = append(terms, fmt.Sprintf("requests>%d", g.Requests))
	}
	if len(terms) == 0 {
		return "off"
	}
	return strings.Join(terms, ", ")
}

func short(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
