package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	uid   = "0b5f3c0e-8f0e-4f6e-9a52-5a5b1d2d3c4f"
	other = "1b5f3c0e-8f0e-4f6e-9a52-5a5b1d2d3c4f"
)

var id = strings.Repeat("ab", 32)

// layouts are the files of a node, for the same pod of each QoS class.
func layouts() map[string]string {
	out := map[string]string{}
	under := strings.ReplaceAll(uid, "-", "_")
	for _, class := range []string{"", "burstable", "besteffort"} {
		slash, dash := "", ""
		if class != "" {
			slash, dash = class+"/", "kubepods-"+class+".slice/"
		}
		slice := "kubepods.slice/" + dash + "kubepods-" + strings.TrimPrefix(class+"-", "-") + "pod" + under + ".slice/"
		for _, v := range []string{"v1", "v2"} {
			name := strings.Trim(v+" "+class, " ")
			out[name+" cgroupfs"] = "kubepods/" + slash + "pod" + uid + "/" + id
			out[name+" systemd, containerd"] = slice + "cri-containerd-" + id + ".scope"
			out[name+" systemd, CRI-O"] = slice + "crio-" + id + ".scope"
		}
	}
	return out
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The files of a kernel are files of a folder here: what is written must be what the kernel reads.
func TestEveryLayout(t *testing.T) {
	for name, dir := range layouts() {
		t.Run(name, func(t *testing.T) {
			mount := t.TempDir()
			state, compress := filepath.Join(mount, dir, "cgroup.freeze"), filepath.Join(mount, dir, "memory.reclaim")
			frozen, thawed, amount := "1", "0", "4096"
			if strings.HasPrefix(name, "v1") {
				state, compress = filepath.Join(mount, "freezer", dir, "freezer.state"), filepath.Join(mount, "memory", dir, "memory.force_empty")
				frozen, thawed, amount = "FROZEN", "THAWED", "0"
			} else {
				put(t, filepath.Join(mount, "cgroup.controllers"), "cpu memory")
				put(t, filepath.Join(mount, dir, "cgroup.events"), "populated 1\nfrozen 1\n")
				put(t, filepath.Join(mount, dir, "memory.current"), "4096\n")
			}
			put(t, state, thawed)
			put(t, compress, "")
			tree, err := Open(mount, "")
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			if err := tree.Freeze(t.Context(), uid, []string{id}); err != nil || get(t, state) != frozen {
				t.Errorf("Freeze wrote %q, %v", get(t, state), err)
			}
			if err := tree.Compress(t.Context(), uid, []string{id}); err != nil || get(t, compress) != amount {
				t.Errorf("Compress wrote %q, %v", get(t, compress), err)
			}
			if n, err := tree.ThawAll(); n != 1 || err != nil {
				t.Errorf("ThawAll: %d, %v", n, err)
			}
			// Somebody else's: a runtime that saves the container, or a person.
			put(t, state, frozen)
			if n, err := tree.ThawAll(); n != 0 || err != nil || get(t, state) != frozen {
				t.Errorf("ThawAll of what somebody else froze: %d, %v, %q", n, err, get(t, state))
			}
			if err := tree.Thaw(uid); err != nil || get(t, state) != frozen {
				t.Errorf("Thaw of what somebody else froze: %v, %q", err, get(t, state))
			}
			if err := tree.Freeze(t.Context(), uid, []string{id}); err != nil {
				t.Error(err)
			}
			if err := tree.Thaw(uid); err != nil || !strings.HasPrefix(get(t, state), thawed) {
				t.Errorf("Thaw wrote %q, %v", get(t, state), err)
			}
			if err := tree.Thaw(other); err != nil {
				t.Errorf("a pod that is gone: %v", err)
			}
			if err := tree.Freeze(t.Context(), other, []string{id}); !errors.Is(err, ErrGone) {
				t.Errorf("freeze a pod that is gone: %v", err)
			}
		})
	}
}

func TestNothingButPodsIsTouched(t *testing.T) {
	mount := t.TempDir()
	outside := filepath.Join(mount, "freezer", "system")
	put(t, filepath.Join(outside, id, "freezer.state"), "THAWED")
	put(t, filepath.Join(mount, "memory/kubepods/x"), "")
	pod := filepath.Join(mount, "freezer/kubepods/burstable/pod"+uid)
	put(t, filepath.Join(pod, id, "freezer.state"), "THAWED")
	if err := os.Symlink(outside, filepath.Join(mount, "freezer/kubepods/burstable/pod"+other)); err != nil {
		t.Fatal(err)
	}
	tree, err := Open(mount, "")
	if err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]func() error{
		"a path for a UID":          func() error { return tree.Freeze(t.Context(), "../../system", []string{id}) },
		"a path for an ID":          func() error { return tree.Freeze(t.Context(), uid, []string{"../../../system/" + id}) },
		"an empty ID":               func() error { return tree.Freeze(t.Context(), uid, []string{""}) },
		"a pod that is a link":      func() error { return tree.Freeze(t.Context(), other, []string{id}) },
		"compress outside":          func() error { return tree.Compress(t.Context(), "..", []string{id}) },
		"thaw a path":               func() error { return tree.Thaw("../system") },
		"one container of two gone": func() error { return tree.Freeze(t.Context(), uid, []string{id, strings.Repeat("cd", 32)}) },
	} {
		if call() == nil {
			t.Errorf("%s: no error", what)
		}
	}
	for _, file := range []string{filepath.Join(outside, id, "freezer.state"), filepath.Join(pod, id, "freezer.state")} {
		if got := get(t, file); got != "THAWED" {
			t.Errorf("%s holds %q", file, got)
		}
	}
}

