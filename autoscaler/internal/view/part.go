// Package view serves the API view.ebb.dev: how Services do, and why they have as many pods as they
// have.
//
// Owns: the newest short views of all Services, made when somebody asks, at most once a second.
// Reads: the loop's views, what package recall remembers, and the same of the other replicas.
// Writes: answers. Never: holds a decision up, changes anything, or answers somebody who may not
// read PodAutoscalers.
package view

import (
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/recall"
	"ebb.dev/ebb/autoscaler/internal/witness"
	"ebb.dev/ebb/wire"
)

// part is what one replica knows of one revision. Replicas send it to each other.
type part struct {
	Namespace, Service string
	Revision           v1alpha1.RevisionView
	Load               recall.Load
	Ended              wire.Outcomes
	ColdStarts         []v1alpha1.ColdStart
	Refusals           []v1alpha1.Refusal
	Calls              []v1alpha1.Call
}

// scope is what is asked for. Without a service it is short views. A judge of rollouts asks for
// what it counts, too.
type scope struct {
	namespace, service string
	judge              bool
}

func (s scope) full() bool { return s.service != "" }

func (s scope) wants(key loop.Key, spec *loop.Spec) bool {
	return spec.Service != "" && (s.namespace == "" || s.namespace == key.Namespace) && (s.service == "" || s.service == spec.Service)
}

// Local is what this replica knows.
type Local struct {
	Engine  *loop.Engine
	Records *recall.Records
	Witness *witness.Witness
	// Nodes are those with pods of a revision that do not answer.
	Nodes func(loop.Key) []v1alpha1.SilentNode
}

func (l Local) parts(s scope) (all []part) {
	points := v1alpha1.MaxListPoints
	switch {
	case s.judge:
		points = 0
	case s.full():
		points = v1alpha1.MaxPoints
	}
	l.Engine.Some(s.wants, func(v loop.View) {
		known := l.Records.Get(v.Key, points)
		p := part{Namespace: v.Key.Namespace, Service: v.Spec.Service, Load: known.Load, Ended: known.Ended}
		series := seriesOf(known)
		p.Revision = v1alpha1.RevisionView{Name: v.Key.Name, Series: &series}
		p.Revision.Now = nowOf(known.Load, &known.Ended)
		p.Revision.Now.Replicas = v1alpha1.Replicas{Wanted: max(v.Status.Desired, 0), Ready: v.Counts.Ready,
			Starting: max(v.Counts.NotReady-v.Counts.Lost-v.Counts.Terminating, 0), Asleep: v.Counts.Asleep}
		if v.Last.Times > 0 {
			d := decisionOf(&v.Last, v.Spec)
			p.Revision.Decision = &d
		}
		if s.full() {
			if s.judge {
				l.Witness.Watch(v.Key)
			}
			p.Revision.Judged = l.Witness.Judged(v.Key)
		}
		if s.full() && !s.judge {
			p.Revision.Nodes = l.Nodes(v.Key)
			p.ColdStarts, p.Refusals, p.Calls = known.ColdStarts, known.Refusals, known.Calls
			history, _ := l.Engine.History(v.Key)
			for i := range history {
				p.Revision.History = append(p.Revision.History, decisionOf(&history[i], v.Spec))
			}
		}
		all = append(all, p)
	})
	return all
}

// decisionOf tells of a run of decisions. The limits are the present ones.
func decisionOf(e *loop.Entry, spec *loop.Spec) v1alpha1.Decision {
	x := &e.Decision
	o, by := &x.Observation, x.Deciding()
	d := v1alpha1.Decision{First: e.First.UTC(), Last: x.Time.UTC(), Times: e.Times, Want: e.Step.Want, Formula: x.Desired, Written: e.Step.Apply,
		Rule: e.Rule(), Reason: e.Explanation.Reason(),
		Metric: by.Metric, Stable: v1alpha1.Rounded(by.Stable), Panic: v1alpha1.Rounded(by.Panic), Burst: v1alpha1.Rounded(o.Burst),
		Target: v1alpha1.Rounded(by.Target), Capacity: v1alpha1.Rounded(x.Total),
		StablePods: x.StableRaw, PanicPods: x.PanicRaw, BurstPods: x.BurstRaw, Panicking: x.Panicking,
		Queued: o.Queued, Ready: o.Ready, Incomplete: !o.Known || o.Missing, ExcessBurst: v1alpha1.Rounded(x.ExcessBurst),
		Limits: v1alpha1.Limits{Min: spec.Zero.Min, Max: spec.Zero.Max, RateLow: x.Low, RateHigh: x.High}}
	if e.Keep != nil {
		d.Standby = &v1alpha1.Standby{Awake: e.Awake, Asleep: e.Keep.Keep, Reason: e.Keep.Reason}
	}
	return d
}

func nowOf(l recall.Load, ended *wire.Outcomes) v1alpha1.Now {
	n := v1alpha1.Now{RequestsPerSecond: v1alpha1.Rounded(l.RequestsPerSecond), InFlight: v1alpha1.Rounded(l.InFlight), Queued: v1alpha1.Rounded(l.Queued)}
	n.P50Ms, n.P99Ms = percentile(ended, 0.5), percentile(ended, 0.99)
	if all := ended.Ended(); all > 0 {
		good := 1 - float64(uint64(ended.Statuses[0])+uint64(ended.Statuses[5]))/float64(all)
		n.SuccessRatio = &good
	}
	return n
}

func percentile(ended *wire.Outcomes, p float64) *float64 {
	took, ok := ended.Latency.Percentile(p)
	if !ok {
		return nil
	}
	ms := v1alpha1.Rounded(float64(took) / float64(time.Millisecond))
	return &ms
}
