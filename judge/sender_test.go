package judge

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// attacked plays two minutes in which clients send a fifth to two thirds as many requests as all
// others together, which only the new revision fails.
func attacked(g Guard, seed uint64, noise float64, told bool, clients ...int) (back, waited bool) {
	r := rand.New(rand.NewPCG(seed, 5))
	var s State
	rate, attack, share := 10+r.IntN(100), 0.2+0.47*r.Float64(), 1+r.IntN(30)
	for second := range 120 {
		in := Input{Told: true, Share: share}
		hostile := int(float64(rate) * attack)
		for i := range rate + hostile {
			c, bad, drawer := &in.Old, r.Float64() < noise, r.IntN(len(s.Old.Senders))
			if i >= rate {
				drawer = clients[i%len(clients)]
			}
			if r.IntN(100) < share {
				c, bad = &in.New, bad || i >= rate
			}
			c.count(drawer, bad, told)
		}
		var d Decision
		if d, s = Decide(g, s, in, epoch.Add(time.Duration(second)*time.Second)); d.Verdict == GoBack {
			return true, waited
		}
		waited = waited || d.Rule == RuleSender && d.Verdict == Wait && d.Alone > 0
	}
	return false, waited
}

// One client cannot send a revision back, and hardly if requests of others fail at both revisions:
// the more do, the sooner chance helps it. Several can, and so can one if nobody tells of senders.
func TestOneClientSendsNothingBack(t *testing.T) {
	g, err := Parse("on")
	if err != nil {
		t.Fatal(err)
	}
	const games = 200
	for _, c := range []struct {
		name        string
		noise       float64
		told        bool
		clients     []int
		least, most int // of the games that go back
	}{
		{"one", 0, true, []int{3}, 0, 0},
		{"one, and some requests fail", 0.001, true, []int{3}, 0, games / 50},
		{"one, and many requests fail", 0.05, true, []int{3}, 0, games / 5},
		{"three", 0.001, true, []int{3, 7, 12}, games * 9 / 10, games},
		{"nobody tells of senders", 0.001, false, []int{3}, games * 9 / 10, games},
	} {
		backs, waits := 0, 0
		for seed := range uint64(games) {
			back, waited := attacked(g, seed, c.noise, c.told, c.clients...)
			if back {
				backs++
			}
			if waited {
				waits++
			}
		}
		if backs < c.least || backs > c.most {
			t.Errorf("%s: %d of %d go back, want %d to %d", c.name, backs, games, c.least, c.most)
		}
		if len(c.clients) == 1 && c.told && waits < games*8/10 {
			t.Errorf("%s: only %d of %d wait for a person", c.name, waits, games)
		}
	}
}

// Half an hour went well, but for the failures that both revisions have, when a fault begins or a
// client sends what only the new revision fails. The fault is found as soon as without senders. The
// client is one of many with failures by then, and sends nothing back.
func TestWhatBeginsLate(t *testing.T) {
	g, err := Parse("on")
	if err != nil {
		t.Fatal(err)
	}
	const late, rate, share = 1800, 100, 30
	play := func(seed uint64, told, fault bool) (backAfter int, waited bool) {
		r := rand.New(rand.NewPCG(seed, 7))
		var s State
		for second := range late + 60 {
			in, hostile := Input{Told: true, Share: share}, 0
			if second >= late && !fault {
				hostile = 5
			}
			for i := range rate + hostile {
				c, bad, drawer := &in.Old, r.Float64() < 0.002, r.IntN(len(s.Old.Senders))
				if r.IntN(100) < share {
					c, bad = &in.New, bad || i >= rate || fault && second >= late && r.Float64() < 0.05
				}
				if i >= rate {
					drawer = 3
				}
				c.count(drawer, bad, told)
			}
			var d Decision
			if d, s = Decide(g, s, in, epoch.Add(time.Duration(second)*time.Second)); d.Verdict == GoBack {
				return second - late, waited
			}
			waited = waited || second >= late && d.Rule == RuleSender
		}
		return -1, waited
	}
	for seed := range uint64(20) {
		with, _ := play(seed, true, true)
		without, _ := play(seed, false, true)
		if without < 0 || with < without || with > without+5 {
			t.Errorf("game %d: a fault is found after %d s, and after %d s if nobody tells of senders", seed, with, without)
		}
		if after, waited := play(seed, true, false); after >= 0 || !waited {
			t.Errorf("game %d: one client sends it back after %d s, or does not stop it (%v)", seed, after, waited)
		}
	}
}

// What would be of a drawer by chance is the mean of a draw of all requests of the block, with its
// variance.
func TestWhatChanceSendsToTheNewRevision(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 6))
	const old, fresh, bad, draws = 60, 40, 30, 20_000
	var d Drawn
	o, f := Counts{Tally: Tally{old, 20}}, Counts{Tally: Tally{fresh, 10}}
	o.Senders[2], f.Senders[2] = Tally{30, 20}, Tally{19, 10}
	d.add(&o, &f)
	d.add(&Counts{}, &Counts{}) // nothing came
	sum, squares := 0.0, 0.0
	for range draws {
		at := 0.0
		for _, place := range r.Perm(old + fresh)[:bad] {
			if place < fresh {
				at++
			}
		}
		sum += at
		squares += at * at
	}
	mean := sum / draws
	variance := squares/draws - mean*mean
	if math.Abs(d.Expected[2]-mean) > 0.1 || math.Abs(d.Spread[2]-variance) > 0.3 {
		t.Errorf("expected %v and spread %v, drawn %v and %v", d.Expected[2], d.Spread[2], mean, variance)
	}
	if all := len(d.Expected) - 1; d.Expected[all] != d.Expected[2] || d.Expected[3] != 0 {
		t.Errorf("of all and of another drawer: %v, %v", d.Expected[all], d.Expected[3])
	}
}

// count adds a request, with its sender if that is told.
func (c *Counts) count(drawer int, bad, told bool) {
	one := Tally{Requests: 1}
	if bad {
		one.Errors = 1
	}
	c.Tally.add(one)
	if told {
		c.Senders[drawer].add(one)
	}
}
