package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

// TestMain lets the test be the programs that the benchmark starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-role" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Courier and JetStream, and the pod, end by SIGKILL several times while calls come.
func TestAKilledCourierLosesNoCall(t *testing.T) {
	if testing.Short() {
		t.Skip("it kills processes for seconds")
	}
	var out bytes.Buffer
	b := &bench{calls: 4000, clients: 16, services: 3, size: 1024, rate: 500, kill: true, sync: true, every: time.Second, wait: 2 * time.Minute,
		out: &result.Printer{Bench: "async", Out: &out}}
	if err := b.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var summary struct{ Lost, Kills int }
	if err := json.Unmarshal(out.Bytes(), &summary); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if summary.Lost != 0 || summary.Kills < 2 {
		t.Errorf("lost %d calls in %d kills: %s", summary.Lost, summary.Kills, out.String())
	}
	t.Log(out.String())
}

// Another tenant does all of hostile.go at once. How long calls wait is the machine's matter.
func TestATenantThatAttacksTakesNothingFromOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("it attacks for seconds")
	}
	t.Chdir("../../..") // of the manifests
	var out bytes.Buffer
	b := &bench{calls: 600, clients: 16, services: 2, size: 1024, rate: 100, hostile: true, sync: true, wait: time.Minute, out: &result.Printer{Bench: "async", Out: &out}}
	if err := b.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var summary struct {
		Lost, Restarts int
		Refused        int     `json:"attacks_refused"`
		Peak           float64 `json:"rss_peak_mib"`
		Limit          float64 `json:"limit_mib"`
	}
	if err := json.Unmarshal(out.Bytes(), &summary); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if summary.Lost != 0 || summary.Restarts != 0 || summary.Peak > 0.9*summary.Limit || summary.Refused < 100 {
		t.Error(out.String())
	}
	t.Log(out.String())
}
