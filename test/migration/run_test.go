package main

import "testing"

func TestStepsAreReadFromWhatTheCommandSays(t *testing.T) {
	for line, want := range map[string]string{
		"path       bring up Ebb, and lead requests to its activators: 4.2 s\n": "path",
		"path       done before\n":          "",
		"ok       Kubernetes: v1.37.2\n":    "",
		"To go back: kubectl ebb migrate\n": "",
	} {
		step, seconds, ok := stepOf(line)
		if step != want || ok != (want != "") || ok && seconds != 4.2 {
			t.Errorf("%q: step %q, %v s, %v", line, step, seconds, ok)
		}
	}
}

func TestAPodThatIsGoneCountsOnlyIfItsServiceIsBusy(t *testing.T) {
	r := run{targets: []target{{service: "plain-3"}, {service: "zero-2", rare: true}}}
	before := restarts{"plain-3-00001-x app": 0, "plain-3-00001-y app": 1, "zero-2-00001-x app": 0}
	restarted, gone := r.changed(before, restarts{"plain-3-00001-x app": 1, "plain-3-00001-z app": 0})
	if restarted != 1 || len(gone) != 1 || gone[0] != "plain-3-00001-y app" {
		t.Errorf("%d restarted, gone %v", restarted, gone)
	}
}
