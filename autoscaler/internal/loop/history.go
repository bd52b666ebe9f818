package loop

import (
	"math"
	"strconv"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/zero"
)

// HistoryLength is how many decisions of a revision are kept.
const HistoryLength = 100

// Entry is a run of like decisions: same outcome by the same rule. The inputs are those of the last one.
type Entry struct {
	First time.Time
	Times int
	// Want and Replicas are the outcome; Applied says whether Replicas was to be written.
	Decision decide.Decision
	Step     zero.Step
}

// Rule is the rule that limited the outcome, Reason the sentence that explains it.
func (e Entry) Rule() string   { return rule(e.Decision, e.Step) }
func (e Entry) Reason() string { return reason(e.Decision, e.Step) }

// history holds the last runs of decisions: the newest one as it is, the older ones packed, oldest first from
// position next on once they are HistoryLength-1.
type history struct {
	newest Entry
	older  []packed
	next   int
}

func (h *history) add(d decide.Decision, s zero.Step) {
	if last := h.last(); last != nil {
		if last.Decision.Desired == d.Desired && last.Decision.Rule == d.Rule && last.Step.Want == s.Want && last.Step.Rule == s.Rule &&
			last.Decision.Panicking == d.Panicking {
			last.Times++
			last.Decision, last.Step = d, s
			return
		}
		h.put(pack(*last))
	}
	h.newest = Entry{First: d.Time, Times: 1, Decision: d, Step: s}
}

func (h *history) put(p packed) {
	const room = HistoryLength - 1
	if len(h.older) == room {
		h.older[h.next] = p
		h.next = (h.next + 1) % room
		return
	}
	if n := len(h.older); n == cap(h.older) {
		// Most revisions have few; no more room than is ever used.
		h.older = append(make([]packed, 0, min(max(2*n, 4), room)), h.older...)
	}
	h.older = append(h.older, p)
}

func (h *history) last() *Entry {
	if h.newest.Times == 0 {
		return nil
	}
	return &h.newest
}

func (h *history) list() []Entry {
	if h.newest.Times == 0 {
		return nil
	}
	out := make([]Entry, 0, len(h.older)+1)
	for i := range h.older {
		out = append(out, h.older[(h.next+i)%len(h.older)].entry())
	}
	return append(out, h.newest)
}

// packed is an Entry in less than half the room, its figures to seven digits: of ten thousand revisions that are never at
// rest there are a million of them.
type packed struct {
	first, last                                                                         int64 // Unix nanoseconds
	learned, stepRule, reason                                                           string
	times                                                                               int32
	desired, want, replicas, ready, stableRaw, panicRaw, burstRaw, low, high            int32
	held                                                                                int32
	stable, panic, burst, queued, unheard, target, total, excess, panicSeconds, seconds float32
	rule                                                                                decide.Rule
	metric                                                                              decide.Metric
	truths                                                                              truths
}

// truths are up to eight of them.
type truths uint8

const (
	panicking truths = 1 << iota
	known
	missing
	pushed
	between
	apply
	probe
)

func (t truths) of(which truths) bool { return t&which != 0 }

// when returns t if it is so.
func (t truths) when(so bool) truths {
	if so {
		return t
	}
	return 0
}

func pack(e Entry) packed {
	d, o, s := &e.Decision, &e.Decision.Observation, &e.Step
	return packed{first: e.First.UnixNano(), last: d.Time.UnixNano(), learned: d.Learned, stepRule: s.Rule, reason: s.Reason,
		times: int32(min(e.Times, math.MaxInt32)), desired: d.Desired, want: s.Want, replicas: s.Replicas, ready: o.Ready,
		stableRaw: d.StableRaw, panicRaw: d.PanicRaw, burstRaw: d.BurstRaw, low: d.Low, high: d.High, held: d.Held,
		stable: float32(o.Stable), panic: float32(o.Panic), burst: float32(o.Burst), queued: float32(o.Queued), unheard: float32(o.Unheard),
		target: float32(d.Target), total: float32(d.Total), excess: float32(d.ExcessBurst), panicSeconds: float32(d.PanicSeconds), seconds: float32(s.After.Seconds()),
		rule: d.Rule, metric: d.Metric,
		truths: panicking.when(d.Panicking) | known.when(o.Known) | missing.when(o.Missing) | pushed.when(o.Pushed) |
			between.when(o.BetweenTicks) | apply.when(s.Apply) | probe.when(s.Probe)}
}

func (p *packed) entry() Entry {
	return Entry{First: time.Unix(0, p.first), Times: int(p.times),
		Decision: decide.Decision{Time: time.Unix(0, p.last), Desired: p.desired, ExcessBurst: figure(p.excess), Panicking: p.truths.of(panicking), Rule: p.rule,
			Observation: decide.Observation{Ready: p.ready, Stable: figure(p.stable), Panic: figure(p.panic), Known: p.truths.of(known), Missing: p.truths.of(missing),
				Burst: figure(p.burst), Queued: figure(p.queued), Unheard: figure(p.unheard), Pushed: p.truths.of(pushed), BetweenTicks: p.truths.of(between)},
			Target: figure(p.target), Total: figure(p.total), Metric: p.metric, StableRaw: p.stableRaw, PanicRaw: p.panicRaw, BurstRaw: p.burstRaw,
			Low: p.low, High: p.high, Held: p.held, PanicSeconds: figure(p.panicSeconds), Learned: p.learned},
		Step: zero.Step{Want: p.want, Apply: p.truths.of(apply), Replicas: p.replicas, Probe: p.truths.of(probe), After: time.Duration(float64(p.seconds) * float64(time.Second)),
			Rule: p.stepRule, Reason: p.reason}}
}

// figure is the number that a person wrote, where a float32 has only what is nearest to it.
func figure(f float32) float64 {
	exact, err := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', -1, 32), 64)
	if err != nil {
		return float64(f)
	}
	return exact
}
