package judge

import (
	"math"

	"ebb.dev/ebb/wire"
)

// sureOfRest is how many standard deviations more than by chance the new revision must fail of the
// requests that are not of one drawer.
const sureOfRest = 2.4

// Drawn is how the requests that failed would be spread if the revisions were alike: how many of
// those of each drawer would have come to the new one, with their variance. The last of both is of
// all requests, also those whose sender is unknown.
type Drawn struct {
	Expected [wire.SenderDrawers + 1]float64 `json:"expected,omitzero"`
	Spread   [wire.SenderDrawers + 1]float64 `json:"spread,omitzero"`
}

// add takes a block: each of its requests had the same chance to come to the new revision. Where
// many of all fail, a draw without replacement varies less.
func (d *Drawn) add(old, fresh *Counts) {
	all, bad := old.Requests+fresh.Requests, old.Errors+fresh.Errors
	if all < 2 {
		return
	}
	chance := float64(fresh.Requests) / float64(all)
	varies := chance * (1 - chance) * float64(all-bad) / float64(all-1)
	one := func(drawer int, bad uint64) {
		d.Expected[drawer] += float64(bad) * chance
		d.Spread[drawer] += float64(bad) * varies
	}
	for i := range old.Senders {
		one(i, old.Senders[i].Errors+fresh.Senders[i].Errors)
	}
	one(wire.SenderDrawers, bad)
}

// Lately is what came since nothing spoke against the new revision last: its requests, and how the
// failures of both would be spread. A fault may begin when the revision has answered many well.
type Lately struct {
	Tally
	Senders [wire.SenderDrawers]Tally `json:"senders,omitzero"`
	Drawn   Drawn                     `json:"drawn,omitzero"`
}

func (l *Lately) add(old, fresh *Counts) {
	l.Drawn.add(old, fresh)
	l.Tally.add(fresh.Tally)
	for i, t := range fresh.Senders {
		l.Senders[i].add(t)
	}
}

// alone returns how many of the failures lately have one drawer, if its sender may have made up the
// charge; else 0. It may have if the requests of all others say too little: that the revision fails
// more than the bound of them is no suspicion, or not beyond chance more than the old one does.
//
// Any drawer may be the one: its failures need not be the most, if others fail by chance besides.
// One with at least half of what was answered well, as far as senders are known, is no single
// sender: behind a proxy all clients have its address.
func (s *State) alone(bound float64) (most uint64) {
	good := uint64(0)
	for i := range s.New.Senders {
		good += s.goodOf(i)
	}
	for i, of := range s.Lately.Senders {
		if of.Errors > most && 2*s.goodOf(i) < good && !s.without(i, bound) {
			most = of.Errors
		}
	}
	return most
}

// without reports whether the requests lately that are not of a drawer speak against the revision.
func (s *State) without(drawer int, bound float64) bool {
	l, of := &s.Lately, s.Lately.Senders[drawer]
	requests := l.Requests - min(of.Requests, l.Requests)
	bad := min(l.Errors-min(of.Errors, l.Errors), requests)
	failing := aboveAll(requests, bad, bound)
	const all = wire.SenderDrawers
	more := float64(bad) - (l.Drawn.Expected[all] - l.Drawn.Expected[drawer])
	spread := max(0, l.Drawn.Spread[all]-l.Drawn.Spread[drawer])
	return failing >= suspicion && more > sureOfRest*math.Sqrt(spread)
}

// goodOf is how many requests of a drawer were answered well.
func (s *State) goodOf(drawer int) uint64 {
	return s.Old.Senders[drawer].good() + s.New.Senders[drawer].good()
}

func (t Tally) good() uint64 { return t.Requests - t.Errors }
