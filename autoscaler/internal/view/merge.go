package view

import (
	"cmp"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/internal/recall"
	"ebb.dev/ebb/wire"
)

// seriesOf makes arrays of points.
func seriesOf(r recall.Recollection) v1alpha1.Series {
	s := empty(r.Until, len(r.Points))
	s.P50Ms, s.P99Ms = make(v1alpha1.Values, len(r.Points)), make(v1alpha1.Values, len(r.Points))
	for i, p := range r.Points {
		s.Load[i], s.RequestsPerSecond[i] = float64(p.Load), float64(p.RequestsPerSecond)
		s.Wanted[i], s.Ready[i], s.Asleep[i] = float64(p.Wanted), float64(p.Ready), float64(p.Asleep)
		s.P50Ms[i], s.P99Ms[i] = unknownIfZero(p.P50Ms), unknownIfZero(p.P99Ms)
	}
	return s
}

func unknownIfZero(f float32) float64 {
	if f == 0 {
		return math.NaN()
	}
	return float64(f)
}

func empty(until time.Time, n int) v1alpha1.Series {
	s := v1alpha1.Series{StepSeconds: v1alpha1.StepSeconds}
	if n > 0 {
		s.Start = until.Add(-time.Duration(n-1) * v1alpha1.StepSeconds * time.Second).UTC()
	}
	for _, into := range sums(&s) {
		*into = make(v1alpha1.Values, n)
	}
	return s
}

// sums are the arrays of a series that can be added up.
func sums(s *v1alpha1.Series) []*v1alpha1.Values {
	return []*v1alpha1.Values{&s.Load, &s.RequestsPerSecond, &s.Wanted, &s.Ready, &s.Asleep}
}

// until is the time of the newest point.
func until(s *v1alpha1.Series) time.Time {
	return s.Start.Add(time.Duration(len(s.Load)-1) * v1alpha1.StepSeconds * time.Second)
}

// sum adds up the newest points of several revisions. Replicas step at different moments, so the
// newest points are taken for the same one.
func sum(parts []part, most int) v1alpha1.Series {
	n, newest := 0, time.Time{}
	for i := range parts {
		if s := parts[i].Revision.Series; s != nil && len(s.Load) > 0 {
			n = max(n, min(len(s.Load), most))
			if at := until(s); at.After(newest) {
				newest = at
			}
		}
	}
	total := empty(newest, n)
	into := sums(&total)
	for i := range parts {
		s := parts[i].Revision.Series
		if s == nil {
			continue
		}
		for k, from := range sums(s) {
			for back := 1; back <= min(n, len(*from)); back++ {
				(*into[k])[n-back] += (*from)[len(*from)-back]
			}
		}
	}
	return total
}

// merge makes the view of one Service of the parts that replicas know.
func merge(parts []part, full bool, now time.Time) v1alpha1.ServiceView {
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.Revision.Name, b.Revision.Name) })
	// While a bucket changes hands, two replicas may know a revision.
	parts = slices.CompactFunc(parts, func(a, b part) bool { return a.Revision.Name == b.Revision.Name })
	v := v1alpha1.ServiceView{TypeMeta: metav1.TypeMeta{Kind: v1alpha1.Kind, APIVersion: v1alpha1.GroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Namespace: parts[0].Namespace, Name: parts[0].Service}, Revisions: []v1alpha1.RevisionView{}}
	most := v1alpha1.MaxListPoints
	if full {
		most = v1alpha1.MaxPoints
	}
	v.Series = sum(parts, most)
	var load recall.Load
	var ended wire.Outcomes
	var replicas v1alpha1.Replicas
	for i := range parts {
		p := &parts[i]
		load.RequestsPerSecond += p.Load.RequestsPerSecond
		load.InFlight += p.Load.InFlight
		load.Queued += p.Load.Queued
		ended.Merge(&p.Ended)
		one := p.Revision.Now.Replicas
		replicas.Wanted += one.Wanted
		replicas.Ready += one.Ready
		replicas.Starting += one.Starting
		replicas.Asleep += one.Asleep
		v.ColdStarts, v.Refusals = append(v.ColdStarts, p.ColdStarts...), append(v.Refusals, p.Refusals...)
		v.Calls = append(v.Calls, p.Calls...)
		if !full {
			p.Revision.Series, p.Revision.History = nil, nil
		}
		v.Revisions = append(v.Revisions, p.Revision)
	}
	v.Now = nowOf(load, &ended)
	v.Now.Replicas, v.Now.Time = replicas, now.UTC()
	slices.SortStableFunc(v.ColdStarts, func(a, b v1alpha1.ColdStart) int { return b.At.Compare(a.At) })
	slices.SortStableFunc(v.Refusals, func(a, b v1alpha1.Refusal) int { return b.At.Compare(a.At) })
	slices.SortStableFunc(v.Calls, func(a, b v1alpha1.Call) int { return b.At.Compare(a.At) })
	v.Calls = v.Calls[:min(len(v.Calls), v1alpha1.MaxCalls)]
	for i := range v.Calls {
		v.Calls[i].ColdMs = coldPart(&v.Calls[i], v.ColdStarts)
	}
	v.ColdStarts = v.ColdStarts[:min(len(v.ColdStarts), v1alpha1.MaxColdStarts)]
	v.Refusals = v.Refusals[:min(len(v.Refusals), v1alpha1.MaxRefusals)]
	return v
}

// skew is how far the clocks of two nodes may differ when a cold start is looked for.
const skew = time.Second

// coldPart is the time for which a call waited for its pod to start, in milliseconds: that of the
// cold start with its trace, or, without one, with its pod and within its wait.
func coldPart(c *v1alpha1.Call, all []v1alpha1.ColdStart) float64 {
	sent := c.At.Add(time.Duration(c.WaitedMs * float64(time.Millisecond)))
	for i := range all {
		s := &all[i]
		began := s.At.Add(time.Duration(s.TotalMs * float64(time.Millisecond)))
		switch {
		case s.Pod != c.Pod || s.Revision != c.Revision:
		case c.TraceID != "" && s.TraceID != "":
			if c.TraceID == s.TraceID {
				return s.TotalMs
			}
		case !sent.Before(s.At.Add(-skew)) && !sent.After(began.Add(skew)):
			return s.TotalMs
		}
	}
	return 0
}

// group divides parts by Service, in the order of namespace and name.
func group(parts []part) (services [][]part) {
	slices.SortStableFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service))
	})
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[n].Namespace == parts[0].Namespace && parts[n].Service == parts[0].Service {
			n++
		}
		services = append(services, parts[:n:n])
		parts = parts[n:]
	}
	return services
}

// still is a view without the times that go on while nothing happens.
func still(v v1alpha1.ServiceView) v1alpha1.ServiceView {
	v.Now.Time, v.Series.Start = time.Time{}, time.Time{}
	v.Revisions = slices.Clone(v.Revisions)
	for i := range v.Revisions {
		r := &v.Revisions[i]
		if r.Decision != nil {
			d := *r.Decision
			d.Last, d.Times = time.Time{}, 0
			r.Decision = &d
		}
		if n := len(r.History); n > 0 {
			r.History = slices.Clone(r.History)
			r.History[n-1].Last, r.History[n-1].Times = time.Time{}, 0
		}
		if r.Series != nil {
			s := *r.Series
			s.Start = time.Time{}
			r.Series = &s
		}
	}
	return v
}
