package revision

import (
	"fmt"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/zero"
)

var epoch = time.Unix(1_700_000_000, 0)

func config() *Config {
	return &Config{UID: "1", Generation: 1, BudgetOwner: "default/hello", Scraped: true, PanicWindow: 6 * time.Second,
		Formula: decide.Config{Total: 10, Target: 7, ContainerConcurrency: 10, TargetBurstCapacity: 211, ActivatorCapacity: 100,
			MaxScaleUpRate: 1000, MaxScaleDownRate: 2, PanicThreshold: 2, StableWindow: time.Minute, Reachable: true},
		Zero: zero.Config{Initial: 1, ScaleToZero: true, StableWindow: time.Minute, Grace: 30 * time.Second,
			ProgressDeadline: 10 * time.Minute, PathHold: time.Minute}}
}

// asleep is the status of a revision that was scaled to zero.
func asleep() State {
	return State{Zero: zero.State{Active: zero.No, ActiveReason: zero.NoTraffic, Initialized: true, Proxied: true}}
}

// A service that wakes often has pods with new names each time.
func TestASleepingRevisionRemembersNoReporters(t *testing.T) {
	r := New(config(), Counts{}, epoch)
	r.Import(asleep(), 0, epoch)
	for i := range 20 {
		now := epoch.Add(time.Duration(i) * 5 * time.Minute)
		r.Record(Sample{Reporter: fmt.Sprint("pod-", i)}, now)
		r.Rest(now)
	}
	r.Rest(epoch.Add(2 * time.Hour))
	if n := len(r.reporters); n != 0 {
		t.Errorf("%d reporters are remembered minutes after the last one said anything", n)
	}
}

// A step of the way to zero has its own time: it is not taken early, and it does not keep other
// revisions from being served.
func TestAStepIsNotTakenEarly(t *testing.T) {
	r := New(config(), Counts{Ready: 1}, epoch)
	r.Ring(epoch, epoch)
	r.StartScrapesAt(epoch.Add(time.Hour))
	r.clocks.step = epoch.Add(2 * time.Millisecond)
	soon := 5 * time.Millisecond
	if r.DueWith(epoch, epoch.Add(soon)) {
		t.Error("due before its time")
	}
	if _, decide := r.Ring(epoch, epoch.Add(soon)); decide {
		t.Error("decided before its time")
	}
	if at := epoch.Add(2 * time.Millisecond); !r.DueWith(at, at.Add(soon)) {
		t.Error("not due at its time")
	} else if _, decide := r.Ring(at, at.Add(soon)); !decide {
		t.Error("not decided at its time")
	}
}
