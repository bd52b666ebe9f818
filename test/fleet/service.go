package fleet

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	view "ebb.dev/ebb/api/view/v1alpha1"
)

// began is the time from which on a Service stays in the state that it is known for.
var began = time.Now()

// kind is how a Service does.
type kind int

const (
	serving kind = iota
	limited
	broken
	waking
	slow
	asleep
	zero
	never  // started: no pod was ever ready
	unused // for longer than a Series
	young  // began a minute ago
)

// service is one Service, as a function of the time.
type service struct {
	namespace, name string
	kind            kind
	seed            float64 // 0 to 1
	peak            float64 // requests in flight
	most            int32   // pods, 0 is no limit

	mu    sync.Mutex
	texts map[bool]text   // its view, in a list and full
	steps map[int64]point // what it did, by the time of the point in seconds
}

// point is one of a series.
type point struct {
	load    float64
	formula int32
	view.Replicas
}

// at is what the Service did at a point of its series.
func (s *service) at(t time.Time) point {
	p, ok := s.steps[t.Unix()]
	if !ok {
		p.load = s.load(t)
		p.formula, p.Replicas = s.pods(t)
		s.steps[t.Unix()] = p
	}
	return p
}

// text is a view of one second.
type text struct {
	second int64
	json   []byte
}

// target is the load aimed for in a pod.
const target = 7.0

var known = []*service{
	{namespace: TenantsNamespace, name: "cart", kind: limited, peak: 52, most: 5},
	{namespace: TenantsNamespace, name: Broken, kind: broken},
	{namespace: TenantsNamespace, name: "search", kind: waking, peak: 4},
	{namespace: "media", name: "thumbnails", kind: slow, peak: 38},
	{namespace: TenantsNamespace, name: "reports", kind: asleep, peak: 9},
	{namespace: TenantsNamespace, name: "newsletter", kind: zero, peak: 3},
	{namespace: TenantsNamespace, name: "ledger", kind: never},
	{namespace: TenantsNamespace, name: "archive", kind: unused},
	{namespace: TenantsNamespace, name: "wishlist", kind: young, peak: 12},
}

var (
	teams = []string{"accounts", "billing", "catalog", "data", "identity", "media", "orders", "payments", "search", "shipping"}
	nouns = []string{"api", "worker", "webhooks", "export", "import", "events", "frontend", "render", "sync", "index", "mail", "quota", "audit", "feed", "upload", "notify"}
)

func newService(i int) *service {
	if i < len(known) {
		k := known[i]
		return &service{namespace: k.namespace, name: k.name, kind: k.kind, peak: k.peak, most: k.most, seed: 0.3, texts: map[bool]text{}, steps: map[int64]point{}}
	}
	h := fnv.New32a()
	fmt.Fprint(h, i)
	s := &service{namespace: teams[i%len(teams)], name: fmt.Sprintf("%s-%d", nouns[i%len(nouns)], i), texts: map[bool]text{}, steps: map[int64]point{}, seed: float64(h.Sum32()%1000) / 1000}
	s.kind = []kind{serving, serving, zero, serving, asleep, serving, zero, serving}[i%8]
	s.peak = math.Exp(s.seed * 5)
	return s
}

func (s *service) key() string { return s.namespace + "/" + s.name }

func (s *service) busy() bool { return s.kind != zero && s.kind != asleep && s.kind != broken }

// load is the number of requests in flight at a time.
func (s *service) load(t time.Time) float64 {
	x := float64(t.UnixMilli())/1000 + 600*s.seed
	wave := 0.62 + 0.22*math.Sin(x/(41+60*s.seed)) + 0.1*math.Sin(x/13) + 0.06*math.Sin(x*1.7)
	age := began.Sub(t)
	switch s.kind {
	case asleep, zero:
		if age < time.Duration(4+4*s.seed)*time.Minute {
			return 0
		}
	case waking:
		if age > 25*time.Second && age < 9*time.Minute {
			return 0
		}
	case limited:
		if wave = 0.85 + (wave-0.62)*0.3; age > 5*time.Minute {
			wave *= 0.3
		}
	}
	return s.peak * max(wave, 0)
}

// average is the load that is scaled by: that of a stable window, or of a panic window in a panic.
func (s *service) average(t time.Time) float64 {
	var stable, panic float64
	for i := range 12 {
		load := s.load(t.Add(-time.Duration(i) * 5 * time.Second))
		if stable += load / 12; i < 2 {
			panic += load / 2
		}
	}
	if panic > 2*stable {
		return panic
	}
	return stable
}

// pods are the numbers of pods at a time: pods follow the load by ten seconds.
func (s *service) pods(t time.Time) (formula int32, r view.Replicas) {
	ask := func(t time.Time) int32 { return int32(math.Ceil(s.average(t) / target)) }
	formula = ask(t)
	bound := func(n int32) int32 {
		if s.most > 0 {
			n = min(n, s.most)
		}
		return n
	}
	r.Wanted = bound(formula)
	r.Ready = min(bound(ask(t.Add(-10*time.Second))), r.Wanted)
	if s.kind == asleep && r.Wanted == 0 {
		r.Asleep, r.Wanted = 2, 2
	}
	r.Starting = max(r.Wanted-r.Asleep-r.Ready, 0)
	return formula, r
}

