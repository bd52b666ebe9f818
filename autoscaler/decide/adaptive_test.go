package decide

import (
	"fmt"
	"math"
	"math/rand"
	"testing"
	"time"
)

// function is the throughput of one pod at a mean concurrency, in requests a second.
type function func(concurrency float64) float64

// singleThreaded works on one request at a time, for the given seconds each.
func singleThreaded(service float64) function {
	return func(n float64) float64 { return math.Min(n, 1) / service }
}

// waiting spends wait seconds on others and service seconds on its one core.
func waiting(wait, service float64) function {
	return func(n float64) float64 { return math.Min(n/(wait+service), 1/service) }
}

// cores works on as many requests at once.
func cores(c, service float64) function {
	return func(n float64) float64 { return math.Min(n, c) / service }
}

// slowing loses throughput above its best concurrency, as by contention or paging.
func slowing(best, service float64) function {
	return func(n float64) float64 {
		if n <= best {
			return n / service
		}
		return best / service / (1 + 0.05*(n-best))
	}
}

type outcome struct {
	pods       int32
	throughput float64
	changes    int // of wanted pods in the last half of the time
	adaptive   Adaptive
	// steps are all changes of wanted pods, "second: pods"; late counts those from two minutes, and
	// two windows after the first lesson, on.
	steps []string
	late  struct{ changes, reversals int }
}

// run keeps a number of requests outstanding for ten minutes on pods that start in a second, under
// the whole decision. The configured target is that share of a pod's capacity. All pods together
// complete at most machine requests a second; 0 is no bound. Throughput and, by loadNoise, what is
// outstanding deviate at random.
func run(f function, machine, outstanding, configured, share float64, most int32, noise, loadNoise float64) outcome {
	r := rand.New(rand.NewSource(1))
	c := defaults()
	c.Total, c.Target = configured/share, configured
	c.StableWindow = 10 * time.Second
	s := Start(c, 1, NoDecision, epoch)
	series := NewSeries(10*time.Second, time.Second)
	var a Adaptive
	ready, starting := int32(1), int32(0)
	out := outcome{}
	const seconds = 600
	wanted, mean, direction, lesson := int32(1), outstanding, int32(0), 0
	for i := range seconds {
		outstanding := mean * (1 + loadNoise*(2*r.Float64()-1))
		now := epoch.Add(time.Duration(i) * time.Second)
		ready, starting = ready+starting, 0
		n := outstanding / float64(ready)
		x := f(n) * float64(ready)
		if machine > 0 {
			x = math.Min(x, machine)
		}
		x *= 1 + noise*(2*r.Float64()-1)
		a = a.Learn(now, configured, share, Work{Completed: x, BusySeconds: outstanding, Ready: ready, Wanted: wanted})
		if trying := a.Phase == settling || a.Phase == measuring; trying && (lesson == 0 || lesson == i-1) {
			lesson = i
		}
		series.Add(now, "activator", Report{Concurrency: outstanding})
		var d Decision
		d, s = Decide(a.Config(c), s, series.Observe(now, Concurrency, 0, ready, true), now)
		next := min(d.Desired, most)
		if next != wanted {
			out.steps = append(out.steps, fmt.Sprintf("%d: %d", i, next))
			if i > seconds/2 {
				out.changes++
			}
			if i > 120 && i > lesson+20 {
				out.late.changes++
				if direction*(next-wanted) < 0 {
					out.late.reversals++
				}
				direction = next - wanted
			}
		}
		wanted = next
		if wanted > ready {
			starting = wanted - ready
		} else {
			ready = wanted
		}
		out.throughput = x
	}
	out.pods, out.adaptive = ready, a
	return out
}

