package decide

import (
	"math"
	"math/rand"
	"testing"
	"time"
)

// noises are what a constant load may look like, as a factor of its mean; none deviates by more
// than almost loadNoise.
var noises = map[string]func(r *rand.Rand, second, window int) float64{
	"each second another": func(r *rand.Rand, _, _ int) float64 { return 0.149 * (2*r.Float64() - 1) },
	"a slow wave":         func(_ *rand.Rand, s, w int) float64 { return 0.149 * math.Sin(2*math.Pi*float64(s)/float64(7*w)) },
	"one level or another": func(_ *rand.Rand, s, w int) float64 {
		if s/(3*w)%2 == 0 {
			return 0.149
		}
		return -0.149
	},
}

// scaled plays loads, one a second, on pods that are ready a second after they were asked for, and
// returns the scale decided in each second. It ticks every other second.
func scaled(c Config, seconds int, load func(second int) float64) []int32 {
	series := NewSeries(c.StableWindow, PanicWindow(c.StableWindow, 10))
	s := Start(c, 1, NoDecision, epoch)
	ready, wanted := int32(1), int32(1)
	var out []int32
	for i := range seconds {
		now := epoch.Add(time.Duration(i) * time.Second)
		series.Add(now, "activator", Report{Concurrency: load(i)})
		before := wanted
		if i%2 == 0 {
			var d Decision
			d, s = Decide(c, s, series.Observe(now, Concurrency, 0, ready, false), now)
			wanted = max(d.Desired, 1)
		}
		out = append(out, wanted)
		ready = min(before, wanted)
	}
	return out
}

// falls counts how often a scale is lowered.
func falls(scale []int32) (n int) {
	for i := 1; i < len(scale); i++ {
		if scale[i] < scale[i-1] {
			n++
		}
	}
	return n
}

// Whatever whole number of pods the mean of a constant load is for, and whatever its noise is like,
// the scale does not fall, and so does not turn round; it rises no higher than the noise does. The
// compatible decision flips.
func TestNoiseOfAConstantLoadNeverLowersAnAdaptiveScale(t *testing.T) {
	flips := 0
	for name, noise := range noises {
		for _, window := range []int{6, 10, 60} {
			const target = 0.7
			for _, n := range []float64{1, 2, 3, 4, 5, 7, 10, 20, 50, 200} {
				for _, off := range []float64{-0.1, 0, 0.01} {
					r := rand.New(rand.NewSource(int64(n)))
					c := defaults()
					c.Target, c.Total, c.StableWindow = target, target/0.7, time.Duration(window)*time.Second
					mean := n * (1 + off) * target
					load := func(i int) float64 { return mean * (1 + noise(r, i, window)) }
					// The start is a panic, which takes back after a window what a single second
					// asked for too much.
					seconds, start := 30*window, 2*window
					flips += falls(scaled(c, seconds, load)[start:])
					c.Steady = true
					scale := scaled(c, seconds, load)[start:]
					if f := falls(scale); f > 0 {
						t.Errorf("%s, a window of %d s, target %v, load %v: %d falls", name, window, target, mean, f)
					}
					if last, most := scale[len(scale)-1], pods(1.15*mean/target); last > most {
						t.Errorf("%s, a window of %d s, target %v, load %v: %d pods, noise asks for %d at most", name, window, target, mean, last, most)
					}
				}
			}
		}
	}
	if flips < 500 {
		t.Errorf("without hysteresis the scale falls only %d times, so there is nothing to hold", flips)
	}
}

// A load that falls to six tenths or less is followed within a window and two ticks, to what the
// noise of the new one asks for.
func TestAFallOfLoadIsFollowedByAnAdaptiveScale(t *testing.T) {
	for name, noise := range noises {
		for _, window := range []int{6, 10, 60} {
			for _, n := range []float64{2, 3, 5, 10, 50} {
				for _, left := range []float64{0.6, 0.5, 0.3, 0.1} {
					r := rand.New(rand.NewSource(int64(n)))
					c := defaults()
					c.StableWindow, c.Steady = time.Duration(window)*time.Second, true
					// The wave is at its middle, the level at its end, when the load falls.
					at := 42 * window
					load := func(i int) float64 {
						mean := n * c.Target
						if i >= at {
							mean *= left
						}
						return mean * (1 + noise(r, i, window))
					}
					scale := scaled(c, at+window+5, load)
					most := pods(1.15 * n * left)
					if got := scale[len(scale)-1]; got > most {
						t.Errorf("%s, a window of %d s: %d pods a window after a load for %v fell to %v of it, want %d at most", name, window, got, n, left, most)
					}
				}
			}
		}
	}
}

// Without a target that is learned nothing of this is there: whatever it is asked, the state stays
// empty.
func TestOnlyALearnedTargetHasHysteresis(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	c := defaults()
	s := Start(c, 1, NoDecision, epoch)
	for i := range 1000 {
		var d Decision
		d, s = Decide(c, s, Observation{Ready: 1 + int32(r.Intn(9)), Stable: 60 * r.Float64(), Panic: 60 * r.Float64(), Known: true}, epoch.Add(time.Duration(2*i)*time.Second))
		if d.Rule == RuleHysteresis || s.Held != (Hysteresis{}) || s.Tried != (Hysteresis{}) {
			t.Fatalf("decision %d: %s, %+v, %+v", i, d.Reason(), s.Held, s.Tried)
		}
	}
}

// Whatever the function and the constant load on it are: once the lesson has ended the scale does
// not turn round, and it moves twice at most. Load and throughput deviate each second, and some
// functions share a machine that is full.
func TestALearnedScaleIsCalmUnderLoadsOfAllKinds(t *testing.T) {
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		service := 0.002 + 0.1*r.Float64()
		f := []function{singleThreaded(service), waiting(10*service, service), cores(2, service), slowing(4, service), waiting(service, service/10)}[r.Intn(5)]
		configured := 1 + 20*r.Float64()
		outstanding := configured * float64(1+r.Intn(8)) * []float64{1, 1, 0.9, 1 + r.Float64()}[r.Intn(4)]
		machine := []float64{0, 0, 2 / service}[r.Intn(3)]
		got := run(f, machine, outstanding, configured, []float64{0.7, 1}[r.Intn(2)], 20, []float64{0.02, 0.1, 0.2}[r.Intn(3)], 0.15*r.Float64())
		if got.late.reversals > 0 || got.late.changes > 2 {
			t.Errorf("seed %d: %d changes and %d reversals after the lesson, to %d pods: %s: %v", seed, got.late.changes, got.late.reversals, got.pods, got.adaptive, got.steps)
		}
	}
}
