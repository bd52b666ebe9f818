package groups

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mounted makes a folder that looks like a mount of control groups. In a new group the kernel makes
// files; here they are there before the group is.
func mounted(t *testing.T, files map[string]string) Node {
	t.Helper()
	n := Node{Mount: t.TempDir(), Name: "ebb-dev-a"}
	for f, text := range files {
		path := filepath.Join(n.Mount, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n Node) holds(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.Mount, file))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(text))
}

func TestANodeHasAGroupInEachHierarchyOfVersion1(t *testing.T) {
	n := mounted(t, map[string]string{
		"cpu,cpuacct/tasks": "", "cpu,cpuacct/ebb-dev-a/cpu.shares": "1024\n", "cpu,cpuacct/ebb-dev-a/programs/cpu.shares": "1024\n",
		"cpuset/tasks": "", "cpuset/cpuset.cpus": "0-1\n", "cpuset/cpuset.mems": "0\n",
		"cpuset/ebb-dev-a/cpuset.cpus": "\n", "cpuset/ebb-dev-a/cpuset.mems": "\n",
		"cpuset/ebb-dev-a/programs/cpuset.cpus": "\n", "cpuset/ebb-dev-a/programs/cpuset.mems": "\n",
		"freezer/tasks": "", "unified/cgroup.procs": "",
	})
	if err := os.Symlink("cpu,cpuacct", filepath.Join(n.Mount, "cpu")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time finds what the first has made
		if err := n.Make(3); err != nil {
			t.Fatal(err)
		}
	}
	var at []string
	for _, dir := range n.Programs() {
		rel, err := filepath.Rel(n.Mount, dir)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", rel, err)
		}
		at = append(at, rel)
	}
	slices.Sort(at)
	if want := []string{"cpu,cpuacct/ebb-dev-a/programs", "cpuset/ebb-dev-a/programs", "freezer/ebb-dev-a/programs"}; !slices.Equal(at, want) {
		t.Errorf("programs are in %v, want %v", at, want)
	}
	for file, want := range map[string]string{
		"cpu,cpuacct/ebb-dev-a/cpu.shares": "1365", "cpu,cpuacct/ebb-dev-a/programs/cpu.shares": "2048",
		"cpuset/ebb-dev-a/cpuset.cpus": "0-1", "cpuset/ebb-dev-a/programs/cpuset.mems": "0",
	} {
		if got := n.holds(t, file); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
}

func TestANodeHasAllControllersOfVersion2(t *testing.T) {
	n := mounted(t, map[string]string{
		"cgroup.controllers": "memory\n", "cgroup.subtree_control": "",
		"ebb-dev-a/cgroup.controllers": "memory\n", "ebb-dev-a/cgroup.subtree_control": "", "ebb-dev-a/cpu.weight": "100\n",
		"ebb-dev-a/cpuset.cpus": "\n", "cpuset.cpus.effective": "0-1\n",
	})
	if err := n.Make(2); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"cgroup.subtree_control": "+memory", "ebb-dev-a/cgroup.subtree_control": "+memory", "ebb-dev-a/cpu.weight": "79", "ebb-dev-a/cpuset.cpus": "",
	} {
		if got := n.holds(t, file); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	if got := n.Programs(); len(got) != 1 || got[0] != filepath.Join(n.Mount, "ebb-dev-a", programs) {
		t.Errorf("programs are in %v", got)
	}
}

func TestWithoutCgroupsThereIsNoNode(t *testing.T) {
	if err := mounted(t, nil).Make(3); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want %v", err, ErrNone)
	}
}

func TestFreezingANode(t *testing.T) {
	for name, c := range map[string]struct{ file, frozen, thawed string }{
		"version 1": {"freezer/ebb-dev-a/freezer.state", "FROZEN", "THAWED"},
		"version 2": {"ebb-dev-a/cgroup.freeze", "1", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{c.file: c.thawed}
			if name == "version 2" {
				files["cgroup.controllers"] = ""
			}
			n := mounted(t, files)
			if err := n.Freeze(true); err != nil || n.holds(t, c.file) != c.frozen {
				t.Errorf("frozen: %v, %q", err, n.holds(t, c.file))
			}
			if err := n.Freeze(false); err != nil || n.holds(t, c.file) != c.thawed {
				t.Errorf("thawed: %v, %q", err, n.holds(t, c.file))
			}
		})
	}
	none := mounted(t, nil)
	if err := none.Freeze(true); !errors.Is(err, ErrNone) {
		t.Errorf("a node that is not there: %v", err)
	}
	if err := none.Freeze(false); err != nil {
		t.Errorf("thawing a node that is not there: %v", err)
	}
}

// The files do not change when a process ends, so Kill waits for its context here.
func TestKillEndsWhatIsInTheGroupsAndNothingElse(t *testing.T) {
	start := func() (*exec.Cmd, chan error) {
		cmd := exec.Command("sleep", "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd, ended
	}
	program, programEnded := start()
	pod, podEnded := start()
	stranger, strangerEnded := start()
	number := func(c *exec.Cmd) string { return strconv.Itoa(c.Process.Pid) + "\n" }
	n := mounted(t, map[string]string{
		"freezer/cgroup.procs":                                     number(stranger),
		"freezer/ebb-dev-a/programs/cgroup.procs":                  number(program) + strconv.Itoa(os.Getpid()) + "\n1\n",
		"freezer/ebb-dev-a/kubepods/pod1/c/cgroup.procs":           number(pod),
		"freezer/ebb-dev-a/kubepods/pod1/c/freezer.state":          "FROZEN",
		"freezer/ebb-dev-b/programs/cgroup.procs":                  number(stranger),
		"freezer/ebb-dev-a/kubepods/besteffort/empty/cgroup.procs": "",
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	killed, err := n.Kill(ctx)
	if killed != 2 || err == nil || !strings.Contains(err.Error(), "do not end") {
		t.Errorf("killed %d, %v", killed, err)
	}
	for name, ended := range map[string]chan error{"program": programEnded, "pod": podEnded} {
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Errorf("the %s still runs", name)
		}
	}
	if got := n.holds(t, "freezer/ebb-dev-a/kubepods/pod1/c/freezer.state"); got != "THAWED" {
		t.Errorf("a frozen process of version 1 would never end: %s", got)
	}
	select {
	case err := <-strangerEnded:
		t.Errorf("a process of another node ended: %v", err)
	default:
	}
	if killed, err := (Node{Mount: t.TempDir(), Name: "ebb-dev-a"}).Kill(t.Context()); killed != 0 || err != nil {
		t.Errorf("without any: %d, %v", killed, err)
	}
}
