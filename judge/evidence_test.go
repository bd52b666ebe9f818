package judge

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// draw is the probability that badNew of bad requests are among the fresh ones, if the odds there
// are higher by the tilt: counted anew, with binomial coefficients.
func draw(old, fresh, bad, badNew uint64, tilt float64) float64 {
	choose := func(n, k uint64) float64 {
		if k > n {
			return 0
		}
		a, _ := math.Lgamma(float64(n + 1))
		b, _ := math.Lgamma(float64(k + 1))
		c, _ := math.Lgamma(float64(n - k + 1))
		return math.Exp(a - b - c)
	}
	weight := func(y uint64) float64 {
		if y > bad {
			return 0
		}
		return choose(fresh, y) * choose(old, bad-y) * math.Pow(tilt, float64(y))
	}
	all := 0.0
	for y := range bad + 1 {
		all += weight(y)
	}
	return weight(badNew) / all
}

// The proof that a bet on a block is fair, for every small block: if the revisions are alike, the
// mean of each factor is 1; if the new one is better, it is less; and the factor is the ratio of
// the two probabilities.
func TestABetOnABlockIsFair(t *testing.T) {
	for old := uint64(1); old <= 7; old++ {
		for fresh := uint64(1); fresh <= 7; fresh++ {
			for bad := uint64(1); bad < old+fresh; bad++ {
				var alike, better, worse [len(tilts)]float64
				for badNew := uint64(0); badNew <= min(bad, fresh); badNew++ {
					if bad-badNew > old {
						continue
					}
					factors, ok := compared(old, bad-badNew, fresh, badNew)
					if !ok {
						t.Fatalf("%d of %d and %d of %d tell nothing", bad-badNew, old, badNew, fresh)
					}
					for i, f := range factors {
						if want := draw(old, fresh, bad, badNew, tilts[i]) / draw(old, fresh, bad, badNew, 1); math.Abs(f/want-1) > 1e-9 {
							t.Fatalf("%d of %d and %d of %d, %v times the odds: %v, want %v", bad-badNew, old, badNew, fresh, tilts[i], f, want)
						}
						alike[i] += f * draw(old, fresh, bad, badNew, 1)
						better[i] += f * draw(old, fresh, bad, badNew, 0.5)
						worse[i] += f * draw(old, fresh, bad, badNew, tilts[i])
					}
				}
				for i := range tilts {
					if math.Abs(alike[i]-1) > 1e-9 || better[i] > 1+1e-9 || worse[i] < 1-1e-9 {
						t.Fatalf("%d and %d requests, %d bad, %v times the odds: a mean of %v if alike, %v if better, %v if worse",
							old, fresh, bad, tilts[i], alike[i], better[i], worse[i])
					}
				}
			}
		}
	}
	for _, c := range [][4]uint64{{10, 0, 10, 0}, {10, 10, 10, 10}, {0, 0, 10, 5}, {10, 5, 0, 0}} {
		if f, ok := compared(c[0], c[1], c[2], c[3]); ok {
			t.Errorf("%v: %v, though there is nothing to compare", c, f)
		}
	}
}

// The same for the bet that a revision is above its bound.
func TestABetOnTheBoundIsFair(t *testing.T) {
	mean := func(n uint64, rate, bound float64, tilt int) (sum float64) {
		for bad := range n + 1 {
			a, _ := math.Lgamma(float64(n + 1))
			b, _ := math.Lgamma(float64(bad + 1))
			c, _ := math.Lgamma(float64(n - bad + 1))
			chance := math.Exp(a-b-c) * math.Pow(rate, float64(bad)) * math.Pow(1-rate, float64(n-bad))
			sum += chance * above(n, bad, bound)[tilt]
		}
		return sum
	}
	for _, bound := range []float64{0.0001, 0.005, 0.5} {
		for n := uint64(1); n < 40; n += 3 {
			for i := range tilts {
				if at, below := mean(n, bound, bound, i), mean(n, bound/2, bound, i); math.Abs(at-1) > 1e-9 || below >= 1 {
					t.Errorf("%d requests, a bound of %v, %v times: a mean of %v at the bound, %v below", n, bound, tilts[i], at, below)
				}
			}
		}
	}
}

