//go:build e2e

package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// plugin builds `kubectl ebb`, and returns what runs it in the test's namespace.
func (s *story) plugin() func(args ...string) (out string, ok bool) {
	s.Helper()
	program := filepath.Join(s.TempDir(), "kubectl-ebb")
	if out, err := exec.CommandContext(s.ctx, "go", "build", "-o", program, "../../kubectl-ebb").CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	return func(args ...string) (string, bool) {
		// The last argument is the one that is completed, if it is about completion.
		args = slices.Concat(args[:1], []string{"-n", s.namespace}, args[1:])
		out, err := exec.CommandContext(s.ctx, program, args...).CombinedOutput()
		return string(out), err == nil
	}
}

func TestThePluginExplains(t *testing.T) {
	s := begin(t, 3*time.Minute)
	run := s.plugin()
	url := s.ready("seen", service{name: "seen", annotations: map[string]string{"autoscaling.knative.dev/max-scale": "1"}}.manifest())
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Fatal(reply)
	}
	expect := func(what string, parts ...string) {
		t.Helper()
		s.until(what, func() (bool, string, error) {
			out, _ := run(strings.Fields(what)...)
			for _, part := range parts {
				if !strings.Contains(out, part) {
					return false, out, nil
				}
			}
			return true, out, nil
		})
	}
	expect("explain seen", "seen has 1 pod: ", "seen-00001 gets 100 % of the requests", "limits   max-scale 1", "history  ")
	expect("top", "SERVICE", "seen     True")
	s.awaitZero("seen")
	expect("explain seen", "seen is at zero, and the next request starts a pod: ", "0 ready")

	out, ok := run("explain", "seen", "-o", "json")
	var answer struct {
		Revisions []struct {
			Decision struct{ Rule string }
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); !ok || err != nil || len(answer.Revisions) != 1 || answer.Revisions[0].Decision.Rule == "" {
		t.Errorf("%v: %s", err, out)
	}
	for _, c := range []struct{ args, want string }{
		{"explain nobody", `there is no Service "nobody" in the namespace "` + s.namespace + `"`},
		{"explain seen --as nobody", "you may not read this: "},
		{"top --as nobody", "ask for the ClusterRole view"},
		{"top --token expired --kubeconfig /dev/null", "error: "},
		{"explain seen -o yaml", "the only output besides text is json"},
	} {
		if out, ok := run(strings.Fields(c.args)...); ok || !strings.Contains(out, c.want) {
			t.Errorf("%s: %s", c.args, out)
		}
	}
	if out, _ := run("__complete", "explain", ""); !strings.Contains(out, "seen\n") {
		t.Errorf("completion: %s", out)
	}
}

// The cluster is whole, unless a test that runs beside this one replaces a component's pods.
func TestThePluginChecks(t *testing.T) {
	s := begin(t, 2*time.Minute)
	run := s.plugin()
	s.until("nothing is broken", func() (bool, string, error) {
		out, ok := run("check")
		return ok && strings.Contains(out, "ok       admission: ") && strings.Contains(out, "\nNothing is broken; "), out, nil
	})
	out, ok := run("check", "--as", "nobody")
	if !ok || !strings.Contains(out, "skipped  autoscaler: you may not read it") || !strings.Contains(out, "you may not get services") {
		t.Errorf("%s", out)
	}
}
