package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ebb.dev/ebb/test/internal/load"
	"ebb.dev/ebb/test/internal/result"
)

// written returns lines as the program prints them.
func written(t *testing.T, all ...result.Fields) []byte {
	t.Helper()
	var out bytes.Buffer
	p := &result.Printer{Bench: "seeds", Out: &out}
	for _, fields := range all {
		if err := p.Line(fields); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func TestEachExperimentHasASection(t *testing.T) {
	for i, s := range sections {
		if i >= len(experiments) || experiments[i].name != s.name {
			t.Errorf("section %d is %s", i, s.name)
		}
	}
	if len(sections) != len(experiments) {
		t.Errorf("there are %d sections of %d experiments", len(sections), len(experiments))
	}
}

func TestTheNewestRunOfAnExperimentThatDidNotFailCounts(t *testing.T) {
	line := func(run string, rps float64) result.Fields {
		return result.Fields{"experiment": "sieve", "run": run, "arm": "ebb", "x": 1, "rps": rps}
	}
	end := func(run string) result.Fields { return result.Fields{"experiment": "sieve", "run": run, "done": true} }
	all, err := parseLines(written(t, line("2026-02", 20), end("2026-02"), line("2026-01", 10), end("2026-01"),
		line("2026-03", 30), result.Fields{"experiment": "sieve", "run": "2026-03", "error": "no pod"},
		result.Fields{"experiment": "hpa", "run": "2026-03", "error": "no metrics"}, result.Fields{"summary": true}))
	if err != nil {
		t.Fatal(err)
	}
	if got := all["sieve"].at("ebb", 1, "rps"); got != 20 {
		t.Errorf("sieve has the rate %v, want 20", got)
	}
	if all["hpa"].done() != nil || all["hpa"].failure() != "no metrics" || len(all) != 2 {
		t.Errorf("got %v", all)
	}
	if _, err := parseLines([]byte("{}\n{")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("half a line is %v", err)
	}
}

func TestCellsAreMediansOfTheirRounds(t *testing.T) {
	var l lines
	for round, rps := range []float64{10, 30, 20} {
		l = append(l, result.Fields{"arm": "ebb", "x": 4.0, "round": float64(round), "rps": rps}, result.Fields{"arm": "ebb", "x": 2.0, "rps": 1.0},
			result.Fields{"arm": "floor", "x": 4.0, "rps": rps * 2})
	}
	if got := l.at("ebb", 4, "rps"); got != 20 {
		t.Errorf("the cell is %v, want 20", got)
	}
	if got := l.best("ebb", "rps"); got != 20 {
		t.Errorf("the best cell is %v, want 20", got)
	}
	if got := fmt.Sprint(l.xs(), l.arms(), l.byX("ebb", "rps")); got != "[2 4] [ebb floor] [{2 1} {4 20}]" {
		t.Errorf("got %s", got)
	}
	if !math.IsNaN(l.at("other", 4, "rps")) {
		t.Error("a cell that is not there has a value")
	}
	want := "| requests a second: clients | ebb | floor |\n|---|--:|--:|\n| 2 | 1 | — |\n| 4 | 20 | 40 |\n\n"
	if got := grid(l, "rps", "clients"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestLateAnswersAreToldFromFailures(t *testing.T) {
	line := func(arm string, more result.Fields) result.Fields {
		return merge(result.Fields{"arm": arm, "x": 1.0, "rps": 1.0}, more)
	}
	got := func(all ...result.Fields) string { return fmt.Sprint(sieveFigures(all)[1:]) }
	if got, want := got(line("ebb", result.Fields{"failed": 2.0, "too_late": 3.0}), line("floor", result.Fields{"failed": 0.0, "too_late": 1.0})),
		"[{requests that failed  2 0} {answers after more than a second  3 1}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := got(line("ebb", result.Fields{"failed": 5.0}), line("floor", result.Fields{"failed": 1.0})),
		"[{answers after more than a second, or not 2xx  5 1}]"; got != want {
		t.Errorf("of older lines got %s, want %s", got, want)
	}
}

func TestTheLeastShareIsOfAnEvenOne(t *testing.T) {
	for name, c := range map[string]struct {
		of   map[string]int
		pods int
		want float64
	}{
		"even":            {map[string]int{"a": 5, "b": 5}, 2, 1},
		"a third":         {map[string]int{"a": 5, "b": 1}, 2, 1.0 / 3},
		"a pod got none":  {map[string]int{"a": 5}, 2, 0},
		"there is no pod": {nil, 0, 0},
	} {
		if got := leastShare(c.of, c.pods); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestWhatIsMissedIsToldWithItsAmount(t *testing.T) {
	done := func(name string) result.Fields { return result.Fields{"experiment": name, "done": true} }
	lines := []result.Fields{done("success-ratio"), done("concurrency"), done("breakdown"),
		{"experiment": "success-ratio", "arm": "ebb", "x": 1, "success_percent": 100}, {"experiment": "success-ratio", "arm": "ebb", "x": 5, "success_percent": 99.5},
		{"experiment": "breakdown", "arm": "ebb", "before_ms": 0.13, "after_ms": 0.09}, {"experiment": "breakdown", "arm": "floor", "before_ms": 0.05, "after_ms": 0.04}}
	for x := 1; x <= 15; x++ {
		lines = append(lines, result.Fields{"experiment": "concurrency", "arm": "ebb", "x": x, "late_rps": 9.9 * float64(x)})
	}
	all, err := parseLines(written(t, lines...))
	if err != nil {
		t.Fatal(err)
	}
	got := wanted(all)
	for _, want := range []string{"99.50 % | **missed** by 0.50 %", "1.00, floor — | met", "0.130 ms, floor 0.050 ms | **missed** by 0.030 ms", "0.090 ms, floor 0.040 ms | met"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// Every section draws from lines that tell nothing, too: a measurement may be missing.
func TestEverySectionDrawsAChartThatIsXML(t *testing.T) {
	for _, s := range sections {
		var all lines
		for _, arm := range []string{"ebb", "floor"} {
			for x := 1.0; x <= 4; x++ {
				all = append(all, result.Fields{"arm": arm, "x": x, "rps": x * 100, "late_rps": x, "p50_ms": x, "took_ms": x, "least_share": 0.5, "burst": 1.0,
					"before_ms": 0.1, "after_ms": 0.1, "success_percent": 100.0, "pods": 1.0,
					"pods_curve": []any{[]any{0.0, 1.0}, []any{2.5, 10.0}}, "rps_curve": []any{10.0, 20.0, 30.0},
					"quantiles_ms": []any{1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0}})
			}
		}
		for name, l := range map[string]lines{"lines": all, "none": nil} {
			drawn := s.chart(l).svg()
			if bytes.Contains(drawn, []byte("NaN")) || bytes.Contains(drawn, []byte("Inf")) {
				t.Errorf("%s of %s draws what is not a number", s.name, name)
			}
			for decoder := xml.NewDecoder(bytes.NewReader(drawn)); ; {
				if _, err := decoder.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Errorf("%s of %s: %v", s.name, name, err)
					break
				}
			}
			for _, f := range s.figures(l) {
				if text := fmt.Sprint(f); strings.Contains(text, "NaN") || strings.Contains(text, "%!") {
					t.Errorf("%s of %s has the figure %s", s.name, name, text)
				}
			}
		}
	}
}

func TestALoadBecomesALine(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	loop := load.Loop{Client: server.Client(), URL: server.URL, Outstanding: 2, Requests: 4}
	fields := fieldsOf(arm{name: "ebb"}, loop.Run(context.Background()))
	if fields["success_percent"] != 0.0 || fields["arm"] != "ebb" || fields["failure"] == nil || len(fields["quantiles_ms"].([]float64)) != len(shares) {
		t.Errorf("got %v", fields)
	}
	written(t, fields, fieldsOf(arm{}, &load.Report{})) // of a load that was never answered, too
}

// The page and its charts are made from the results beside them, by
// make bench-seeds ARGS='-report docs/experiments'.
func TestThePublishedReportIsMadeFromItsResults(t *testing.T) {
	folder := "../../../docs/experiments"
	data, err := os.ReadFile(filepath.Join(folder, "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := parseLines(data)
	if err != nil {
		t.Fatal(err)
	}
	files, err := report(all)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is not made from results.jsonl", name)
		}
	}
}
