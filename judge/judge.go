// Package judge says whether a new revision may have more requests, has to wait, or goes back.
//
// Owns: what a guard says, the evidence against a new revision, the verdict with its reason, which
// seconds count, and what is remembered of a rollout.
// Reads: the guard, state and input that the caller passes, and the time.
// Writes: nothing but its results.
// Never: looks at a clock, logs, starts a goroutine or does I/O.
//
// A new revision is compared with the old one in the same seconds. What both suffer from, such as a
// database that is down or a sender of bad requests, speaks against neither: the gateway draws for
// each request which of the two it comes to. The test is sequential: it may be looked at each
// second and ends as soon as the evidence is enough, and still convicts a revision that is no worse
// than the old one in at most one rollout of 1/FalseAlarms (docs/decisions/0019).
package judge

import (
	"math"
	"time"

	"ebb.dev/ebb/wire"
)

// FalseAlarms bounds the share of the rollouts to revisions that are no worse than the old one
// which go back all the same.
const FalseAlarms = 0.005

const (
	// suspicion is the evidence at which a rollout stands still until there is more or less of it.
	suspicion = 10
	// muchMore is how many times the rate of the old one makes a revision wait that fails more than
	// its bound, although the comparison says nothing.
	muchMore = 2
	// A block ends when so many requests have ended, or after this long.
	blockRequests = 10
	longestBlock  = time.Minute
	// silence is after which time without figures nothing goes on.
	silence = 10 * time.Second
	// unanswered is the logarithm of the odds at which it is no chance any more that the new
	// revision answers nothing: a million to one.
	unanswered = 6 * math.Ln10
)

// Tally counts requests, and those that failed.
type Tally struct {
	Requests uint64 `json:"requests,omitempty"`
	Errors   uint64 `json:"errors,omitempty"`
}

func (t *Tally) add(o Tally) {
	t.Requests += o.Requests
	t.Errors += min(o.Errors, o.Requests)
}

func (t Tally) rate() float64 { return float64(t.Errors) / float64(max(1, t.Requests)) }

// Times count the requests that were slow, of all whose time is known.
type Times struct {
	Old   uint64 `json:"old,omitempty"`
	OfOld uint64 `json:"ofOld,omitempty"`
	New   uint64 `json:"new,omitempty"`
	OfNew uint64 `json:"ofNew,omitempty"`
	// OldBucket and NewBucket are the last ones that were not slow in the newest block.
	OldBucket uint8 `json:"oldBucket,omitempty"`
	NewBucket uint8 `json:"newBucket,omitempty"`
}

func end(bucket uint8) time.Duration {
	return wire.LatencyEnd(int(bucket)).Round(time.Millisecond / 10)
}

// Counts are how requests of one revision ended.
type Counts struct {
	// Errors are those that the program is to blame for.
	Tally
	// Latency is of those that found a pod that was warm.
	Latency wire.Latency `json:"latency,omitzero"`
	// Senders are those whose sender is known, by its drawer.
	Senders [wire.SenderDrawers]Tally `json:"senders,omitzero"`
}

func (c *Counts) add(o *Counts) {
	c.Tally.add(o.Tally)
	c.Latency.Merge(&o.Latency)
	for i, t := range o.Senders {
		c.Senders[i].add(t)
	}
}

// Input is what was seen since the last decision.
type Input struct {
	// Told is false if nobody told the figures of that time. They are unknown then, not 0.
	Told bool
	// Share is the percent of the requests that the new revision gets, and Last says that the next
	// step gives it all of them.
	Share int
	Last  bool
	// Preview says that it gets none yet, and New are those by its tag. Whoever sends there chose
	// the revision, so there is nothing to compare with, and they never send it back.
	Preview bool
	// Least is how many requests the new revision must have answered with this share for the step
	// that is due; 0 if none is.
	Least uint64
	// Old and New are of the same time. Old is of all older revisions together.
	Old, New Counts
	// OldStarts and NewStarts say for how long the slowest of the pods that are not ready yet has
	// been starting, from the time at which it had a node; 0 if there is none.
	OldStarts, NewStarts time.Duration
	// NewReady says that a pod of the new revision is ready. So it can start; what keeps another
	// one may be its node, or an image that is not there yet.
	NewReady bool
}