// The kernel's own files: a real process stops and goes on.
func TestAProcessStopsAndGoesOn(t *testing.T) {
	mount, parent := "/sys/fs/cgroup", "ebb-test-"+strconv.Itoa(os.Getpid())
	var dirs []string
	pod := "kubepods/pod" + uid + "/" + id
	for _, controller := range []string{"freezer", "memory"} {
		if _, err := os.Stat(filepath.Join(mount, controller)); err != nil {
			controller = ""
		}
		dir := filepath.Join(mount, controller, parent)
		if err := os.MkdirAll(filepath.Join(dir, pod), 0o755); err != nil {
			t.Skip("this test needs root and writable cgroups:", err)
		}
		dirs = append(dirs, dir)
		t.Cleanup(func() {
			for d := pod; d != "."; d = filepath.Dir(d) {
				os.Remove(filepath.Join(dir, d))
			}
			os.Remove(dir)
		})
	}
	loop := exec.Command("sh", "-c", "while :; do echo; done")
	out, err := loop.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loop.Process.Kill(); loop.Wait() })
	for _, dir := range dirs {
		put(t, filepath.Join(dir, pod, "cgroup.procs"), strconv.Itoa(loop.Process.Pid))
	}
	tree, err := Open(mount, parent)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	steps := make(chan int, 1)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := out.Read(buffer)
			if err != nil {
				return
			}
			select {
			case steps <- n:
			default:
			}
		}
	}()
	runs := func(within time.Duration) bool {
		for range 20 { // what lies in the pipe
			select {
			case <-steps:
			case <-time.After(10 * time.Millisecond):
			}
		}
		select {
		case <-steps:
			return true
		case <-time.After(within):
			return false
		}
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := tree.Freeze(ctx, uid, []string{id}); err != nil {
			t.Fatal(err)
		}
		cancel()
		if runs(100 * time.Millisecond) {
			t.Fatal("the process runs while it is frozen")
		}
		if err := tree.Compress(t.Context(), uid, []string{id}); err != nil {
			t.Error(err)
		}
		if err := tree.Thaw(uid); err != nil {
			t.Fatal(err)
		}
		if !runs(10 * time.Second) {
			t.Fatal("the process does not run after it was thawed")
		}
	}
}

func TestHasSwap(t *testing.T) {
	for text, want := range map[string]bool{
		"MemTotal: 1 kB\nSwapTotal:       2097148 kB\n": true,
		"SwapTotal:       0 kB\n":                       false,
		"":                                              false,
	} {
		if HasSwap(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}
