package shares

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mounted makes a folder that looks like a mount of control groups.
func mounted(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		path := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestAGroupHasItsShareAndItsProcesses(t *testing.T) {
	for name, c := range map[string]struct {
		files             []string
		dir, share, value string
	}{
		"version 1": {[]string{"cpu/cpu.shares", "memory/x"}, "cpu/ebb-dev-node", "cpu.shares", "2048"},
		"version 2": {[]string{"cgroup.subtree_control"}, "ebb-dev-node", "cpu.weight", "79"},
		"both":      {[]string{"cpu/cpu.shares", "unified/cgroup.subtree_control"}, "cpu/ebb-dev-node", "cpu.shares", "2048"},
	} {
		t.Run(name, func(t *testing.T) {
			root := mounted(t, c.files...)
			if err := Give(root, Node, []int{4711}); err != nil {
				t.Fatal(err)
			}
			if err := Give(root, Node, []int{4712}); err != nil {
				t.Errorf("a second time: %v", err)
			}
			for file, want := range map[string]string{c.share: c.value, "cgroup.procs": "4712"} {
				got, err := os.ReadFile(filepath.Join(root, c.dir, file))
				if err != nil || strings.TrimSpace(string(got)) != want {
					t.Errorf("%s holds %q, %v, want %q", file, got, err, want)
				}
			}
		})
	}
}

func TestWithoutAProcessorControllerNothingIsMade(t *testing.T) {
	root := mounted(t, "memory/memory.limit_in_bytes")
	if err := Give(root, Control, []int{4711}); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want %v", err, ErrNone)
	}
	if found, _ := filepath.Glob(filepath.Join(root, "*", Control)); len(found) > 0 {
		t.Errorf("made %v", found)
	}
}

func TestEveryGroupHasAShare(t *testing.T) {
	for _, g := range Groups {
		if shares[g] < 1024 || shares[g] > 2048 {
			t.Errorf("%s has %d: less than one processor's, or more than pods have on two", g, shares[g])
		}
	}
}
