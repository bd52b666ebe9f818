package decide

import (
	"math"
	"slices"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// Other is a metric that a revision is scaled by besides the Metric of its Config. Of all of them,
// the one that asks for the most pods decides.
type Other struct {
	// Name is what users call it.
	Name string
	// Metric is Told for one that the pods tell. Place is then its place in what they tell.
	Metric Metric
	Place  int
	Target float64
	// Shared says that each pod tells the same number, which is of all pods together. Otherwise the
	// numbers of the pods add up.
	Shared bool
}

// OtherLoad is what is known of the load by an Other.
type OtherLoad struct {
	*Other
	Stable, Panic float64
	// Known is false if there are pods and fewer than half of them told the newest value. The
	// averages are then of older ones.
	Known bool
	// Bounded is how many pods told more than counts.
	Bounded int
}

func (o *Other) unit() string {
	if o.Metric == Told {
		return o.Name
	}
	return o.Metric.String()
}

// All makes of what pods tell the load of all ready ones. told are the values of those pods of the
// sample, of sampled pods, that told one. wrong is how many of them are no load, bounded how many
// are more than rate times the target, and count as that: it is the most that one pod can ask for.
// ok is false if less than half of the sample told a load: then nothing is known of the others.
func (o *Other) All(told []float64, sampled, ready int, rate float64) (load float64, wrong, bounded int, ok bool) {
	most := rate * o.Target
	if o.Shared {
		most *= float64(ready)
	}
	valued := make([]float64, 0, len(told))
	for _, f := range told {
		switch {
		case !valid(f):
			wrong++
			continue
		case f > most:
			bounded++
			f = most
		}
		valued = append(valued, f)
	}
	if len(valued) == 0 || 2*len(valued) < sampled {
		return 0, wrong, bounded, false
	}
	if o.Shared {
		slices.Sort(valued)
		return valued[len(valued)/2], wrong, bounded, true
	}
	for _, f := range valued {
		load += f
	}
	return load * float64(ready) / float64(len(valued)), wrong, bounded, true
}

// told is the load over time by one metric that the pods tell.
type told struct {
	pair
	at      time.Time // of the newest value, zero before the first
	value   float64
	bounded int
}

// Tell records the load by a metric that the pods tell, as of now.
func (s *Series) Tell(now time.Time, place int, load float64, bounded int) {
	for len(s.told) <= place {
		s.told = append(s.told, told{pair: s.newPair()})
	}
	t := &s.told[place]
	// A second holds one value, as in Add. A skipped one gets the lower of its neighbours. If more
	// are skipped, nothing is known of them.
	switch seconds := now.Unix() - t.at.Unix(); {
	case t.at.IsZero() || seconds < 0:
		t.add(now, load)
	case seconds == 0:
		t.replace(now, t.value, load)
	default:
		t.add(now, load)
		for ; seconds > 1; seconds-- {
			skipped := now.Add(-time.Duration(seconds-1) * time.Second)
			if now.Sub(t.at) <= freshness {
				t.add(skipped, math.Min(t.value, load))
			} else if now.Sub(skipped) < t.stable.Length() {
				t.miss(skipped)
			}
		}
	}
	t.at, t.value, t.bounded = now, load, bounded
}

// ObserveOthers returns the loads by other metrics at a moment. Without a ready pod nobody could
// tell more.
func (s *Series) ObserveOthers(now time.Time, others []Other, algorithm window.Algorithm, ready int32) []OtherLoad {
	loads := make([]OtherLoad, len(others))
	for i := range others {
		l := OtherLoad{Other: &others[i], Known: true}
		var p pair
		switch {
		case l.Metric == Concurrency:
			p = s.concurrency
		case l.Metric == RequestsPerSecond:
			p = s.requests
		case l.Place < len(s.told):
			t := &s.told[l.Place]
			p, l.Bounded = t.pair, t.bounded
			l.Known = ready == 0 || now.Sub(t.at) <= freshness
		default:
			l.Known = ready == 0
		}
		if p.stable != nil {
			l.Stable, _ = p.stable.Average(now, algorithm)
			l.Panic, _ = p.panic.Average(now, algorithm)
		}
		loads[i] = l
	}
	return loads
}

// ExportTold returns the contents of the windows of the metrics that the pods tell, by place.
func (s *Series) ExportTold() (all [][2]window.Contents) {
	for _, t := range s.told {
		all = append(all, [2]window.Contents{t.stable.Export(), t.panic.Export()})
	}
	return all
}

// ImportTold adds what another process had been told until at, as Import does. It ignores what is
// not among the others.
func (s *Series) ImportTold(all [][2]window.Contents, others []Other, at time.Time, behind time.Duration, now time.Time) bool {
	for _, o := range others {
		if o.Metric != Told || o.Place >= len(all) {
			continue
		}
		for len(s.told) <= o.Place {
			s.told = append(s.told, told{pair: s.newPair()})
		}
		shift := shiftOf(behind)
		for i, w := range []*window.Window{s.told[o.Place].stable, s.told[o.Place].panic} {
			if !w.Import(all[o.Place][i], at.Unix(), shift, now) {
				return false
			}
		}
	}
	return true
}

// most returns the largest number of pods that an average asks for, and which metric does: 0 for
// the Metric of the Config, otherwise one more than the place of the other.
func (c Config) most(first float64, others []OtherLoad, average func(*OtherLoad) float64) (raw int32, by int8) {
	raw = pods(first / c.Target)
	for i := range others {
		if more := pods(average(&others[i]) / others[i].Target); more > raw {
			raw, by = more, int8(i+1)
		}
	}
	return raw, by
}

// unknown returns the first other metric that is not known, nil if all are.
func (o Observation) unknown() *OtherLoad {
	for i := range o.Others {
		if !o.Others[i].Known {
			return &o.Others[i]
		}
	}
	return nil
}

// Deciding is the metric that asks for the most pods, with what it was computed from.
type Deciding struct {
	Metric                string
	Target, Stable, Panic float64
}

// Deciding returns the metric that decided, or asks for the most pods if something else did.
func (d *Decision) Deciding() Deciding {
	by := d.StableBy
	if d.Rule == RulePanic {
		by = d.PanicBy
	}
	return d.by(by)
}

func (d *Decision) by(by int8) Deciding {
	o := &d.Observation
	if by == 0 {
		return Deciding{d.Metric.String(), d.Target, o.Stable, o.Panic}
	}
	l := &o.Others[by-1]
	return Deciding{l.unit(), l.Target, l.Stable, l.Panic}
}