// State is carried from one decision to the next, and from one process to the next.
type State struct {
	// Heard is when figures last came.
	Heard time.Time `json:"heard,omitzero"`
	Block Block     `json:"block,omitzero"`
	Step  Step      `json:"step,omitzero"`
	// Answered is when the new revision last answered, or got its share. Since then it got none of
	// Passed requests that the old one has answered, which is chance in one of e^Owed times.
	Answered time.Time `json:"answered,omitzero"`
	Passed   uint64    `json:"passed,omitempty"`
	Owed     float64   `json:"owed,omitempty"`
	// Preview says that the counts are of requests by a tag. They end with it.
	Preview bool `json:"preview,omitempty"`
	// Bounds is the part of the guard that the wagers are about.
	Bounds string `json:"bounds,omitempty"`
	// Old and New are of all blocks that have ended.
	Old Counts `json:"old,omitzero"`
	New Counts `json:"new,omitzero"`
	// Failing is the evidence that more than the bound of the requests fail, Worse that more fail
	// than at the old revision.
	Failing Wager `json:"failing,omitzero"`
	Worse   Wager `json:"worse,omitzero"`
	// Lately is what came since nothing spoke against the new revision last, by sender.
	Lately Lately `json:"lately,omitzero"`
	// Slower is the evidence of each quantile in the order of the guard.
	Slower []Slow `json:"slower,omitempty"`
	// Back is the decision to go back. There is no other one after it.
	Back *Decision `json:"back,omitempty"`
}

// Step is what the new revision has answered with a share.
type Step struct {
	Share    int    `json:"share,omitempty"`
	Requests uint64 `json:"requests,omitempty"`
}

// Block is a time in which the revisions are compared.
type Block struct {
	Since time.Time `json:"since,omitzero"`
	Share int       `json:"share,omitempty"`
	Old   Counts    `json:"old,omitzero"`
	New   Counts    `json:"new,omitzero"`
}

// Slow is the evidence that a revision is slower.
type Slow struct {
	Wager Wager `json:"wager,omitzero"`
	Times Times `json:"times,omitzero"`
}

// Decide takes what was seen and judges.
//
//	seen                                                    verdict
//	the decision was to go back                             go back
//	more errors than the bound and than the old one         go back, with evidence of tests/FalseAlarms
//	the same, and hardly any but those of one sender        wait
//	a quantile that is too slow                             go back, with evidence of tests/FalseAlarms
//	a pod that starts for too long, and none of the old one go back
//	the same, and others of the new one are ready           wait
//	no figures for 10 s                                     wait
//	a preview that is likelier above the bound of errors    wait
//	evidence of suspicion, or all pods start slowly         wait
//	more errors than the bound, twice the old one's rate    wait
//	no answer, and some were due                            wait
//	too few requests for the last or the next step          wait
//	anything else                                           go on
func Decide(g Guard, s State, in Input, now time.Time) (Decision, State) {
	if !g.On() {
		return Decision{Rule: RuleOff}, s
	}
	if s.Back != nil {
		return *s.Back, s
	}
	s = s.take(g, in, now)
	d := s.judge(g, in, now)
	if d.Verdict == GoBack {
		s.Back = &d
	}
	return d, s
}

