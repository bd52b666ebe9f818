package main

import (
	"math"
	"strings"
	"testing"
)

func TestTheTenthAnswerCounts(t *testing.T) {
	took := []float64{3, 12, 1, 2, 5, 4, 7, 6, 9, 8, 11}
	if got := nth(took, 10); got != 11 {
		t.Errorf("the tenth of eleven is %v", got)
	}
	if got := nth(took[:10], 10); got != 12 {
		t.Errorf("the tenth of ten is %v", got)
	}
	if got := nth(took[:9], 10); !math.IsNaN(got) {
		t.Errorf("the tenth of nine is %v", got)
	}
}

func TestPodsThatWakeAtOnceShareANode(t *testing.T) {
	var all []*sleeper
	for _, at := range strings.Fields("a/1 b/2 b/1 a/2 c/1 b/3") {
		node, name, _ := strings.Cut(at, "/")
		all = append(all, &sleeper{name: name, node: node})
	}
	got := ""
	for _, s := range onOneNode(all) {
		got += s.node + s.name + " "
	}
	if got != "b2 b1 b3 " {
		t.Errorf("got %s", got)
	}
	if len(onOneNode(nil)) != 0 {
		t.Error("pods of no node")
	}
}
