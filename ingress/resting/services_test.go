package resting

import (
	"strings"
	"testing"
)

// without is what is left out.
type without uint8

const (
	nothing         without = iota
	theServices             // HTTPRoutes are written as if their Services were there
	theMark                 // Services are made, and not marked
	thePrecondition         // a Service is deleted although it was marked since it was looked at
	theWait                 // marks are taken away when the HTTPRoutes are to go, not after they are gone
)

// requests reports whether requests are lost without it. Without theServices none is, but the
// switch never ends.
func (w without) requests() bool { return w > theServices }

// Each step that keeps Services as long as somebody needs them is needed itself.
func TestAServiceIsThereBecauseOfEachStep(t *testing.T) {
	t.Parallel()
	const gone = "leads to a Service that is not there"
	for what, c := range map[string]struct {
		first world
		fault string
	}{
		"without making them":      {begun(Rest, world{changes: 1, without: theServices}), "the bridge stays"},
		"without the mark":         {begun(Rest, world{changes: 1, without: theMark}), gone},
		"without the precondition": {begun(Rest, world{changes: 1, without: thePrecondition}), gone},
		"without the wait":         {begun(Busy, world{changes: 1, without: theWait}), gone},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if fault, _ := explore(c.first); !strings.Contains(fault, c.fault) {
				t.Errorf("it is: %s", fault)
			}
		})
	}
}