// Whoever looks after each block sees evidence of 20 in at most 5 % of the cases, if there is
// nothing to see; and nothing is lost in bets that neither win nor lose.
func TestLookingOftenConvictsNobody(t *testing.T) {
	const games, blocks, much = 500, 200, 20.0
	r := rand.New(rand.NewPCG(1, 1))
	for name, bad := range map[string]float64{"few fail": 0.002, "many fail": 0.2} {
		wins, sum := 0, 0.0
		for range games {
			var w Wager
			won := false
			for block := range blocks {
				var n, failed [2]uint64
				for range 20 {
					to := 0
					if r.Float64() < 0.1 {
						to = 1
					}
					n[to]++
					if r.Float64() < bad {
						failed[to]++
					}
				}
				if f, ok := compared(n[0], failed[0], n[1], failed[1]); ok {
					w.bet(f, time.Unix(int64(block), 0))
				}
				won = won || w.Value() >= much
			}
			if won {
				wins++
			}
			sum += w.Value() / games
		}
		if share := float64(wins) / games; share > 1/much || sum > 1.3 {
			t.Errorf("%s: %.1f %% look bad at some time, and the mean is %.2f in the end", name, 100*share, sum)
		}
	}
	w := Wager{}
	for block := range 1000 {
		w.bet([len(tilts)]float64{1, 1, 1, 1, 1}, time.Unix(int64(block), 0))
	}
	if v := w.Value(); math.Abs(v-1) > 1e-9 {
		t.Errorf("%v is left of 1", v)
	}
}

// One moment convicts nobody, though it shows in two blocks. Three do.
func TestEvidenceComesFromThreeMoments(t *testing.T) {
	const convicts = 2 / FalseAlarms
	bad, _ := compared(1000, 0, 1000, 1000)
	play := func(seconds ...int64) float64 {
		var w Wager
		for _, at := range seconds {
			w.bet(bad, time.Unix(at, 0))
		}
		return w.Value()
	}
	for _, few := range [][]int64{{1}, {1, 2}, {1, 10}, {1, 2, 10, 11}} {
		if v := play(few...); v >= convicts {
			t.Errorf("%v convict with %v", few, v)
		}
	}
	if v := play(1, 2, 10, 11, 20, 21); v < convicts {
		t.Errorf("three moments are worth %v", v)
	}
}

func TestTheMostThatFails(t *testing.T) {
	for _, c := range []struct {
		n, bad    uint64
		low, high float64
	}{{0, 0, 1, 1}, {1, 1, 1, 1}, {10, 10, 1, 1}, {10, 0, 0.3, 0.5}, {1000, 0, 0.004, 0.008}, {1000, 10, 0.015, 0.03}, {1 << 40, 1 << 30, 0.00097, 0.00098}} {
		if most := maxRateOf(c.n, c.bad); !(most >= c.low && most <= c.high) {
			t.Errorf("%d of %d: at most %v, want from %v to %v", c.bad, c.n, most, c.low, c.high)
		}
	}
	r := rand.New(rand.NewPCG(2, 2))
	const rate, games = 0.03, 100
	wrong := 0
	for range games {
		for n, bad := uint64(1), uint64(0); n <= 300; n++ {
			if r.Float64() < rate {
				bad++
			}
			if maxRateOf(n, bad) < rate {
				wrong++
				break
			}
		}
	}
	if wrong > games/20 {
		t.Errorf("%d of %d are wrong at some time", wrong, games)
	}
}

// However much there is, the figures stay finite.
func FuzzCompared(f *testing.F) {
	f.Add(uint64(99), uint64(0), uint64(1), uint64(1))
	f.Add(uint64(5), uint64(5), uint64(5000), uint64(4999))
	f.Fuzz(func(t *testing.T, old, badOld, fresh, badNew uint64) {
		old, fresh = old%20_000, fresh%20_000
		badOld, badNew = badOld%(old+1), badNew%(fresh+1)
		var w, x Wager
		if factors, ok := compared(old, badOld, fresh, badNew); ok {
			w.bet(factors, time.Unix(1, 0))
		}
		x.bet(above(fresh, badNew, 0.005), time.Unix(1, 0))
		for _, v := range []float64{w.Value(), x.Value()} {
			if !(v >= 0.49 && v <= firstStake*maxBlock+1) {
				t.Errorf("%d of %d, %d of %d: %+v, %+v", badOld, old, badNew, fresh, w, x)
			}
		}
	})
}

// Counts that no revision has are not worth their memory.
func TestAMadeUpCrowdCostsLittle(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	factors, ok := compared(1<<28, 1<<20, 1<<28, 1<<28)
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 16<<20 {
		t.Errorf("it takes %d MiB", bytes>>20)
	}
	if !ok || !(factors[0] > maxBlock) {
		t.Errorf("one that fails all: %v, %v", factors, ok)
	}
	if few, _ := compared(1000, 1, 1000, 10); few[0] <= 1 {
		t.Errorf("one that fails more: %v", few)
	}
}