// take adds what was seen to the block, and weighs the blocks that end.
func (s State) take(g Guard, in Input, now time.Time) State {
	if s.Preview && !in.Preview {
		s = State{Heard: s.Heard}
	}
	if s.Preview = in.Preview; in.Preview {
		in.Old = Counts{}
	}
	if s.Heard.IsZero() {
		s.Heard = now
	}
	bounds := Guard{Errors: g.Errors, Slower: g.Slower}.String()
	if s.Bounds != bounds && s.Bounds != "" { // what was found against another bound says nothing of this one
		s.Failing, s.Lately, s.Slower = Wager{}, Lately{}, nil
	}
	if s.Bounds = bounds; len(s.Slower) != len(g.Slower) {
		s.Slower = make([]Slow, len(g.Slower))
	} else {
		s.Slower = append([]Slow(nil), s.Slower...)
	}
	if s.Step.Share != in.Share {
		s.Step = Step{Share: in.Share}
	}
	if !in.Told {
		return s
	}
	s.Step.Requests += in.New.Requests
	if s.Answered.IsZero() || in.Preview || in.New.Requests > 0 {
		s.Answered, s.Passed, s.Owed = now, 0, 0
	} else {
		n := passed(&in.Old, now.Sub(s.Answered))
		s.Passed += n
		s.Owed += float64(n) * math.Log(100/float64(max(1, 100-in.Share)))
	}
	// A block has one share, because within it each request must have the same chance to come to
	// the new revision.
	if s.Block.Since.IsZero() || s.Block.Share != in.Share {
		s = s.weigh(g, now)
		s.Block = Block{Since: s.Heard, Share: in.Share}
	}
	s.Heard = now
	s.Block.Old.add(&in.Old)
	s.Block.New.add(&in.New)
	if s.Block.Old.Requests+s.Block.New.Requests >= blockRequests || now.Sub(s.Block.Since) >= longestBlock {
		s = s.weigh(g, now)
		s.Block = Block{Since: now, Share: in.Share}
	}
	return s
}

// passed is how many requests the old revision has answered that came since so long. One that took
// longer came before, and says nothing of a draw in which the new revision had its share; nor does
// one without a time, such as an upgraded connection, or one whose client left.
func passed(old *Counts, since time.Duration) (n uint64) {
	for bucket, m := range old.Latency[:wire.LatencyBuckets-1] { // the last one has no end
		if wire.LatencyEnd(bucket) <= since {
			n += uint64(m)
		}
	}
	return min(n, old.Requests)
}

// weigh ends the block.
func (s State) weigh(g Guard, now time.Time) State {
	old, fresh := &s.Block.Old, &s.Block.New
	if g.Errors > 0 && fresh.Requests > 0 {
		s.Failing.bet(above(fresh.Requests, fresh.Errors, g.Errors/100), now)
		if factors, ok := compared(old.Requests, old.Errors, fresh.Requests, fresh.Errors); ok {
			s.Worse.bet(factors, now)
		}
		if s.Lately.add(old, fresh); s.failing() <= 1 {
			s.Lately = Lately{}
		}
	}
	for i, bound := range g.Slower {
		s.Slower[i].weigh(bound, &s.Old.Latency, old, fresh, now)
	}
	s.Old.add(old)
	s.New.add(fresh)
	return s
}

// weigh compares how many requests of the new revision took longer than the bucket in which the
// quantile of the old one was before this block, times the factor, with how many of the old one
// took longer than that bucket. If each request takes the new revision at most the factor longer,
// it is as rare.
func (s *Slow) weigh(bound Slower, before *wire.Latency, old, fresh *Counts, now time.Time) {
	place, ok := quantile(before, bound.Quantile/100)
	shifted := place + buckets(bound.Factor)
	if !ok || shifted >= wire.LatencyBuckets-1 {
		return
	}
	ofOld, slowOld := beyond(&old.Latency, place)
	ofNew, slowNew := beyond(&fresh.Latency, shifted)
	s.Times.Old += slowOld
	s.Times.OfOld += ofOld
	s.Times.New += slowNew
	s.Times.OfNew += ofNew
	s.Times.OldBucket, s.Times.NewBucket = uint8(place), uint8(shifted)
	if factors, ok := compared(ofOld, slowOld, ofNew, slowNew); ok {
		s.Wager.bet(factors, now)
	}
}

// buckets is how many buckets a factor is worth. They grow by √2; a factor between two of them
// counts as the larger.
func buckets(factor float64) int { return int(math.Ceil(2 * math.Log2(factor))) }

