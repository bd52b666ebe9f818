package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// What a person had before must be there again, however the run ends.
func TestEbbIsInstalledAgainAfterAFailure(t *testing.T) {
	again := filepath.Join(t.TempDir(), "again")
	for name, command := range map[string]string{"a failure": "echo it is full >&2; exit 3", "an interruption": "sleep 60; true"} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		b := &bench{options: options{rounds: 1, commands: map[string]string{knative: command, ebb: "touch " + again}}, figures: figures{},
			out: &result.Printer{Bench: "peer", Out: &bytes.Buffer{}}}
		err := b.run(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "install knative") {
			t.Errorf("after %s: %v", name, err)
		}
		if err := os.Remove(again); err != nil {
			t.Errorf("after %s Ebb is not there: %v", name, err)
		}
	}
}

func TestASummaryHasMedianBoundsAndRatio(t *testing.T) {
	f := figures{}
	for _, v := range []struct {
		system string
		value  float64
	}{{knative, 30}, {ebb, 10}, {knative, 50}, {ebb, 20}} {
		f.add("b_ms", v.system, v.value)
	}
	f.add("a_ms", floor, 5)
	want := []result.Fields{
		{"figure": "a_ms", "floor": 5.0, "floor_low": 5.0, "floor_high": 5.0},
		{"figure": "b_ms", "ebb": 15.0, "ebb_low": 10.0, "ebb_high": 20.0, "knative": 40.0, "knative_low": 30.0, "knative_high": 50.0, "ebb_of_knative": 0.375},
	}
	if diff := cmp.Diff(want, f.summaries()); diff != "" {
		t.Error(diff)
	}
}

func TestGroupsAreFoundInBothVersions(t *testing.T) {
	const id = "0123abcd"
	for name, c := range map[string]struct {
		text string
		want group
		ok   bool
	}{
		"version 1": {"11:memory:/kubepods/burstable/pod1/0123abcd\n4:cpu,cpuacct:/kubepods/burstable/pod1/0123abcd\n0::/\n",
			group{"/sys/fs/cgroup/cpu,cpuacct/kubepods/burstable/pod1/0123abcd", "/sys/fs/cgroup/memory/kubepods/burstable/pod1/0123abcd"}, true},
		"version 2":         {"0::/kubepods.slice/cri-0123abcd.scope\n", group{"/sys/fs/cgroup/kubepods.slice/cri-0123abcd.scope", "/sys/fs/cgroup/kubepods.slice/cri-0123abcd.scope"}, true},
		"another container": {"0::/kubepods/other\n", group{}, false},
	} {
		if got, ok := parseGroup(c.text, id); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
}

func TestUsageIsReadInBothVersions(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"version 1": {"memory.stat": "rss 1\nrss_huge 5\ntotal_cache 7\ntotal_rss 4096\n", "cpuacct.usage": "2500000\n"},
		"version 2": {"memory.stat": "anon 4096\nanon_thp 9\n", "cpu.stat": "usage_usec 2500\nuser_usec 1\n"},
	} {
		folder := t.TempDir()
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		g := group{folder, folder}
		used, err := groups{"both": {g, g}}.usage()
		if want := (usage{5 * time.Millisecond, 8192}); err != nil || used["both"] != want {
			t.Errorf("%s: two of them have used %+v, %v, want %+v", name, used, err, want)
		}
	}
	if _, err := (group{t.TempDir(), t.TempDir()}).usage(); err == nil {
		t.Error("a group that is gone has used something")
	}
}

func TestAStartFromZeroBeginsAProcess(t *testing.T) {
	began := time.Unix(1000, 0)
	reply := probe.Reply{Sent: began.Add(100 * time.Millisecond), Took: 400 * time.Millisecond, Status: 200, Header: http.Header{}}
	if _, err := startOf(began, reply); err == nil {
		t.Error("nothing tells when the process began")
	}
	reply.Header.Set("X-Process-Start", "1000300000000")
	if s, err := startOf(began, reply); err != nil || s != (start{answered: 500, began: 300}) {
		t.Errorf("got %+v, %v", s, err)
	}
	reply.Header.Set("X-Process-Start", "999000000000")
	if _, err := startOf(began, reply); err == nil || !strings.Contains(err.Error(), "1s older") {
		t.Errorf("of a process that was there: %v", err)
	}
}
