package process

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func sleeper(t *testing.T, args ...string) Program {
	t.Helper()
	if len(args) == 0 {
		args = []string{"600"}
	}
	return Program{Name: "sleeper", Path: "/bin/sleep", Args: args, Log: filepath.Join(t.TempDir(), "log")}
}

func table(t *testing.T) Table {
	t.Helper()
	tab := Table{Dir: filepath.Join(t.TempDir(), "pids")}
	t.Cleanup(func() {
		for _, n := range tab.Names() {
			if err := tab.Stop(context.Background(), n, 10*time.Second); err != nil {
				t.Error(err)
			}
		}
	})
	return tab
}

func pid(t *testing.T, tab Table) record {
	t.Helper()
	r, ok := tab.running("sleeper")
	if !ok {
		t.Fatal("the sleeper does not run")
	}
	return r
}

func TestStartTwiceLeavesARunningProgramAlone(t *testing.T) {
	tab, p := table(t), sleeper(t)
	if started, err := tab.Start(t.Context(), p); err != nil || !started {
		t.Fatalf("first start: %v, %v", started, err)
	}
	before := pid(t, tab)
	if started, err := tab.Start(t.Context(), p); err != nil || started {
		t.Fatalf("second start: %v, %v", started, err)
	}
	if after := pid(t, tab); after.PID != before.PID || after.Start != before.Start {
		t.Error("the program was replaced")
	}
}

func TestPIDsAreThoseOfProgramsThatRun(t *testing.T) {
	tab := table(t)
	if _, err := tab.Start(t.Context(), sleeper(t)); err != nil {
		t.Fatal(err)
	}
	if got := tab.PIDs("never started", "sleeper"); len(got) != 1 || got[0] != pid(t, tab).PID {
		t.Errorf("got %v, want the sleeper's alone", got)
	}
}

