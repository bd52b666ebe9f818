package witness

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/wire"
)

var key = loop.Key{Namespace: "default", Name: "hello-00002"}

// play is a revision whose pods say what a test wants.
type play struct {
	*Witness
	now   time.Time
	pods  []string
	stats map[string]wire.Stat // of the pods that answer
	since time.Time            // of the slowest pod that starts
	asked []string
}

func newPlay() *play {
	p := &play{now: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), stats: map[string]wire.Stat{}}
	p.Witness = &Witness{Clock: func() time.Time { return p.now }, Starting: func(loop.Key) time.Time { return p.since },
		Pods: func(loop.Key) (all []pods.Pod) {
			for _, name := range p.pods {
				all = append(all, pods.Pod{Name: name})
			}
			return all
		},
		Ask: func(_ context.Context, _ loop.Key, all []pods.Pod) (out []wire.Stat) {
			p.asked = nil
			for _, pod := range all {
				p.asked = append(p.asked, pod.Name)
				if s, ok := p.stats[pod.Name]; ok {
					out = append(out, s)
				}
			}
			return out
		}}
	return p
}

// says is a pod's next answer.
func (p *play) says(pod string, uptime float64, good, failed uint32) {
	p.stats[pod] = wire.Stat{PodName: pod, ProcessUptime: uptime, Judged: &wire.Judged{Good: good, Failed: failed}}
}

// second lets one pass, and returns what it added, such as "3/1".
func (p *play) second() string {
	p.now = p.now.Add(time.Second)
	before := 0
	if j := p.Judged(key); j != nil && len(j.Seconds) > 0 {
		before = int(j.Seconds[len(j.Seconds)-1].At.Unix())
	}
	p.Round(context.Background())
	j := p.Judged(key)
	if j == nil || len(j.Seconds) == 0 || int(j.Seconds[len(j.Seconds)-1].At.Unix()) == before {
		return "untold"
	}
	last := j.Seconds[len(j.Seconds)-1]
	return fmt.Sprintf("%d/%d", last.Good, last.Failed)
}

func TestEachRequestIsCountedOnce(t *testing.T) {
	p := newPlay()
	p.pods = []string{"a"}
	p.Watch(key)
	for i, step := range []struct {
		behaviour string
		do        func()
		want      string
	}{
		{"what an older process has counted came before the rollout", func() { p.says("a", 100, 50, 5) }, "0/0"},
		{"then what came since", func() { p.says("a", 101, 53, 6) }, "3/1"},
		{"the same answer again", func() {}, "0/0"},
		{"nobody answers", func() { delete(p.stats, "a") }, "untold"},
		{"what came meanwhile comes with the next answer", func() { p.says("a", 104, 60, 6) }, "7/0"},
		{"a process that began anew", func() { p.says("a", 0.5, 2, 1) }, "2/1"},
		{"a pod that came since", func() { p.pods = append(p.pods, "b"); p.says("b", 1, 4, 0) }, "4/0"},
		{"a pod that was there, and is heard for the first time", func() { p.pods = append(p.pods, "c"); p.says("c", 1000, 9, 9) }, "0/0"},
		{"all of them", func() { p.says("a", 4, 3, 1); p.says("b", 4, 5, 0); p.says("c", 1003, 10, 10) }, "3/1"},
		{"none is left", func() { p.pods = nil }, "0/0"},
	} {
		step.do()
		if got := p.second(); got != step.want {
			t.Errorf("%d, %s: %s, want %s", i, step.behaviour, got, step.want)
		}
	}
}

// Pods of two revisions answer at different times, and what they counted is of the same second.
func TestTheSecondsOfAllRevisionsEndAtTheSameTime(t *testing.T) {
	var ticks atomic.Int64
	w := &Witness{Clock: func() time.Time { return time.Unix(1000, 0).Add(time.Duration(ticks.Add(1)) * time.Millisecond) },
		Starting: func(loop.Key) time.Time { return time.Time{} }, Pods: func(loop.Key) []pods.Pod { return nil },
		Ask: func(context.Context, loop.Key, []pods.Pod) []wire.Stat { return nil }}
	other := loop.Key{Namespace: key.Namespace, Name: "hello-00001"}
	for range 2 {
		w.Watch(key)
		w.Watch(other)
		w.Round(context.Background())
	}
	a, b := w.Judged(key).Seconds, w.Judged(other).Seconds
	if len(a) != 2 || len(b) != 2 || !a[0].At.Equal(b[0].At) || !a[1].At.Equal(b[1].At) || !a[1].At.After(a[0].At) {
		t.Errorf("seconds end at %v and %v", a, b)
	}
}

