package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/place"
	"ebb.dev/ebb/dev/ctl/internal/preflight"
	"ebb.dev/ebb/dev/ctl/internal/process"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

func checkout(t *testing.T, run string) *control {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "dev", "ctl.sh"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders(&parts{gateway: istio, all: true, monitoring: true}) {
		if err := os.MkdirAll(filepath.Join(root, "dev", folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		if err := os.WriteFile(filepath.Join(root, "dev", file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := place.Places{Root: root, Dev: filepath.Join(root, ".dev"), Run: run, Cache: t.TempDir()}
	if err := p.Make(); err != nil {
		t.Fatal(err)
	}
	return newControl(p, step.New(io.Discard, false), io.Discard)
}

func TestTheClusterOfAnotherCheckoutIsLeftAlone(t *testing.T) {
	t.Setenv("CI", "")
	run := t.TempDir()
	mine, other := checkout(t, run), checkout(t, run)
	if err := mine.owned(t.Context()); err != nil {
		t.Fatalf("no cluster: %v", err)
	}
	if err := os.WriteFile(mine.Owner(), []byte(other.Root+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := mine.owned(t.Context()); err != nil {
		t.Fatalf("a cluster that no longer runs is in the way: %v", err)
	}
	if _, err := other.table.Start(t.Context(), process.Program{Name: "etcd", Path: "/bin/sleep", Args: []string{"600"}, Log: filepath.Join(t.TempDir(), "log")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.table.Stop(context.Background(), "etcd", time.Second); err != nil {
			t.Error(err)
		}
	})
	err := mine.owned(t.Context())
	if err == nil || !strings.Contains(err.Error(), "make -C "+other.Root+" down") {
		t.Fatalf("got %v", err)
	}
	if !other.table.Running("etcd") {
		t.Error("the other cluster was stopped")
	}
	if err := other.owned(t.Context()); err != nil {
		t.Errorf("its own checkout is refused: %v", err)
	}
}

func TestTwoRunsAtOnceAreRefused(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	mine, other := checkout(t, run), checkout(t, run)
	release, err := mine.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.lock(); err == nil || !strings.Contains(err.Error(), mine.Root) {
		t.Fatalf("the second: %v", err)
	}
	release()
	release, err = other.lock()
	if err != nil {
		t.Fatalf("after the first is done: %v", err)
	}
	release()
}

func TestRefusalsBeforeAnythingIsStarted(t *testing.T) {
	c := checkout(t, t.TempDir())
	c.machine.UID = func() int { return 1000 }
	for name, f := range map[string]func() error{"up": func() error { return c.up(t.Context(), &parts{gateway: istio}) }, "down": func() error { return c.down(t.Context()) }} {
		if err := f(); err == nil || !strings.Contains(err.Error(), "root") {
			t.Errorf("%s as a common user: %v", name, err)
		}
	}
	c.machine.UID = func() int { return 0 }
	c.machine.Disk = func(string) (preflight.Disk, error) { return preflight.Disk{Free: 1 << 20}, nil }
	if err := c.up(t.Context(), &parts{gateway: istio}); err == nil || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("full disk: %v", err)
	}
	if names := c.table.Names(); len(names) != 0 {
		t.Errorf("started: %v", names)
	}
	if _, err := os.Stat(c.Owner()); err == nil {
		t.Error("a refused start says that the machine's cluster is here")
	}
}

func TestEveryFolderWithAMainIsAnImage(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"samples/hello/main.go":      "// Command hello\npackage main\n",
		"samples/lib/lib.go":         "package lib\n",
		"samples/tests/main_test.go": "package main\n",
		"samples/yaml/service.yaml":  "package main\n",
		"samples/readme.go":          "package main\n",
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := mains(root, "samples")
	if err != nil || !slices.Equal(got, []string{"samples/hello"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := mains(root, "absent"); err != nil || len(got) != 0 {
		t.Errorf("no such folder: %v, %v", got, err)
	}
}
