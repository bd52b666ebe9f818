package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ebb.dev/ebb/internal/testing/promtool"
)

const folder = "../config/monitoring"

func TestConfigMonitoringIsWhatThisProgramWrites(t *testing.T) {
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not up to date: run `go run ./monitoring` in the root (%v)", name, err)
		}
	}
}

func TestPrometheusTakesTheRules(t *testing.T) {
	rules, err := filepath.Glob(folder + "/prometheus/rules*.yml")
	if err != nil || len(rules) != 2 {
		t.Fatalf("rules: %v, %v", rules, err)
	}
	if said, err := promtool.Run(t, nil, append([]string{"check", "rules", "--lint-fatal"}, rules...)...); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// alerts_test.yml says of each alert when it fires and when it does not.
func TestAlertsFireWhenTheyMust(t *testing.T) {
	cases, err := os.ReadFile("alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts {
		if n := strings.Count(string(cases), "alertname: "+a.Alert+","); n+strings.Count(string(cases), "alertname: "+a.Alert+"\n") < 2 {
			t.Errorf("alerts_test.yml does not say when %s fires and when it does not", a.Alert)
		}
	}
	unitTest(t, "alerts_test.yml", "rules.yml")
}

func TestOldNamesAreRecordedWithTheirLabels(t *testing.T) {
	unitTest(t, "knative_test.yml", "rules-knative-1.18.yml")
}

// unitTest runs the cases of a file, which looks for the rules beside it.
func unitTest(t *testing.T, cases, rules string) {
	t.Helper()
	dir := t.TempDir()
	for name, from := range map[string]string{cases: cases, rules: filepath.Join(folder, "prometheus", rules)} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := promtool.Run(t, nil, "test", "rules", filepath.Join(dir, cases)); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestEachAlertHasARunbook(t *testing.T) {
	linked := map[string]bool{}
	for _, a := range alerts {
		page, ok := strings.CutPrefix(a.Annotations["runbook_url"], runbooks)
		page = strings.Replace(page, ".html", ".md", 1)
		text, err := os.ReadFile(filepath.Join("../docs/runbooks", page))
		if !ok || err != nil || !strings.HasPrefix(string(text), "# "+a.Alert+"\n") {
			t.Errorf("%s: docs/runbooks/%s does not begin with its name (%v)", a.Alert, page, err)
		}
		linked[page] = true
	}
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if !linked[filepath.Base(page)] {
			t.Errorf("no alert leads to %s", page)
		}
	}
}

// The plain configuration and the monitors of the operator scrape under the same names.
func TestBothWaysToScrapeHaveTheSameJobs(t *testing.T) {
	var jobs [2][]string
	for i, name := range []string{"monitors.yaml", "prometheus/prometheus.yml"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`(?m)(?:replacement|job_name): (.*)$`).FindAllStringSubmatch(string(text), -1) {
			jobs[i] = append(jobs[i], match[1])
		}
		jobs[i] = slices.DeleteFunc(jobs[i], func(job string) bool { return job == "ebb-components" }) // replaced
		slices.Sort(jobs[i])
	}
	if len(jobs[0]) != 8 || !slices.Equal(jobs[0], jobs[1]) {
		t.Errorf("the monitors have the jobs %v, the plain configuration %v", jobs[0], jobs[1])
	}
}

func TestDashboardsAreWhole(t *testing.T) {
	for _, d := range dashboards {
		titles := map[string]bool{}
		for _, p := range d.panels {
			if p.title == "" || p.unit == "" || len(p.queries) == 0 || titles[p.title] {
				t.Errorf("%s: panel %q lacks something or is there twice", d.file, p.title)
			}
			titles[p.title] = true
			for _, q := range p.queries {
				if q.legend == "" || d.ofServices != strings.Contains(q.expr, "$service") && !strings.Contains(q.expr, "ebb_autoscaler_") && !strings.Contains(q.expr, "without_breakdown") {
					t.Errorf("%s: %s: %q has no legend, or is not of the chosen services", d.file, p.title, q.expr)
				}
			}
		}
	}
}
