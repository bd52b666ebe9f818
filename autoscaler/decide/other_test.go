package decide

import (
	"math"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// furtherMetrics are a revision's other metrics: what its pods tell, and requests per second.
var furtherMetrics = []Other{{Name: "waiting", Metric: Told, Target: 5}, {Name: "rps", Metric: RequestsPerSecond, Target: 10}}

// queue is a revision that tells how many of its requests wait. It plays a second at a time.
type queue struct {
	t      *testing.T
	c      Config
	series *Series
	state  State
	now    time.Time
}

func newQueue(t *testing.T) *queue {
	c := defaults()
	c.Others = furtherMetrics
	return &queue{t: t, c: c, series: NewSeries(c.StableWindow, 6*time.Second), state: Start(c, 0, NoDecision, epoch), now: epoch}
}

// second scrapes and decides. A negative told stands for pods that tell nothing.
func (q *queue) second(ready int32, concurrency, rps, told float64) Decision {
	q.t.Helper()
	q.now = q.now.Add(time.Second)
	if !q.series.Add(q.now, ScrapeReporter, Report{Concurrency: concurrency, RequestsPerSecond: rps}) {
		q.t.Fatal("the scrape was refused")
	}
	if told >= 0 {
		q.series.Tell(q.now, 0, told, 0)
	}
	o := q.series.Observe(q.now, q.c.Metric, window.Linear, ready, true)
	o.Others = q.series.ObserveOthers(q.now, q.c.Others, window.Linear, ready)
	var d Decision
	d, q.state = Decide(q.c, q.state, o, q.now)
	return d
}

func (q *queue) seconds(n int, ready int32, concurrency, rps, told float64) (d Decision) {
	q.t.Helper()
	for range n {
		d = q.second(ready, concurrency, rps, told)
	}
	return d
}

func expect(t *testing.T, d Decision, desired int32, rule Rule, reason string) {
	t.Helper()
	if d.Desired != desired || d.Rule != rule || !strings.Contains(d.Reason(), reason) {
		t.Errorf("%d pods by %s: %s; want %d by %s: ...%s...", d.Desired, d.Rule, d.Reason(), desired, rule, reason)
	}
}

func TestTheMetricThatAsksForTheMostPodsDecides(t *testing.T) {
	for _, c := range []struct {
		concurrency, rps, told float64
		desired                int32
		reason, unit           string
	}{
		{14, 10, 5, 2, "14 concurrent requests / target 7 = 2 pods", "concurrent requests"},
		{1, 30, 0, 3, "30 requests/s / target 10 = 3 pods", "requests/s"},
		{1, 10, 18, 4, "18 waiting / target 5 = 4 pods", "waiting"},
		{7, 10, 5, 1, "7 concurrent requests / target 7 = 1 pod", "concurrent requests"}, // all alike
	} {
		q := newQueue(t)
		d := q.seconds(60, 2, c.concurrency, c.rps, c.told)
		expect(t, d, c.desired, RuleStable, c.reason)
		if by := d.Deciding(); by.Metric != c.unit {
			t.Errorf("%v: decided by %+v", c, by)
		}
	}
}

func TestAToldLoadThatRisesPanicsAndComesBack(t *testing.T) {
	q := newQueue(t)
	q.seconds(60, 1, 1, 1, 0)
	d := q.seconds(6, 1, 1, 1, 20)
	expect(t, d, 4, RulePanic, "panic average 20 waiting / target 5 = 4 pods with 1 ready")
	q.seconds(60, 4, 1, 1, 0)
	d = q.seconds(10, 4, 1, 1, 0)
	expect(t, d, 2, RuleMaxScaleDownRate, "")
	d = q.seconds(10, 1, 1, 1, 0)
	expect(t, d, 1, RuleStable, "concurrent requests")
}

func TestAMetricThatIsNotToldHoldsTheScale(t *testing.T) {
	q := newQueue(t)
	d := q.seconds(60, 4, 1, 1, 19)
	expect(t, d, 4, RuleStable, "waiting")
	d = q.seconds(300, 4, 0, 0, -1)
	expect(t, d, 4, RuleMissingMetric, "fewer than half of the pods tell waiting, which never lowers the scale below 4")
	q.second(4, 50, 0, -1) // other metrics may still raise it
	d = q.seconds(6, 4, 70, 0, -1)
	expect(t, d, 10, RulePanic, "fewer than half of the pods tell waiting")
	d = q.seconds(66, 1, 0, 0, 0)
	expect(t, d, 0, RuleStable, "")
}

func TestAMetricThatWasNeverToldKeepsTheLastPod(t *testing.T) {
	q := newQueue(t)
	expect(t, q.seconds(300, 1, 0, 0, -1), 1, RuleMissingMetric, "waiting")
	expect(t, q.seconds(3, 0, 0, 0, -1), 0, RuleStable, "") // without a pod nobody can tell
}

func TestToldWorkKeepsTheLastPodAndNoWorkDoesNot(t *testing.T) {
	q := newQueue(t)
	expect(t, q.seconds(120, 1, 0, 0, 0.5), 1, RuleStable, "0.5 waiting / target 5 = 1 pod")
	expect(t, q.seconds(60, 1, 0, 0, 0), 0, RuleStable, "")
}

func TestWhatASampleTellsStandsForAllPods(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		behaviour      string
		shared         bool
		told           []float64
		sampled, ready int
		load           float64
		wrong, bounded int
		ok             bool
	}{
		{"each its own", false, []float64{1, 3}, 2, 2, 4, 0, 0, true},
		{"a sample", false, []float64{1, 3}, 2, 10, 20, 0, 0, true},
		{"half of the sample", false, []float64{1, 3}, 4, 4, 8, 0, 0, true},
		{"less than half", false, []float64{1}, 3, 3, 0, 0, 0, false},
		{"nobody", false, nil, 0, 3, 0, 0, 0, false},
		{"no numbers", false, []float64{nan, -1, inf}, 3, 3, 0, 3, 0, false},
		{"one that lies counts as what one pod may ask for", false, []float64{1e300, 0, 0}, 3, 3, 5000, 0, 1, true},
		{"one that lies by half", false, []float64{-4, 2}, 2, 2, 4, 1, 0, true},
		{"all tell the same", true, []float64{8, 8, 9}, 3, 5, 8, 0, 0, true},
		{"one that lies of what is shared is overruled", true, []float64{8, 1e300, 7}, 3, 3, 8, 0, 1, true},
		{"even the half of them that lies asks for no more than its share", true, []float64{1e300, 1e300}, 2, 2, 10000, 0, 2, true},
	} {
		o := Other{Name: "waiting", Metric: Told, Target: 5, Shared: c.shared}
		load, wrong, bounded, ok := o.All(c.told, c.sampled, c.ready, 1000)
		if load != c.load || wrong != c.wrong || bounded != c.bounded || ok != c.ok {
			t.Errorf("%s: %v, wrong %d, bounded %d, %v", c.behaviour, load, wrong, bounded, ok)
		}
	}
}

