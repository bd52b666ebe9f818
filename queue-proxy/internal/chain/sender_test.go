package chain

import (
	"testing"
	"time"
)

// Senders are looked for from the start of the pod on, and as long as somebody asks.
func TestSendersAreLookedForWhileAJudgeAsks(t *testing.T) {
	began := time.Now().Add(-time.Hour)
	g := NewGate(GateOptions{Pod: "pod", Now: began})
	asked := func(at time.Time, want bool) {
		t.Helper()
		if got := g.isAsked(at); got != want {
			t.Errorf("%v after the start: asked is %v", at.Sub(began), got)
		}
	}
	asked(began.Add(asksFor-1), true)
	asked(began.Add(asksFor), false)
	g.Judged()
	asked(time.Now().Add(asksFor/2), true)
	asked(time.Now().Add(asksFor), false)
}