func TestStartWithOtherArgumentsReplacesTheProgram(t *testing.T) {
	tab, p := table(t), sleeper(t)
	if _, err := tab.Start(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	before := pid(t, tab)
	p.Args = []string{"601"}
	if started, err := tab.Start(t.Context(), p); err != nil || !started {
		t.Fatalf("got %v, %v", started, err)
	}
	if pid(t, tab).PID == before.PID || alive(before) {
		t.Error("the old program still runs")
	}
}

func TestAPidFileOfAnotherBootOrProcessIsNotBelieved(t *testing.T) {
	start, err := startTicks(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	self := record{PID: os.Getpid(), Start: start, Boot: boot(), Want: "x"}
	for name, change := range map[string]func(*record){
		"of another boot":                func(r *record) { r.Boot = "another" },
		"of a number given to another":   func(r *record) { r.Start = "1" },
		"of the first process":           func(r *record) { r.PID = 1 },
		"of a process that is long gone": func(r *record) { r.PID = 1 << 30 },
	} {
		t.Run(name, func(t *testing.T) {
			tab := Table{Dir: t.TempDir()}
			r := self
			change(&r)
			if err := tab.write("x", r); err != nil {
				t.Fatal(err)
			}
			if tab.Running("x") {
				t.Error("believed")
			}
			// Were it signalled, it would be this very test.
			if err := tab.Stop(t.Context(), "x", time.Second); err != nil {
				t.Fatal(err)
			}
			if len(tab.Names()) != 0 {
				t.Error("the stale file is still there")
			}
		})
	}
	tab := Table{Dir: t.TempDir()}
	if err := tab.write("x", self); err != nil || !tab.Running("x") {
		t.Errorf("a true record is not believed (%v)", err)
	}
}

func TestADamagedPidFileIsNoProgram(t *testing.T) {
	tab := Table{Dir: t.TempDir()}
	for _, text := range []string{"", "{", "17", `{"pid":"x"}`} {
		if err := os.WriteFile(tab.file("x"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if tab.Running("x") {
			t.Errorf("%q counts as a running program", text)
		}
	}
}

func TestAProgramThatEndsAtOnceIsAnErrorWithItsLastWords(t *testing.T) {
	tab, p := table(t), sleeper(t)
	p.Path, p.Args = "/bin/sh", []string{"-c", "echo first; echo 'the port is taken' >&2; exit 3"}
	p.Ready = func(context.Context) error { return errors.New("not yet") }
	_, err := tab.Start(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "the port is taken") || !strings.Contains(err.Error(), p.Log) {
		t.Fatalf("got %v", err)
	}
	if len(tab.Names()) != 0 {
		t.Error("a pid file is left")
	}
}

func TestAProgramThatIsNeverReadyIsAnError(t *testing.T) {
	tab, p := table(t), sleeper(t)
	p.Ready = func(context.Context) error { return errors.New("still reading") }
	p.Limit = 10 * time.Millisecond
	if _, err := tab.Start(t.Context(), p); err == nil || !strings.Contains(err.Error(), "still reading") {
		t.Fatalf("got %v", err)
	}
}

func TestStopKillsWhatDoesNotListen(t *testing.T) {
	tab, p := table(t), sleeper(t)
	marker := filepath.Join(t.TempDir(), "deaf")
	p.Path, p.Args = "/bin/sh", []string{"-c", "trap '' TERM; : > " + marker + "; while :; do sleep 600; done"}
	p.Ready = func(context.Context) error { _, err := os.Stat(marker); return err }
	if _, err := tab.Start(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	r := pid(t, tab)
	if err := tab.Stop(t.Context(), "sleeper", 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if alive(r) {
		t.Error("it still runs")
	}
}

func TestNamesOfTheTable(t *testing.T) {
	tab := Table{Dir: t.TempDir()}
	for _, n := range []string{"etcd", "kubelet"} {
		if err := tab.write(n, record{}); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := json.Marshal(tab.Names())
	if string(got) != `["etcd","kubelet"]` {
		t.Errorf("got %s", got)
	}
}

// The first thread of a program that ends may be a zombie while others still hold its ports.
func TestAZombieHasEndedWithItsLastThread(t *testing.T) {
	stat := func(name, state, threads string) string {
		return "42 (" + name + ") " + state + " 1 42 42 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 " + threads + " 0 31337 0 0\n"
	}
	for text, ended := range map[string]bool{
		stat("sleep", "S", "1"):            false,
		stat("etcd", "Z", "7"):             false,
		stat("etcd", "Z", "1"):             true,
		stat("etcd", "Z", "0"):             true,
		stat("etcd", "X", "7"):             true,
		stat("a) Z 1 (b", "S", "1"):        false,
		stat("sh -c (exit 1) Z", "Z", "1"): true,
	} {
		ticks, err := parseStat(text)
		if got := errors.Is(err, os.ErrProcessDone); got != ended {
			t.Errorf("%q: ended is %v, want %v (%v)", text, got, ended, err)
		}
		if !ended && ticks != "31337" {
			t.Errorf("%q: it started at %q", text, ticks)
		}
	}
	for _, text := range []string{"", "42 (etcd) S 1", "no brackets"} {
		if _, err := parseStat(text); err == nil || errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

func TestAProgramThatWasAwayRunsAsBefore(t *testing.T) {
	tab := table(t)
	if _, err := tab.Start(t.Context(), sleeper(t)); err != nil {
		t.Fatal(err)
	}
	before := pid(t, tab)
	if err := tab.Away(t.Context(), "sleeper", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	after := pid(t, tab)
	if after.PID == before.PID || after.Want != before.Want {
		t.Errorf("before %+v, after %+v", before, after)
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(after.PID) + "/cmdline")
	if err != nil || string(text) != "/bin/sleep\x00600\x00" {
		t.Errorf("it runs as %q, %v", text, err)
	}
	if err := tab.Freeze(t.Context(), "sleeper", time.Millisecond); err != nil || !tab.Running("sleeper") {
		t.Errorf("after it was stopped and continued: %v", err)
	}
	if err := tab.Away(t.Context(), "nobody", 0); err == nil {
		t.Error("no error for a program that does not run")
	}
}

// A program of a node runs in the node's network namespace and control group.
func TestAProgramThatEntersAPlaceIsThereAgainAfterItWasAway(t *testing.T) {
	tab, p := table(t), sleeper(t)
	old := filepath.Join(t.TempDir(), "socket")
	p.Enter, p.Clear = []string{"sh", "-c", `export PLACE=$0; exec "$@"`, "a node"}, old
	leave := func() {
		t.Helper()
		if err := os.WriteFile(old, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		proc := "/proc/" + strconv.Itoa(pid(t, tab).PID)
		eventually(t, when+": the program does not follow what enters its place", func() bool {
			text, err := os.ReadFile(proc + "/cmdline")
			return err == nil && string(text) == "/bin/sleep\x00600\x00"
		})
		if text, err := os.ReadFile(proc + "/environ"); err != nil || !strings.Contains(string(text), "PLACE=a node\x00") {
			t.Errorf("%s: it is not in its place: %q, %v", when, text, err)
		}
		if _, err := os.Stat(old); err == nil {
			t.Errorf("%s: the socket of the one before looks ready", when)
		}
	}
	leave()
	if _, err := tab.Start(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	check("started")
	before := pid(t, tab)
	leave()
	if started, err := tab.Start(t.Context(), p); err != nil || started {
		t.Errorf("a second start: %v, %v", started, err)
	}
	if _, err := os.Stat(old); err != nil {
		t.Error("the socket of a running program was removed")
	}
	if err := tab.Away(t.Context(), "sleeper", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	check("away and back")
	if pid(t, tab).PID == before.PID {
		t.Error("it was not away")
	}
	p.Enter = nil
	if started, err := tab.Start(t.Context(), p); err != nil || !started {
		t.Errorf("it stays in a place that it no longer has: %v, %v", started, err)
	}
}

func eventually(t *testing.T, otherwise string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(otherwise)
		}
	}
}