func TestAdaptiveFindsTheKnee(t *testing.T) {
	cases := []struct {
		behaviour   string
		f           function
		outstanding float64
		configured  float64
		most        int32
		low, high   int32 // pods in the end
	}{
		{"nine outstanding on single-threaded pods, a target of ten: nine pods, not one", singleThreaded(0.006), 9, 10, 100, 8, 10},
		{"the same under a bound of ten pods", singleThreaded(0.006), 9, 10, 10, 8, 10},
		{"the same under a bound of five pods: all of them", singleThreaded(0.006), 9, 10, 5, 5, 5},
		{"slow single-threaded pods", singleThreaded(0.3), 9, 10, 100, 8, 10},
		{"one outstanding: one pod is enough", singleThreaded(0.006), 1, 10, 100, 1, 1},
		{"mostly waiting for others: one pod takes all nine", waiting(0.1, 0.001), 9, 10, 100, 1, 1},
		{"mostly waiting, beyond its core: as many as the core can feed", waiting(0.09, 0.01), 40, 100, 100, 3, 6},
		{"four cores", cores(4, 0.01), 40, 100, 100, 8, 12},
		{"a target that is too low already is left alone", waiting(0.1, 0.0001), 20, 2, 100, 10, 10},
		{"contention: the best concurrency, not the most", slowing(4, 0.02), 32, 100, 100, 6, 10},
	}
	for _, c := range cases {
		t.Run(c.behaviour, func(t *testing.T) {
			for _, noise := range []float64{0, 0.05} {
				got := run(c.f, 0, c.outstanding, c.configured, 1, c.most, noise, 0)
				if got.pods < c.low || got.pods > c.high {
					t.Errorf("noise %v: %d pods, want %d to %d: %s", noise, got.pods, c.low, c.high, got.adaptive)
				}
				if got.changes > 0 {
					t.Errorf("noise %v: the scale changed %d times in the last five minutes of constant load", noise, got.changes)
				}
				best := 0.0
				for n := range c.most {
					best = math.Max(best, float64(n+1)*c.f(c.outstanding/float64(n+1)))
				}
				if got.throughput < 0.85*(1-noise)*best && c.configured > 2 && c.behaviour != "mostly waiting, beyond its core: as many as the core can feed" {
					t.Errorf("noise %v: %.0f requests/s with %d pods, the best fixed number of pods gives %.0f", noise, got.throughput, got.pods, best)
				}
			}
		})
	}
}

// The knee is a capacity, of which as large a share is aimed for as of a configured one.
func TestAdaptiveLeavesThePodsTheRoomThatIsConfigured(t *testing.T) {
	for _, c := range []struct {
		share     float64
		most      int32
		low, high int32
	}{{0.7, 100, 12, 14}, {0.7, 10, 10, 10}, {0.5, 100, 17, 19}} {
		for _, noise := range []float64{0, 0.05} {
			got := run(singleThreaded(0.006), 0, 9, 7, c.share, c.most, noise, 0)
			if got.pods < c.low || got.pods > c.high || got.changes > 0 {
				t.Errorf("share %v of at most %d pods, noise %v: %d pods, want %d to %d, and %d late changes: %s",
					c.share, c.most, noise, got.pods, c.low, c.high, got.changes, got.adaptive)
			}
		}
	}
}

func TestAdaptiveIsCalmUnderConstantLoad(t *testing.T) {
	for kind, f := range map[string]function{"single-threaded": singleThreaded(0.006), "slow": singleThreaded(0.3), "waiting": waiting(0.1, 0.001),
		"waiting with a core": waiting(0.09, 0.01), "four cores": cores(4, 0.01), "slowing": slowing(4, 0.02)} {
		for _, outstanding := range []float64{2, 9, 40} {
			for _, noise := range []float64{0.1, 0.3} {
				for _, share := range []float64{1, 0.7} {
					for _, machine := range []float64{0, 200} {
						got := run(f, machine, outstanding, 10*share, share, 20, noise, 0)
						if got.changes > 0 {
							t.Errorf("%s, %v outstanding, noise %v, share %v, machine %v: %d changes in the last five minutes; %d pods, %s",
								kind, outstanding, noise, share, machine, got.changes, got.pods, got.adaptive)
						}
					}
				}
			}
		}
	}
}

