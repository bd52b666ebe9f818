package window

import (
	"math"
	"math/rand"
	"testing"
	"time"
)

func at(second int) time.Time { return time.Unix(1_000_000+int64(second), 0) }

type sample struct {
	second int
	value  float64
	miss   bool
}

func TestAverage(t *testing.T) {
	cases := []struct {
		behaviour string
		length    int
		samples   []sample
		now       int
		algorithm Algorithm
		want      float64
		known     bool
	}{
		{"a window nothing was written to knows nothing", 60, nil, 0, Linear, 0, false},
		{"the first second alone is the average, not a sixtieth of it", 60, []sample{{0, 100, false}}, 0, Linear, 100, true},
		{"seconds since the first write divide", 60, []sample{{0, 10, false}, {1, 20, false}, {2, 30, false}}, 2, Linear, 20, true},
		{"values of one second are summed: every source reports its share", 60, []sample{{0, 10, false}, {0, 5, false}}, 0, Linear, 15, true},
		{"a full window forgets what is older", 3, []sample{{0, 100, false}, {1, 1, false}, {2, 2, false}, {3, 3, false}}, 3, Linear, 2, true},
		{"a gap between two writes counts as zero", 60, []sample{{0, 30, false}, {2, 30, false}}, 2, Linear, 20, true},
		{"idle seconds at the end are not counted as zeros", 60, []sample{{0, 10, false}, {1, 20, false}}, 10, Linear, 15, true},
		{"idle seconds push old buckets out", 5, []sample{{0, 100, false}, {1, 1, false}, {2, 3, false}}, 5, Linear, 2, true},
		{"idle for the whole window is zero", 5, []sample{{0, 100, false}}, 5, Linear, 0, true},
		{"after an idle window the first write starts afresh", 5, []sample{{0, 100, false}, {9, 7, false}}, 9, Linear, 7, true},
		{"a recorded zero is a zero", 60, []sample{{0, 10, false}, {1, 0, false}}, 1, Linear, 5, true},
		{"a missed second does not lower the average", 60, []sample{{0, 10, false}, {1, 0, true}, {2, 10, false}}, 2, Linear, 10, true},
		{"trailing missed seconds keep the average", 5, []sample{{0, 10, false}, {1, 0, true}, {2, 0, true}, {3, 0, true}}, 3, Linear, 10, true},
		{"a window of missed seconds knows nothing", 3, []sample{{0, 10, false}, {1, 0, true}, {2, 0, true}, {3, 0, true}}, 3, Linear, 0, false},
		{"but no less than was recorded in them", 3, []sample{{0, 10, false}, {1, 0, true}, {2, 0, true}, {2, 6, false}, {3, 0, true}}, 3, Linear, 2, false},
		{"a missed second counts when what was seen of it is already more", 60, []sample{{0, 10, false}, {1, 0, true}, {1, 40, false}}, 1, Linear, 25, true},
		{"results are rounded to six decimals", 60, []sample{{0, 1, false}, {1, 0, false}, {2, 0, false}}, 2, Linear, 0.333333, true},
		{"weighted: the newest second carries the coefficient", 60, []sample{{0, 100, false}}, 0, WeightedExponential, 20, true},
		{"weighted: a second ago carries c(1-c)", 60, []sample{{0, 100, false}, {1, 0, false}}, 1, WeightedExponential, 16, true},
		{"weighted: idle seconds still age the rest", 60, []sample{{0, 100, false}}, 2, WeightedExponential, 12.8, true},
		{"weighted: a short window has a larger coefficient", 2, []sample{{0, 100, false}}, 0, WeightedExponential, 99, true},
	}
	for _, c := range cases {
		t.Run(c.behaviour, func(t *testing.T) {
			w := New(time.Duration(c.length) * time.Second)
			for _, s := range c.samples {
				if s.miss {
					w.Miss(at(s.second))
				} else if !w.Add(at(s.second), s.value) {
					t.Fatalf("sample %v refused", s)
				}
			}
			got, known := w.Average(at(c.now), c.algorithm)
			if got != c.want || known != c.known {
				t.Errorf("Average = %v, %v; want %v, %v", got, known, c.want, c.known)
			}
		})
	}
}

