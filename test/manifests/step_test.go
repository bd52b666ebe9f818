package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// make check and make test run their steps by this script.
func TestAStepSaysHowFarItIsAndHowLongItTakes(t *testing.T) {
	cache := t.TempDir()
	step := func(args ...string) (string, error) {
		command := exec.Command(filepath.Join(root, "test/step.sh"), args...)
		command.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache, "EBB_STEPS=lint unit e2e")
		out, err := command.CombinedOutput()
		return string(out), err
	}
	if out, err := step("unit", "echo one", "echo two"); err != nil || !strings.HasPrefix(out, "== 2/3 unit: not timed on this machine yet\n   echo one\none\n   echo two\ntwo\n== 2/3 unit: done after ") {
		t.Errorf("%v:\n%s", err, out)
	}
	for name, seconds := range map[string]string{"unit": "240", "e2e": "1190"} {
		if err := os.WriteFile(filepath.Join(cache, "ebb/durations", name), []byte(seconds), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := step("unit", "exit 3"); err == nil || err.(*exec.ExitError).ExitCode() != 3 || !strings.HasPrefix(out, "== 2/3 unit: about 4 min, then about 20 min for the rest\n== 2/3 unit: failed after ") {
		t.Errorf("%v:\n%s", err, out)
	}
	// A failure does not hide the next one.
	if out, err := step("lint", "exit 3", "echo later", "exit 4", "true"); err == nil || err.(*exec.ExitError).ExitCode() != 4 ||
		!strings.Contains(out, "\nlater\n") || !strings.HasSuffix(out, ":\n   exit 3\n   exit 4\n") {
		t.Errorf("%v:\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(cache, "ebb/durations/lint")); err == nil {
		t.Error("a step that failed was timed")
	}
	if out, err := step("alone", "true"); err != nil || !strings.HasPrefix(out, "== alone: ") {
		t.Errorf("%v:\n%s", err, out)
	}
}
