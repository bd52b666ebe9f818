package judge

import (
	"math"
	"time"
)

// tilts are the alternatives that a Wager bets on: how many times the odds of a bad answer are
// higher at the new revision, or its rate above the bound.
var tilts = [...]float64{2, 4, 8, 16, 64}

const (
	// maxBlock bounds the factor of a block, and that of two within adjacent together, because what
	// happens at the end of a second may show in two. So one moment, however bad, convicts nobody:
	// it takes evidence from three moments to multiply the stake by 400.
	maxBlock = 20
	adjacent = 2 * time.Second
	// firstStake is invested before the first block, and laterStake, a share of the rest, before
	// each further one. So a fault that begins late is found, too, although until then everything
	// spoke for the revision.
	firstStake, laterStake = 0.5, 0.005
	// neverMoreSure bounds a Wager, so that it stays finite whatever happens.
	neverMoreSure = 1e30
)

// Wager is the evidence against the new revision: what a player has who began with 1 and bets, at
// odds that are fair or worse if the revision is no worse than it may be, that it is. To have as
// much as 1/a has a chance of at most a then, however often and long one looks (Ville). Its zero
// value is a player who has not begun.
type Wager struct {
	Begun    bool                `json:"begun,omitempty"`
	Cash     float64             `json:"cash,omitempty"`
	Invested [len(tilts)]float64 `json:"invested,omitzero"`
	// Last are the factors of the newest block, which ended At.
	Last [len(tilts)]float64 `json:"last,omitzero"`
	At   time.Time           `json:"at,omitzero"`
}

// Value is what the player has.
func (w *Wager) Value() float64 {
	if !w.Begun {
		return 1
	}
	sum := w.Cash
	for _, x := range w.Invested {
		sum += x
	}
	return sum
}

// bet multiplies the stakes by the factors of a block, each with a mean of at most 1 if the
// revision is no worse than it may be.
func (w *Wager) bet(factors [len(tilts)]float64, now time.Time) {
	share := laterStake
	if !w.Begun {
		w.Begun, w.Cash, share = true, 1, firstStake
	}
	stake := w.Cash * share
	w.Cash -= stake
	near := now.Sub(w.At) <= adjacent
	for i, f := range factors {
		most := float64(maxBlock)
		if near {
			most /= max(1, w.Last[i])
		}
		w.Last[i] = min(f, most)
		w.Invested[i] = min((w.Invested[i]+stake/float64(len(tilts)))*w.Last[i], neverMoreSure)
	}
	w.At = now
}

// maxCompared bounds the requests to one revision in a block. Of more, one in a few is taken: the
// work grows with them, and whoever can label a pod can make up millions.
const maxCompared = 200_000

// compared are the factors of a block in which bad of the requests had a bad answer, badNew of
// those at the new revision. Which revision a request comes to is chance. So if the revisions are
// alike, the bad ones are spread over them as a draw without replacement spreads them, whoever sent
// them, whatever broke, and however many fail at a time. If the odds are higher at the new
// revision, the draw is tilted towards it (Fisher's noncentral hypergeometric distribution). A
// factor is the ratio of the two probabilities. There is nothing to learn if all or none are bad.
func compared(old, badOld, fresh, badNew uint64) (factors [len(tilts)]float64, informative bool) {
	if crowd := max(old, fresh) / maxCompared; crowd > 0 {
		of := crowd + 1
		old, badOld, fresh, badNew = old/of, badOld/of, fresh/of, badNew/of
	}
	all, bad := old+fresh, badOld+badNew
	if bad == 0 || bad == all || old == 0 || fresh == 0 {
		return factors, false
	}
	// The logarithms of the probabilities, up to a common term.
	first, last := uint64(0), min(bad, fresh)
	if bad > old {
		first = bad - old
	}
	logs := make([]float64, 1, last-first+1)
	most := 0.0
	for y := first; y < last; y++ {
		ratio := float64(bad-y) * float64(fresh-y) / (float64(y+1) * float64(old+y+1-bad))
		logs = append(logs, logs[len(logs)-1]+math.Log(ratio))
		most = max(most, logs[len(logs)-1])
	}
	sum := 0.0
	for _, l := range logs {
		sum += math.Exp(l - most)
	}
	for i, tilt := range tilts {
		// The mean of tilt^y, over tilt^badNew to stay finite.
		mean, step := 0.0, math.Log(tilt)
		for j, l := range logs {
			mean += math.Exp(l - most + (float64(first)+float64(j)-float64(badNew))*step)
		}
		factors[i] = sum / mean
	}
	return factors, true
}

// above are the factors of a block in which bad of n requests had a bad answer, against the claim
// that at most the share bound has: the ratios of the probabilities at a higher rate and at the
// bound.
func above(n, bad uint64, bound float64) (factors [len(tilts)]float64) {
	for i, tilt := range tilts {
		// Where the multiple is no rate, the odds are multiplied.
		rate := bound * tilt / (1 - bound + bound*tilt)
		factors[i] = math.Exp(float64(bad)*math.Log(rate/bound) + float64(n-bad)*math.Log((1-rate)/(1-bound)))
	}
	return factors
}

// aboveAll is the mean of the factors of all requests as one block.
func aboveAll(n, bad uint64, bound float64) (mean float64) {
	for _, factor := range above(n, bad, bound) {
		mean += factor / float64(len(tilts))
	}
	return mean
}

// sureOfMax is how sure maxRateOf is.
const sureOfMax = 0.95

// maxRateOf is the highest rate that is not refuted by bad of n, at any time with a chance of
// sureOfMax: the end of a confidence sequence by Robbins' mixture, with Jeffreys' prior. It takes
// the requests for independent of one another.
func maxRateOf(n, bad uint64) float64 {
	if n == 0 {
		return 1
	}
	lgamma := func(x float64) float64 { l, _ := math.Lgamma(x); return l }
	y, m := float64(bad), float64(n)
	mixture := lgamma(y+0.5) + lgamma(m-y+0.5) - lgamma(m+1) - 2*lgamma(0.5)
	refuted := func(p float64) bool {
		l := 0.0
		if bad > 0 {
			l += y * math.Log(p)
		}
		if bad < n {
			l += (m - y) * math.Log1p(-p)
		}
		return mixture-l >= -math.Log(1-sureOfMax)
	}
	low, high := y/m, 1.0
	if !refuted(high) {
		return 1
	}
	for range 50 {
		if mid := (low + high) / 2; refuted(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}