func TestAPodThatTellsTooMuchIsNamedInTheReason(t *testing.T) {
	q := newQueue(t)
	q.second(1, 0, 0, 0)
	q.series.Tell(q.now, 0, 5000, 1)
	o := q.series.Observe(q.now, q.c.Metric, window.Linear, 1, true)
	o.Others = q.series.ObserveOthers(q.now, q.c.Others, window.Linear, 1)
	d, _ := Decide(q.c, q.state, o, q.now)
	expect(t, d, 1000, RuleStable, "of waiting, 1 pod told more than one pod may ask for, which counts as that")
}

// A gap in what is told is no end of load.
func TestSecondsThatNothingIsToldOfAreMissing(t *testing.T) {
	s := NewSeries(time.Minute, 6*time.Second)
	for _, second := range []int{0, 1, 3, 20} { // one skipped, many skipped
		s.Tell(epoch.Add(time.Duration(second)*time.Second), 2, 10, 0)
	}
	now := epoch.Add(20 * time.Second)
	s.Tell(now, 2, 10, 0) // twice in a second
	l := s.ObserveOthers(now, []Other{{Metric: Told, Place: 2, Target: 1}, {Metric: Told, Place: 3, Target: 1}}, window.Linear, 1)
	if l[0].Stable != 10 || l[0].Panic != 10 || !l[0].Known || l[1].Known || l[1].Stable != 0 {
		t.Errorf("got %+v", l)
	}
}

func TestWhatWasToldMovesToTheNextProcess(t *testing.T) {
	s := NewSeries(time.Minute, 6*time.Second)
	for second := range 30 {
		s.Tell(epoch.Add(time.Duration(second)*time.Second), 0, 10, 0)
	}
	at := epoch.Add(30 * time.Second)
	next := NewSeries(time.Minute, 6*time.Second)
	if !next.ImportTold(s.ExportTold(), furtherMetrics, at, 0, at) {
		t.Fatal("it was refused")
	}
	if l := next.ObserveOthers(at, furtherMetrics, window.Linear, 1); l[0].Stable != 10 || l[0].Known {
		t.Errorf("got %+v", l[0])
	}
	if wrong := [][2]window.Contents{{{First: 1, Values: []float64{math.NaN()}}, {}}}; next.ImportTold(wrong, furtherMetrics, at, 0, at) {
		t.Error("NaN was taken")
	}
}
