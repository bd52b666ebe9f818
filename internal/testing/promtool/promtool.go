// Package promtool has Prometheus' own tool judge rules, and what a component shows to Prometheus:
// names, units, help texts. It is for tests.
//
// Owns: nothing. Reads: the answer of a handler of /metrics. Writes, never: anything else.
package promtool

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// CheckMetrics fails the test if `promtool check metrics` objects to what handler answers. Names
// that the contract gives are excused. Where promtool is not installed the test goes on without it,
// but fails in CI.
func CheckMetrics(t testing.TB, handler http.Handler, excused ...string) {
	t.Helper()
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if response.Code != http.StatusOK || response.Body.Len() == 0 {
		t.Fatalf("/metrics: %d with %d bytes", response.Code, response.Body.Len())
	}
	for _, objection := range Objections(t, response.Body.Bytes()) {
		if name, _, _ := strings.Cut(objection, " "); !slices.Contains(excused, name) {
			t.Errorf("promtool: %s", objection)
		}
	}
}

// Objections are promtool's to a text of metrics, each beginning with a name.
func Objections(t testing.TB, text []byte) []string {
	t.Helper()
	out, err := Run(t, text, "check", "metrics")
	if err == nil {
		return nil
	}
	return strings.Split(out, "\n")
}

// Run runs promtool with an input, and returns what it says. Where it is not installed it says
// nothing.
func Run(t testing.TB, input []byte, args ...string) (said string, err error) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if ci, _ := strconv.ParseBool(os.Getenv("CI")); err != nil && ci {
		t.Fatal("promtool is not installed (make tools installs it)")
	} else if err != nil {
		t.Log("promtool is not installed (make tools installs it)")
		return "", nil
	}
	command := exec.Command(path, args...)
	command.Stdin = bytes.NewReader(input)
	out, err := command.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