// quantile is the bucket in which it lies; false if there are no requests.
func quantile(l *wire.Latency, q float64) (bucket int, ok bool) {
	all, _ := beyond(l, 0)
	passed := uint64(0)
	for i, n := range l {
		if passed += uint64(n); n > 0 && float64(passed) >= q*float64(all) {
			return i, true
		}
	}
	return 0, false
}

// beyond counts all requests, and those above a bucket.
func beyond(l *wire.Latency, bucket int) (all, above uint64) {
	for i, n := range l {
		all += uint64(n)
		if i > bucket {
			above += uint64(n)
		}
	}
	return all, above
}

func (s *State) judge(g Guard, in Input, now time.Time) Decision {
	d := Decision{Rule: RuleFine, Evidence: 1, Preview: in.Preview, Old: s.Old.Tally, New: s.New.Tally, Bound: g.Starts}
	silent, enough := now.Sub(s.Heard), float64(max(2, g.tests()))/FalseAlarms
	alone := s.accuse(g, enough, &d)
	slowStart := g.Starts > 0 && in.Told && in.NewStarts > g.Starts
	switch {
	case d.Evidence >= enough && alone == 0:
		d.Verdict, d.Rule = GoBack, d.Of
	case slowStart && !in.NewReady && in.OldStarts <= g.Starts:
		d.Verdict, d.Rule, d.For = GoBack, RuleStarts, in.NewStarts
	case silent >= silence:
		d.Verdict, d.Rule, d.For = Wait, RuleSilent, silent
	case slowStart:
		d.Verdict, d.Rule, d.For, d.Partly = Wait, RuleStarts, in.NewStarts, in.NewReady
	case in.Preview && g.Errors > 0 && aboveAll(s.New.Requests, s.New.Errors, g.Errors/100) > 1:
		d.Verdict, d.Rule = Wait, RulePreview // waiting harms nobody, so little is enough
	case alone > 0:
		d.Verdict, d.Rule, d.Alone, d.Lately = Wait, RuleSender, alone, s.Lately.Errors
	case d.Evidence >= suspicion:
		d.Verdict, d.Rule = Wait, RuleSuspicion
	case s.Failing.Value() >= enough && s.New.rate() > muchMore*s.Old.rate():
		d.Verdict, d.Rule, d.Of, d.Times = Wait, RuleUncompared, RuleErrors, Times{}
	case g.tests() > 0 && s.Owed >= unanswered:
		d.Verdict, d.Rule, d.Requests = Wait, RuleUnanswered, s.Passed
	case in.Last && s.New.Requests < g.Requests:
		d.Verdict, d.Rule, d.Requests, d.Answered = Wait, RuleRequests, g.Requests, s.New.Requests
	case s.Step.Requests < in.Least:
		d.Verdict, d.Rule, d.Requests, d.Answered = Wait, RuleStep, in.Least, s.Step.Requests
	default:
		d.Of, d.Times = "", Times{}
	}
	return d
}

// tests is how many there are, each of which has its share of the false alarms.
func (g Guard) tests() int {
	n := len(g.Slower)
	if g.Errors > 0 {
		n++
	}
	return n
}

// failing is the evidence that the new revision fails more. It must do so by both measures.
func (s *State) failing() float64 { return min(s.Failing.Value(), s.Worse.Value()) }

// accuse finds the heaviest charge. A charge that one sender may have made up yields to one that is
// enough without it; if there is none, alone is how many of the failures that sender has.
func (s *State) accuse(g Guard, enough float64, d *Decision) (alone uint64) {
	for i, bound := range g.Slower {
		if e := s.Slower[i].Wager.Value(); e > d.Evidence {
			d.Of, d.Evidence, d.Times = "p"+short(bound.Quantile), e, s.Slower[i].Times
		}
	}
	if g.Errors == 0 {
		return 0
	}
	e := s.failing()
	if e >= enough {
		if alone = s.alone(g.Errors / 100); alone > 0 && d.Evidence >= enough {
			return 0
		}
	}
	if e > 1 && (e >= d.Evidence || alone > 0) {
		d.Of, d.Evidence, d.Times = RuleErrors, e, Times{}
	}
	return alone
}