func (s *service) now(t time.Time) view.Now {
	load := s.load(t)
	_, replicas := s.pods(t)
	now := view.Now{Time: t, RequestsPerSecond: view.Rounded(load * 22), InFlight: view.Rounded(load), Replicas: replicas}
	if load > 0 {
		p50, p99, success := 16+40*s.seed, 90+300*s.seed, 1.0
		switch s.kind {
		case slow:
			p50, p99 = 640, 2400
			now.Queued = view.Rounded(load / 3)
		case limited:
			p99, success, now.Queued = 480, 0.9962, view.Rounded(max(load-35, 0))
		}
		now.P50Ms, now.P99Ms, now.SuccessRatio = &p50, &p99, &success
	}
	return now
}

// series are the points up to a time, scaled to a revision's share.
func (s *service) series(t time.Time, points int, share float64, latency bool) view.Series {
	step := view.StepSeconds * time.Second
	switch s.kind {
	case never, unused:
		points = 0
	case young:
		points = 13
	}
	start := t.Truncate(step).Add(-time.Duration(points-1) * step)
	out := view.Series{Start: start, StepSeconds: view.StepSeconds, Load: view.Values{}}
	for i := range points {
		at := start.Add(time.Duration(i) * step)
		r := s.at(at)
		load := r.load * share
		part := func(n int32) float64 { return math.Ceil(float64(n) * share) }
		out.Load = append(out.Load, load)
		out.RequestsPerSecond = append(out.RequestsPerSecond, load*22)
		out.Wanted = append(out.Wanted, part(r.Wanted))
		out.Ready = append(out.Ready, part(r.Ready))
		out.Asleep = append(out.Asleep, part(r.Asleep))
		if latency {
			p50, p99 := math.NaN(), math.NaN()
			if now := s.now(at); now.P50Ms != nil {
				p50, p99 = *now.P50Ms*(0.9+load/s.peak/4), *now.P99Ms*(0.8+load/s.peak/2)
			}
			out.P50Ms, out.P99Ms = append(out.P50Ms, p50), append(out.P99Ms, p99)
		}
	}
	return out
}

// decide is the decision at a time.
func (s *service) decide(t time.Time) view.Decision {
	load, before := s.average(t), s.average(t.Add(-15*time.Second))
	formula, r := s.pods(t)
	d := view.Decision{First: t, Last: t, Times: 1, Want: r.Wanted, Formula: formula, Written: true, Metric: "concurrency",
		Stable: view.Rounded(load), Panic: view.Rounded(s.load(t)), Burst: view.Rounded(s.load(t)), Target: target, Capacity: 10,
		Ready: r.Ready, Limits: view.Limits{Max: s.most}}
	d.StablePods, d.PanicPods = formula, int32(math.Ceil(d.Panic/target))
	d.BurstPods = d.PanicPods
	switch {
	case s.most > 0 && formula > s.most:
		d.Rule = "max-scale"
		d.Reason = fmt.Sprintf("max-scale allows %d of the %d asked for (stable average %g concurrent requests / target %g = %d pods)", s.most, formula, d.Stable, target, d.StablePods)
	case load == 0 && before > 0:
		d.Rule, d.Reason = "stable-window-before-zero", "no request for less than a stable window, so the last pod stays"
	case load == 0:
		d.Rule, d.Reason = "zero", "no request for a stable window, and an activator is in the path"
	case load > 1.5*before:
		d.Panicking, d.Rule = true, "panic-window"
		d.Reason = fmt.Sprintf("panic average %g concurrent requests / target %g = %d pods, at least twice the %d ready", d.Panic, target, d.PanicPods, r.Ready)
	default:
		d.Rule = "stable-window"
		d.Reason = fmt.Sprintf("stable average %g concurrent requests / target %g = %d pods", d.Stable, target, d.StablePods)
	}
	if s.kind == asleep {
		d.Standby = &view.Standby{Awake: r.Ready, Asleep: r.Asleep, Reason: "pod 1, idle for 3m, is kept: it is needed within 2m with a chance of 62%, which is worth 49600 MiB·s, at least the 3072 MiB·s that it takes"}
	}
	return d
}

// history are the runs of equal decisions up to a time.
func (s *service) history(t time.Time) (runs []view.Decision) {
	step := view.StepSeconds * time.Second
	for at := t.Truncate(step).Add(-10 * time.Minute); !at.After(t); at = at.Add(step) {
		d := s.decide(at)
		if n := len(runs) - 1; n >= 0 && runs[n].Rule == d.Rule && runs[n].Want == d.Want {
			d.First, d.Times = runs[n].First, runs[n].Times+2
			runs[n] = d
			continue
		}
		runs = append(runs, d)
	}
	return runs[max(0, len(runs)-view.MaxHistory):]
}