func TestAddRefusesWhatIsNoLoad(t *testing.T) {
	w := New(5 * time.Second)
	w.Add(at(10), 1)
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.5} {
		if w.Add(at(10), v) {
			t.Errorf("%v was accepted", v)
		}
	}
	if w.Add(at(5), 100) {
		t.Error("a sample older than the window was accepted")
	}
	if !w.Add(at(6), 4) {
		t.Error("a late sample within the window was refused")
	}
	if got, _ := w.Average(at(10), Linear); got != 1 {
		t.Errorf("Average = %v, want 1 (5 over five seconds)", got)
	}
}

func TestReplace(t *testing.T) {
	w := New(5 * time.Second)
	w.Add(at(10), 1)
	w.Add(at(11), 0.1)
	w.Add(at(11), 0.2)
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.5} {
		if w.Replace(at(11), 0.1, v) {
			t.Errorf("%v was accepted", v)
		}
	}
	if !w.Replace(at(11), 0.1, 4.8) || w.Replace(at(6), 1, 1) {
		t.Error("a second within the window was refused, or one before it accepted")
	}
	if got, _ := w.Average(at(11), Linear); got != 3 {
		t.Errorf("Average = %v, want 3 (1, and what the other source added to 4.8)", got)
	}
	w.Replace(at(10), 50, 2) // what is taken back was never there
	if got, _ := w.Average(at(11), Linear); got != 3.5 {
		t.Errorf("Average = %v, want 3.5", got)
	}
}

// plain is the second, dumb implementation: it keeps every sample and applies the definitions.
type plain struct {
	length  int
	samples []sample
}

func (p *plain) add(s sample) bool {
	last, ok := p.last()
	if ok && last-s.second >= p.length {
		return false
	}
	if ok && s.second-last >= p.length {
		p.samples = nil
	}
	p.samples = append(p.samples, s)
	return true
}

func (p *plain) last() (int, bool) {
	last, ok := 0, false
	for _, s := range p.samples {
		if !ok || s.second > last {
			last, ok = s.second, true
		}
	}
	return last, ok
}

func (p *plain) average(now int, algorithm Algorithm) (float64, bool) {
	last, ok := p.last()
	if !ok {
		return 0, false
	}
	if now-last >= p.length {
		return 0, true
	}
	first := last
	for _, s := range p.samples {
		if s.second < first {
			first = s.second
		}
	}
	type second struct {
		value, weight float64
		missing       bool
		present       bool
	}
	var valid []second
	c := math.Max(1-math.Pow(0.0001, 1/float64(p.length)), 0.2)
	for s := max(first, now-p.length+1); s <= last; s++ {
		one := second{weight: c * math.Pow(1-c, float64(now-s)), present: s >= now}
		for _, x := range p.samples {
			if x.second == s {
				one.value += x.value
				one.missing = one.missing || x.miss
			}
		}
		valid = append(valid, one)
	}
	var known, weight, before, beforeWeight float64
	anyKnown := false
	for i := range valid {
		if algorithm == Linear {
			valid[i].weight = 1 / float64(len(valid))
		}
		if !valid[i].missing {
			anyKnown = true
			known += valid[i].weight * valid[i].value
			weight += valid[i].weight
			if !valid[i].present {
				before += valid[i].weight * valid[i].value
				beforeWeight += valid[i].weight
			}
		}
	}
	mean := known / weight
	if beforeWeight > 0 {
		mean = max(mean, before/beforeWeight)
	}
	sum := 0.0
	for _, one := range valid {
		v := one.value
		if one.missing && anyKnown {
			v = max(v, mean)
		}
		sum += one.weight * v
	}
	return sum, anyKnown
}