// Pods that burn the processors which they share: however many there are, they complete as much
// together.
func TestAdaptiveIsCalmOnAMachineThatIsFull(t *testing.T) {
	for _, outstanding := range []float64{5, 9, 20, 60} {
		for _, noise := range []float64{0, 0.05, 0.2, 0.4} {
			got := run(cores(2, 0.02), 100, outstanding, 10, 1, 10, noise, 0)
			if got.changes > 0 {
				t.Errorf("%v outstanding, noise %v: the scale changed %d times in the last five minutes: %s", outstanding, noise, got.changes, got.adaptive)
			}
			if want := pods(outstanding / 10); got.pods > want {
				t.Errorf("%v outstanding, noise %v: %d pods, where the configured target takes %d and more do nothing: %s", outstanding, noise, got.pods, want, got.adaptive)
			}
		}
	}
}

// Two pods had half of the load each when a try of more told nothing. With all of it in one pod
// there is nothing new to learn as long as it is answered as fast; once it is not, there is.
func TestALessonThatToldNothingIsNotRepeatedWhileRequestsAreAnsweredAsFast(t *testing.T) {
	for behaviour, c := range map[string]struct {
		then  function
		anew  bool
		noise float64
	}{
		"as fast":              {func(float64) float64 { return 100 }, false, 0.1},
		"slower, it queues":    {singleThreaded(0.03), true, 0.1},
		"a little slower":      {func(float64) float64 { return 90 }, false, 0.05},
		"slower, it is slowed": {func(float64) float64 { return 40 }, true, 0.1},
	} {
		r := rand.New(rand.NewSource(1))
		a := Adaptive{Phase: settled, Clear: 3, Before: point{3, 50, 600}, LearnedAt: epoch}
		anew := false
		for i := range 600 {
			x := c.then(6) * (1 + c.noise*(2*r.Float64()-1))
			a = a.Learn(epoch.Add(time.Duration(i)*time.Second), 7, 0.7, Work{Completed: x, BusySeconds: 6, Ready: 1, Wanted: 1})
			anew = anew || a.Phase != settled
		}
		if anew != c.anew {
			t.Errorf("%s: learned anew is %v", behaviour, anew)
		}
	}
}

func TestAdaptiveNeverExceedsTheConfiguredTarget(t *testing.T) {
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		var a Adaptive
		now := epoch
		for range 500 {
			now = now.Add(time.Duration(r.Intn(3)) * time.Second)
			a = a.Learn(now, 10, 0.1+0.9*r.Float64(), Work{Completed: r.Float64() * 1000, BusySeconds: r.Float64() * 50, Ready: int32(r.Intn(5)), Wanted: int32(r.Intn(8))})
			if got := a.Target(10); !(got >= lowestLearned && got <= 10) {
				t.Fatalf("seed %d: target %v from %+v", seed, got, a)
			}
		}
	}
}

func TestAdaptiveLearnsAnewWhenTheFunctionChanges(t *testing.T) {
	for _, share := range []float64{1, 0.7} {
		learnsAnew(t, share)
	}
}

func learnsAnew(t *testing.T, share float64) {
	t.Helper()
	c := 10.0
	var a Adaptive
	ready := int32(1)
	behave := func(f function, outstanding float64, from, to int) {
		for i := from; i < to; i++ {
			x := f(outstanding/float64(ready)) * float64(ready)
			a = a.Learn(epoch.Add(time.Duration(i)*time.Second), c, share, Work{Completed: x, BusySeconds: outstanding, Ready: ready, Wanted: ready})
			ready = pods(outstanding / a.Target(c))
		}
	}
	behave(singleThreaded(0.006), 9, 0, 200)
	if ready < 8 {
		t.Fatalf("%d pods, %s", ready, a)
	}
	behave(singleThreaded(0.03), 9, 200, 600) // a slower one: other throughput, same knee
	if ready < 8 {
		t.Errorf("slower: %d pods, %s", ready, a)
	}
	behave(waiting(0.02, 0.0001), 9, 600, 1200) // it only waits now
	if ready > 3 {
		t.Errorf("waiting: %d pods, %s", ready, a)
	}
}
