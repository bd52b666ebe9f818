package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/network"
	"ebb.dev/ebb/dev/ctl/internal/process"
)

func TestANumberOfNodesIsRefusedClearly(t *testing.T) {
	for _, text := range []string{"0", "9", "-1", "three", "", "1.5"} {
		if n, err := parseNodes(text); err == nil || !strings.Contains(err.Error(), "NODES="+text+":") || !strings.Contains(err.Error(), "1 to 8 nodes") {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for text, want := range map[string]int{"1": 1, "3": 3, "8": 8} {
		if n, err := parseNodes(text); n != want || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

// planned is a checkout with a cluster of so many nodes.
func planned(t *testing.T, nodes int) *control {
	t.Helper()
	c := checkout(t, t.TempDir())
	text, err := json.Marshal(network.Candidates(nodes)[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.In("plan.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheNumberOfNodesStaysAsItIs(t *testing.T) {
	for name, c := range map[string]struct {
		control     *control
		asked, want int
		refused     string
	}{
		"no cluster":              {checkout(t, t.TempDir()), 0, 1, ""},
		"no cluster, three asked": {checkout(t, t.TempDir()), 3, 3, ""},
		"one, nothing asked":      {planned(t, 1), 0, 1, ""},
		"one, one asked":          {planned(t, 1), 1, 1, ""},
		"one, three asked":        {planned(t, 1), 3, 0, "this cluster has 1 node: run `make down` first, or leave out NODES=3"},
		"three, nothing asked":    {planned(t, 3), 0, 3, ""},
		"three, three asked":      {planned(t, 3), 3, 3, ""},
		"three, one asked":        {planned(t, 3), 1, 0, "this cluster has 3 nodes"},
		"three, two asked":        {planned(t, 3), 2, 0, "leave out NODES=2"},
	} {
		p := &parts{nodes: c.asked}
		err := c.control.sameNodes(p)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		}
		if err != nil || p.nodes != c.want {
			t.Errorf("%s: %d nodes, %v, want %d", name, p.nodes, err, c.want)
		}
	}
}

func TestWhatANodeCannotDoIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		control *control
		args    string
		says    string
	}{
		"no cluster":           {checkout(t, t.TempDir()), "b off", "make up"},
		"the only node":        {planned(t, 1), "a off", "make up NODES=3"},
		"no such node":         {planned(t, 3), "d off", "only a, b, c"},
		"nothing to do":        {planned(t, 3), "b", "off | cut"},
		"an unknown verb":      {planned(t, 3), "b explode", "cannot explode"},
		"too much":             {planned(t, 3), "b off now", "cannot off now"},
		"a cut without power":  {planned(t, 3), "b cut", "no power"},
		"frozen without power": {planned(t, 3), "b freeze", "DO=back"},
		"without its name":     {planned(t, 3), "off", "needs a name"},
	} {
		c.control.machine.UID = func() int { return 0 }
		if err := c.control.node(t.Context(), strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
	c := planned(t, 3)
	c.machine.UID = func() int { return 1000 }
	if err := c.node(t.Context(), []string{"b", "off"}); err == nil || !strings.Contains(err.Error(), "root") {
		t.Errorf("as a common user: %v", err)
	}
}

func TestNodesAreFoundByBothNames(t *testing.T) {
	c := planned(t, 3)
	if err := c.loadPlan(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "ebb-dev-b"} {
		if n, err := c.nodeNamed(name); err != nil || n.Hostname() != "ebb-dev-b" {
			t.Errorf("%s: %q, %v", name, n.Hostname(), err)
		}
	}
}

// Tests of faults name the programs of a cluster with one node.
func TestAProgramWithoutItsNodeIsTheFirstNodes(t *testing.T) {
	c := planned(t, 3)
	if err := c.loadPlan(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet-a", "kubelet-b", "kube-proxy", "kube-proxy-a", "etcd"} {
		if _, err := c.table.Start(t.Context(), process.Program{Name: name, Path: "/bin/sleep", Args: []string{"600"}, Log: filepath.Join(t.TempDir(), "log")}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.table.Stop(context.Background(), name, time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	for name, want := range map[string]string{"kubelet": "kubelet-a", "kubelet-b": "kubelet-b", "kube-proxy": "kube-proxy", "etcd": "etcd", "nobody": "nobody"} {
		if got := c.oneOf(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	var out bytes.Buffer
	c.out = &out
	if err := c.status(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"node ebb-dev-b           on     zone b, address 10.88.0.3, pods 10.88.8.0/22\n", "node ebb-dev-c           off    zone c"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestAnImageIsThereIfEveryNodeHasIt(t *testing.T) {
	got := inAll([]string{"a:1\nb:1\n", "b:1\nc:1\n", "b:1\na:1\n"})
	if names := slices.Collect(maps.Keys(got)); !slices.Equal(names, []string{"b:1"}) {
		t.Errorf("got %v", names)
	}
	if got := inAll([]string{"a:1\nb:1\n"}); len(got) != 2 {
		t.Errorf("one node: got %v", got)
	}
}