func TestAgreesWithThePlainVersion(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		length := 1 + r.Intn(20)
		w, p := New(time.Duration(length)*time.Second), &plain{length: length}
		now := 0
		for range 80 {
			now += []int{0, 0, 1, 1, 1, 2, 3, length, 2 * length}[r.Intn(9)]
			s := sample{second: now - []int{0, 0, 0, 1, length / 2, length, length + 1}[r.Intn(7)], value: float64(r.Intn(50))}
			if s.miss = r.Intn(4) == 0; s.miss {
				s.value = 0
				w.Miss(at(s.second))
				p.add(s)
			} else if got, want := w.Add(at(s.second), s.value), p.add(s); got != want {
				t.Fatalf("seed %d: Add(%v) = %v, the plain version says %v", seed, s, got, want)
			}
			last, _ := p.last()
			now = max(now, last)
			for _, a := range []Algorithm{Linear, WeightedExponential} {
				got, gotKnown := w.Average(at(now), a)
				want, wantKnown := p.average(now, a)
				if gotKnown != wantKnown || math.Abs(got-want) > 1e-6 {
					t.Fatalf("seed %d, algorithm %d, second %d: Average = %v, %v; the plain version says %v, %v", seed, a, now, got, gotKnown, want, wantKnown)
				}
			}
		}
	}
}

// A failed scrape replaced by any other outcome: the average with the second missing is never below
// the smallest average the same history could have had with a zero in its place.
func TestMissingNeverLowers(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		length := 1 + r.Intn(30)
		full, holes := New(time.Duration(length)*time.Second), New(time.Duration(length)*time.Second)
		constant := float64(1 + r.Intn(100))
		for s := range 60 {
			full.Add(at(s), constant)
			if r.Intn(3) == 0 {
				holes.Miss(at(s))
			} else {
				holes.Add(at(s), constant)
			}
			want, _ := full.Average(at(s), Linear)
			if got, known := holes.Average(at(s), Linear); known && got != want {
				t.Fatalf("seed %d, second %d: with missed seconds the average of constant load %v is %v", seed, s, constant, got)
			}
		}
	}
}

func TestResizeKeepsWhatFits(t *testing.T) {
	w := New(10 * time.Second)
	for s := range 10 {
		w.Add(at(s), float64(s))
	}
	short := w.Resize(3 * time.Second)
	if got, _ := short.Average(at(9), Linear); got != 8 {
		t.Errorf("shrunk to 3 s: average %v, want 8", got)
	}
	long := w.Resize(20 * time.Second)
	if got, _ := long.Average(at(9), Linear); got != 4.5 {
		t.Errorf("grown to 20 s: average %v, want 4.5", got)
	}
	if w.Resize(10*time.Second) != w {
		t.Error("the same length made a new window")
	}
}

func BenchmarkAverage(b *testing.B) {
	w := New(60 * time.Second)
	for s := range 60 {
		w.Add(at(s), 3)
	}
	b.ReportAllocs()
	for range b.N {
		w.Average(at(59), Linear)
	}
}

