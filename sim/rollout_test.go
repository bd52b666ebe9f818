package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"ebb.dev/ebb/judge"
)

// Fewer than one in a hundred rollouts to a revision that is as good as the old one goes back,
// under every shape of traffic; one that fails a fifth of its requests is found, and soon where
// there are enough of them. docs/simulation/rollouts.md has more of them.
func TestRolloutsAreJudged(t *testing.T) {
	const each = 30
	g, err := judge.Parse("on")
	if err != nil {
		t.Fatal(err)
	}
	alike, wrong := 0, 0
	for _, k := range simulateRollouts(each, g, 2) {
		back := k.count(rolledOut.wentBack)
		switch {
		case k.fault.client > 0:
			// TestManySendersChangeNoRollout
		case k.fault.alike:
			alike += each
			wrong += back
		case k.fault.worse >= 0.2 && back < each*8/10:
			t.Errorf("%s, %s: only %d of %d went back", k.traffic.name, k.fault.name, back, each)
		case k.traffic.name == "steady" && k.fault.worse == 0.2 && k.fault.from == 0:
			bad, late := 0, 0
			for _, r := range k.all {
				bad += r.bad
				if r.took > 20*time.Second {
					late++
				}
			}
			// 0.1 % of the requests of two minutes.
			if bad > 12*each || late > 0 {
				t.Errorf("%d requests failed in %d rollouts, %d of which took longer than 20 s", bad, each, late)
			}
		}
	}
	if wrong*100 >= alike {
		t.Errorf("%d of %d went back for nothing", wrong, alike)
	}
}

// The report is the same each time, on any number of CPUs.
func TestTheReportOfRolloutsIsTheSameEachTime(t *testing.T) {
	g, _ := judge.Parse("on")
	if a, b := rolloutPage(simulateRollouts(3, g, 1), g), rolloutPage(simulateRollouts(3, g, 1), g); a != b {
		t.Errorf("once\n%s\nand then\n%s", a, b)
	}
}

// What is told of senders changes hardly any rollout that has many of them, and hardly any goes
// back for one.
func TestManySendersChangeNoRollout(t *testing.T) {
	const each = 40
	g, _ := judge.Parse("on")
	normal := latencyTable(1)
	differ, all, one, blind := 0, 0, 0, 0
	for i, shape := range traffics {
		for j, f := range faults {
			slow, untold := latencyTable(f.slowness), shape
			untold.blind = true
			for k := range each {
				play := func(shape traffic) rolledOut {
					return rollOut(g, shape, f, &normal, &slow, rand.New(rand.NewPCG(7, uint64((i*100+j)*1000+k))))
				}
				a, b := play(shape), play(untold)
				switch {
				case f.client == 0:
					all++
					if a != b {
						differ++
						t.Logf("%s, %s: %+v, and %+v if nobody tells of senders", shape.name, f.name, a, b)
					}
				default:
					if a.back {
						one++
					}
					if b.back {
						blind++
					}
				}
			}
		}
	}
	if differ*200 > all {
		t.Errorf("%d of %d rollouts differ", differ, all)
	}
	if one*20 > each*len(traffics) || blind*2 < each*len(traffics) {
		t.Errorf("of %d rollouts with one sender of failures %d go back, and %d if nobody tells of senders", each*len(traffics), one, blind)
	}
}