// revisions are the names of those that get requests, with their shares.
func (s *service) revisions() map[string]float64 {
	if s.kind == limited {
		return map[string]float64{s.name + "-00002": 0.9, s.name + "-00003": 0.1}
	}
	return map[string]float64{s.name + "-00001": 1}
}

// encoded is the view of a second, made once for all who ask.
func (s *service) encoded(t time.Time, full bool) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.texts[full].second != t.Unix() {
		made, err := json.Marshal(s.view(t, full))
		if err != nil {
			panic(err) // it is made of figures that are all finite
		}
		s.texts[full] = text{t.Unix(), made}
	}
	return s.texts[full].json
}

func (s *service) view(t time.Time, full bool) view.ServiceView {
	v := view.ServiceView{TypeMeta: metav1.TypeMeta{Kind: view.Kind, APIVersion: view.GroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}, Now: s.now(t)}
	points := view.MaxListPoints
	if full {
		points = view.MaxPoints
		v.ColdStarts, v.Refusals = s.coldStarts(t), s.refusals(t)
	}
	v.Series = s.series(t, points, 1, false)
	for _, name := range []string{s.name + "-00001", s.name + "-00002", s.name + "-00003"} {
		share, ok := s.revisions()[name]
		if !ok {
			continue
		}
		r := view.RevisionView{Name: name, Now: v.Now}
		r.Now.RequestsPerSecond, r.Now.InFlight = v.Now.RequestsPerSecond*share, v.Now.InFlight*share
		if share < 0.5 {
			r.Now.Replicas = view.Replicas{Wanted: 1, Ready: 1}
		}
		d := s.decide(t)
		if share < 0.5 {
			d.Rule, d.Want, d.Formula, d.Limits.Max = "stable-window", 1, 1, 0
			d.Stable, d.StablePods, d.PanicPods = view.Rounded(d.Stable*share), 1, 1
			d.Reason = fmt.Sprintf("stable average %g concurrent requests / target %g = 1 pod", d.Stable, target)
		}
		r.Decision = &d
		if full {
			series := s.series(t, points, share, true)
			r.Series = &series
			if s.kind == limited {
				r.Judged = judged(t, share)
			}
			if r.History = s.history(t); share < 0.5 {
				d.First, d.Times = t.Add(-8*time.Minute), 240
				r.History = []view.Decision{d}
			}
		}
		v.Revisions = append(v.Revisions, r)
	}
	return v
}

// judged is what the judge of a rollout counts of a revision. The one with the small share fails a
// request each five seconds, and takes twice as long.
func judged(t time.Time, share float64) *view.Judged {
	j := &view.Judged{}
	for back := range view.MaxSeconds {
		s := view.Second{At: t.Truncate(time.Second).Add(time.Duration(back-view.MaxSeconds) * time.Second), Good: uint64(math.Round(40 * share))}
		if share < 0.5 && s.At.Unix()%5 == 0 {
			s.Good, s.Failed = s.Good-1, 1
		}
		s.FirstBucket, s.Buckets = 11, []uint64{s.Good / 2, s.Good / 4, s.Good / 4}
		if share < 0.5 {
			s.FirstBucket += 2
		}
		j.Seconds = append(j.Seconds, s)
	}
	return j
}

func (s *service) coldStarts(t time.Time) []view.ColdStart {
	n := map[kind]int{waking: 4, limited: 2, asleep: 7, zero: 3}[s.kind]
	out := []view.ColdStart{}
	for i := range n {
		c := view.ColdStart{At: t.Truncate(time.Minute).Add(-time.Duration(30+i*i*173) * time.Second), Revision: s.name + "-00001", Pod: fmt.Sprintf("%s-00001-deployment-7d9c6b5f4-%s", s.name, []string{"x2x9k", "qq7hm", "p5lvd"}[i%3]), Complete: i != 2}
		if i == 0 {
			c.TraceID = "4bf92f3577b34da6a3ce929d0e0e4736"
		}
		for j, name := range []string{"decide", "schedule", "pull", "start", "announce", "forward"} {
			ms := []float64{9, 31, 140, 420, 6, 24}[j] * (1 + 0.7*math.Sin(float64(i*5+j)))
			c.Phases = append(c.Phases, view.Phase{Name: name, StartMs: c.TotalMs, DurationMs: ms})
			c.TotalMs += ms
		}
		out = append(out, c)
	}
	return out
}

func (s *service) refusals(t time.Time) []view.Refusal {
	if s.kind != limited && s.kind != slow {
		return []view.Refusal{}
	}
	return []view.Refusal{
		{At: t.Truncate(20 * time.Second), Revision: s.name + "-00002", By: "activator", Name: "activator-6c9f7d5b8-wz4tn", Status: 503, Count: 41,
			Reason: "the queue of the revision is full: 100 requests wait, and 5 pods have no free slot"},
		{At: t.Add(-4 * time.Minute).Truncate(time.Minute), Revision: s.name + "-00002", By: "pod", Name: s.name + "-00002-deployment-5f6d8c7b9-2kq8s", Status: 504, Count: 1,
			Reason: "no response began within timeoutSeconds (300 s)"},
	}
}