func TestAWindowThatIsHandedOverGoesOn(t *testing.T) {
	fill := func(w *Window, from, to int, value float64) {
		for s := from; s <= to; s++ {
			w.Add(at(s), value)
		}
	}
	cases := []struct {
		behaviour   string
		before, own func(w *Window)
		until, now  int
		shift       int64
		want        float64
		known       bool
	}{
		{"a steady load stays what it was, though nobody looked for two seconds",
			func(w *Window) { fill(w, 0, 59, 10) }, func(w *Window) { fill(w, 62, 62, 10) }, 59, 62, 0, 10, true},
		{"before the first own report it is what was handed over",
			func(w *Window) { fill(w, 0, 59, 10) }, func(*Window) {}, 59, 61, 0, 10, true},
		{"the share of a second that each has seen is not counted twice",
			func(w *Window) { fill(w, 0, 1, 10) }, func(w *Window) { fill(w, 1, 2, 10) }, 1, 2, 0, 10, true},
		{"what was missing stays missing",
			func(w *Window) { fill(w, 0, 1, 10); w.Miss(at(2)); fill(w, 3, 3, 10) }, func(*Window) {}, 3, 3, 0, 10, true},
		{"seconds of silence before the handing over are silence",
			func(w *Window) { fill(w, 0, 9, 10) }, func(w *Window) { fill(w, 20, 29, 10) }, 19, 29, 0, 20.0 / 3, true},
		{"a clock that was behind is set right",
			func(w *Window) { fill(w, -100, -91, 10) }, func(w *Window) { fill(w, 10, 19, 10) }, -91, 19, 100, 10, true},
		{"what is older than the window is as good as nothing",
			func(w *Window) { fill(w, -200, -190, 10) }, func(w *Window) { fill(w, 0, 0, 4) }, -1, 0, 0, 4, true},
		{"an empty one changes nothing", func(*Window) {}, func(w *Window) { fill(w, 0, 1, 4) }, 0, 1, 0, 4, true},
		{"two that know nothing know nothing", func(*Window) {}, func(*Window) {}, 0, 1, 0, 0, false},
	}
	for _, c := range cases {
		t.Run(c.behaviour, func(t *testing.T) {
			before, w := New(60*time.Second), New(60*time.Second)
			c.before(before)
			c.own(w)
			if !w.Import(before.Export(), at(c.until).Unix(), c.shift, at(c.now)) {
				t.Fatal("refused")
			}
			got, known := w.Average(at(c.now), Linear)
			if math.Abs(got-c.want) > 1e-5 || known != c.known {
				t.Errorf("average %v, known %v; want %v, %v", got, known, c.want, c.known)
			}
		})
	}
	for name, c := range map[string]Contents{
		"values that are none": {at(0).Unix(), []float64{math.NaN()}}, "an endless load": {at(0).Unix(), []float64{math.Inf(1)}},
		"the future": {at(100).Unix(), []float64{1}}, "more than any window": {0, make([]float64, maxContents+1)}, "before time": {-5, []float64{1}},
	} {
		w := New(60 * time.Second)
		w.Add(at(0), 7)
		if w.Import(c, at(0).Unix(), 0, at(0)) {
			t.Errorf("%s is taken", name)
		}
		if got, known := w.Average(at(0), Linear); got != 7 || !known {
			t.Errorf("%s: average %v, %v", name, got, known)
		}
	}
	// Another length: what fits is kept.
	long, short := New(60*time.Second), New(10*time.Second)
	fill(long, 0, 59, 10)
	if !short.Import(long.Export(), at(59).Unix(), 0, at(60)) {
		t.Fatal("refused")
	}
	if got, _ := short.Average(at(60), Linear); got != 10 {
		t.Errorf("average of the shorter one %v", got)
	}
}

func FuzzImport(f *testing.F) {
	f.Add(int64(1_000_000), int64(1_000_000), int64(0), 10.0, 3)
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), int64(0), 10.0, 3)
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), int64(-1), 10.0, 3)
	f.Add(int64(math.MinInt64), int64(0), int64(math.MinInt64), 10.0, 3)
	f.Fuzz(func(t *testing.T, first, until, shift int64, value float64, n int) {
		if n < 0 || n > 2*maxContents {
			return
		}
		c := Contents{First: first, Values: make([]float64, n)}
		for i := range c.Values {
			c.Values[i] = value
		}
		w := New(6 * time.Second)
		w.Add(at(0), 1)
		w.Import(c, until, shift, at(1))
		if got, _ := w.Average(at(1), Linear); !(got >= 0) {
			t.Errorf("average %v", got)
		}
	})
}