func TestAPodThatDoesNotCountSaysNothing(t *testing.T) {
	p := newPlay()
	p.pods = []string{"old", "new"}
	p.Watch(key)
	p.stats["old"] = wire.Stat{PodName: "old", ProcessUptime: 1}
	if got := p.second(); got != "untold" || p.Judged(key).Uncounted != 1 {
		t.Errorf("got %s, %+v", got, p.Judged(key))
	}
	p.says("new", 0.5, 1, 0)
	if got := p.second(); got != "1/0" || p.Judged(key).Uncounted != 1 {
		t.Errorf("beside one that counts: %s, %+v", got, p.Judged(key))
	}
}

func TestWhoIsNotAskedAboutIsForgotten(t *testing.T) {
	p := newPlay()
	if p.Round(context.Background()); p.Judged(key) != nil || p.asked != nil {
		t.Errorf("nobody asked about %+v", p.Judged(key))
	}
	p.pods = []string{"a"}
	p.says("a", 9, 1, 0)
	p.Watch(key)
	for range v1alpha1.MaxSeconds + 5 {
		p.Watch(key)
		p.second()
	}
	if n := len(p.Judged(key).Seconds); n != v1alpha1.MaxSeconds {
		t.Errorf("%d seconds are kept", n)
	}
	p.now = p.now.Add(forgets + 1)
	p.asked = nil
	if p.Round(context.Background()); p.Judged(key) != nil || p.asked != nil {
		t.Errorf("it is not forgotten: %+v", p.Judged(key))
	}
}

func TestWhatIsKeptHasBounds(t *testing.T) {
	p := newPlay()
	for i := range maxPods + 10 {
		p.pods = append(p.pods, fmt.Sprintf("pod-%03d", i))
	}
	slices.Reverse(p.pods)
	p.Watch(key)
	p.second()
	if len(p.asked) != maxPods || p.asked[0] != "pod-000" {
		t.Errorf("%d pods were asked, %s first", len(p.asked), p.asked[0])
	}
	for i := range maxRevisions - 1 {
		if !p.Watch(loop.Key{Name: fmt.Sprint(i)}) {
			t.Fatalf("there is no room for revision %d", i)
		}
	}
	if p.Watch(loop.Key{Name: "one more"}) || !p.Watch(key) {
		t.Error("there is room for one revision too many, or none for one that is there")
	}
}

func TestTimesAndStartsAreTold(t *testing.T) {
	p := newPlay()
	p.pods = []string{"a"}
	p.Watch(key)
	p.says("a", 100, 0, 0)
	p.second()
	p.says("a", 101, 3, 0)
	p.stats["a"].Judged.Latency = wire.Latency{7: 1, 9: 2}
	p.second()
	p.since = p.now.Add(-70 * time.Second)
	j := p.Judged(key)
	last := &j.Seconds[len(j.Seconds)-1]
	if got := last.Latency(); got != (wire.Latency{7: 1, 9: 2}) || last.FirstBucket != 7 || len(last.Buckets) != 3 {
		t.Errorf("got %+v", last)
	}
	if j.StartingSeconds != 70 {
		t.Errorf("a pod has been starting for %v s", j.StartingSeconds)
	}
}

// What pods say of senders is added by drawer.
func TestSendersAreTold(t *testing.T) {
	p := newPlay()
	p.pods = []string{"a", "b", "older"}
	p.Watch(key)
	for uptime := range 2 {
		for i, pod := range p.pods {
			p.says(pod, float64(100+uptime), uint32(10*uptime), uint32(3*uptime))
			if pod != "older" {
				p.stats[pod].Judged.Senders[2+i] = wire.Sender{Good: 7}
				p.stats[pod].Judged.Tagged = wire.Sender{Good: uint32(uptime), Failed: uint32(4 * uptime)}
				p.stats[pod].Judged.Senders[5] = wire.Sender{Good: 1, Failed: uint32(3 * uptime)}
			}
		}
		p.second()
	}
	last := p.Judged(key).Seconds[1]
	if want := [][2]uint64{5: {0, 6}}; !slices.Equal(last.Senders, want) || last.Failed != 9 || last.Tagged != [2]uint64{2, 8} {
		t.Errorf("got %+v, want %v", last, want)
	}
	if first := p.Judged(key).Seconds[0]; first.Senders != nil {
		t.Errorf("before anything came: %v", first.Senders)
	}
}
