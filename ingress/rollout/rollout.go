// Package rollout moves the requests of a "latest" target from one revision to the next in steps.
//
// Owns: the share of each revision at each step, and when the next step is due. Reads: nothing but
// its arguments. Writes: nothing. Never: uses a clock or a client. State is JSON in an annotation,
// so any replica can continue.
package rollout

import (
	"encoding/json"
	"math"
	"slices"
	"time"
)

// maxRevisions is the most revisions that share a target: half of what a rule of a gateway can
// have, so that there is room for the other targets of the Route.
const maxRevisions = 8

// State is the content of the annotation networking.internal.knative.dev/rollout.
type State struct {
	Configurations []Configuration `json:"configurations,omitempty"`
}

// Configuration is one target that follows a Configuration's latest ready revision.
type Configuration struct {
	Name      string  `json:"configurationName"`
	Tag       string  `json:"tag,omitempty"`
	Percent   int64   `json:"percent"`
	Revisions []Share `json:"revisions,omitempty"` // oldest first; their percents add up to Percent
	Step      Step    `json:"stepParams"`
	Judge
	// Stages of a goal are its shares on the way, ascending; without any, the pace is even.
	Stages []Stage `json:"-"`
	// Named goals are of targets that name their revision, and are reached at once. In a state such
	// a target is what the latest revision comes after once the target follows that again.
	Named bool `json:"-"`
}

// Judge is what a judge of the rollout says. It ends with the rollout to the newest revision.
type Judge struct {
	// Held keeps the shares as they are. Suspect says that something speaks against the newest
	// revision meanwhile. Then that one has no share any more once there is a newer one.
	Held    bool            `json:"held,omitempty"`
	Suspect bool            `json:"suspect,omitempty"`
	Judged  json.RawMessage `json:"judged,omitempty"` // what the judge remembers
}

// Stage is a share of a target's requests, in percent, and for how long the newest revision has it.
// The first one may be 0: the newest revision then gets what comes by a tag, and no other. Requests
// is how many it must have answered there besides, which its judge sees to.
type Stage struct {
	Percent  int64
	For      time.Duration
	Requests uint64
}

// LastStep reports whether the next step gives the newest revision all requests of the target.
func (c Configuration) LastStep() bool {
	return c.Step.Size > 0 && c.Percent-c.Revisions[len(c.Revisions)-1].Percent <= c.Step.Size
}

// Share is the part of one revision.
type Share struct {
	Revision string `json:"revisionName"`
	Percent  int64  `json:"percent"`
}

// Step is the pace. Times are nanoseconds since 1970. Size is 0 until the gateways follow the first
// step.
type Step struct {
	Start    int64 `json:"starttime,omitempty"`
	Next     int64 `json:"nextStepTime,omitempty"`
	Duration int64 `json:"stepDuration,omitempty"`
	Size     int64 `json:"stepSize,omitempty"`
}

// Parse reads a State. It returns an empty one if the text is not valid.
func Parse(text string) State {
	var s State
	if json.Unmarshal([]byte(text), &s) != nil {
		return State{}
	}
	for _, c := range s.Configurations {
		sum := int64(0)
		for _, r := range c.Revisions {
			if r.Percent < 0 || r.Percent > 100 {
				return State{}
			}
			sum += r.Percent
		}
		if c.Percent < 0 || c.Percent > 100 || c.Step.Size < 0 || c.Step.Size > c.Percent || sum != c.Percent || len(c.Revisions) == 0 {
			return State{}
		}
	}
	return s
}

// String returns the JSON of a State.
func (s State) String() string {
	raw, err := json.Marshal(s)
	if err != nil {
		return "{}" // numbers and strings always encode
	}
	return string(raw)
}

// InProgress reports whether a target still has more than one revision.
func (s State) InProgress() bool {
	for _, c := range s.Configurations {
		if len(c.Revisions) > 1 {
			return true
		}
	}
	return false
}

// Held reports whether a judge has a target stand still.
func (s State) Held() bool {
	return slices.ContainsFunc(s.Configurations, func(c Configuration) bool { return c.Held })
}

// Find returns the target of a Configuration with the given tag.
func (s State) Find(name, tag string) (Configuration, bool) {
	for _, c := range s.Configurations {
		if c.Name == name && c.Tag == tag {
			return c, true
		}
	}
	return Configuration{}, false
}

// Advance returns the shares now. before is the last decision, and want is the goal, with one
// revision for each target. A target that is new, has a tag, names its revision, or has at most 1 %
// reaches its goal at once, and so does every target if the duration is 0. again is the time until
// the next step, 0 if there is none.
func Advance(before, want State, duration time.Duration, now time.Time) (state State, again time.Duration) {
	for _, w := range want.Configurations {
		b, known := before.Find(w.Name, w.Tag)
		if !known || duration <= 0 || w.Tag != "" || w.Named || w.Percent <= 1 || b.Percent == 0 {
			w.Step = Step{}
			state.Configurations = append(state.Configurations, w)
			continue
		}
		c := advance(b, w, now)
		if len(c.Revisions) > 1 && c.Step.Next > 0 && !c.Held {
			if wait := max(time.Duration(c.Step.Next-now.UnixNano()), time.Millisecond); again == 0 || wait < again {
				again = wait
			}
		}
		state.Configurations = append(state.Configurations, c)
	}
	return state, again
}

func advance(b, w Configuration, now time.Time) Configuration {
	c := Configuration{Name: w.Name, Tag: w.Tag, Percent: b.Percent, Revisions: append([]Share(nil), b.Revisions...), Step: b.Step,
		Judge: b.Judge, Stages: w.Stages}
	c.retarget(w.Percent)
	newest := w.Revisions[len(w.Revisions)-1].Revision
	c.returnTo(newest, now)
	last := len(c.Revisions) - 1
	switch {
	case c.Revisions[last].Revision != newest:
		// The new revision starts with one percent, from the newest that has any. A suspect keeps
		// none: nobody would judge it any further.
		if c.Suspect && last > 0 {
			c.Revisions[last-1].Percent += c.Revisions[last].Percent
			c.Revisions = c.Revisions[:last]
		}
		begin := Share{newest, 1}
		if len(c.Stages) > 0 {
			begin.Percent = min(1, c.Stages[0].Percent)
		}
		c.Revisions[c.served()].Percent -= begin.Percent
		c.Revisions = append(c.Revisions, begin)
		c.Step, c.Judge = Step{Start: now.UnixNano()}, Judge{}
	case len(c.Revisions) > 1 && c.Step.Size > 0 && !c.Held && now.UnixNano() >= c.Step.Next:
		c.step()
		c.Step.Next = after(now, c.Step.Duration)
		c.stage(now)
	}
	c.compact()
	c.settle()
	return c
}

// returnTo gives a revision the shares of all newer ones, if it is not the newest: who names
// revisions can return to an older one that still has requests. Compared with the others it is not
// new, and who returns to it wants the newer ones to end.
func (c *Configuration) returnTo(revision string, now time.Time) {
	at := slices.IndexFunc(c.Revisions, func(r Share) bool { return r.Revision == revision })
	if at < 0 || at == len(c.Revisions)-1 {
		return
	}
	for _, newer := range c.Revisions[at+1:] {
		c.Revisions[at].Percent += newer.Percent
	}
	c.Revisions = c.Revisions[:at+1]
	c.Step, c.Judge = Step{Start: now.UnixNano()}, Judge{}
}

// stage sets the next step if there are stages.
func (c *Configuration) stage(now time.Time) {
	if len(c.Stages) == 0 {
		return
	}
	at, next := c.At(c.Stages)
	c.Step.Size, c.Step.Duration, c.Step.Next = next-c.Revisions[len(c.Revisions)-1].Percent, int64(at.For), after(now, int64(at.For))
}

// after is the time of a step, in nanoseconds since 1970, or the last one there is: a step that
// is to last for centuries must not be due at once.
func after(now time.Time, duration int64) int64 {
	return now.UnixNano() + min(duration, math.MaxInt64-now.UnixNano())
}

// At returns the stage that the newest revision has reached, zero before the first, and its share
// at the next one.
func (c *Configuration) At(stages []Stage) (at Stage, next int64) {
	for _, s := range stages {
		if share := max(min(1, s.Percent), s.Percent*c.Percent/100); share > c.Revisions[len(c.Revisions)-1].Percent {
			return at, share
		}
		at = s
	}
	return at, c.Percent
}

// settle forgets the pace and the judge of a rollout that is over.
func (c *Configuration) settle() {
	if len(c.Revisions) == 1 {
		c.Step, c.Judge = Step{}, Judge{}
	}
}

// GiveBack takes their shares from revisions that went back or are gone. The next older one that is
// neither gets them, or the next newer one if there is none. A target that has no other revision is
// left out, so that it reaches its goal at once.
func GiveBack(s State, lost func(revision string) bool) State {
	out := State{}
	for _, c := range s.Configurations {
		var kept []Share
		owed, newest := int64(0), c.Revisions[len(c.Revisions)-1].Revision
		for _, r := range c.Revisions {
			switch {
			case !lost(r.Revision):
				r.Percent += owed
				owed, kept = 0, append(kept, r)
			case len(kept) > 0:
				kept[len(kept)-1].Percent += r.Percent
			default:
				owed += r.Percent
			}
		}
		if len(kept) == 0 {
			continue
		}
		if c.Revisions = kept; kept[len(kept)-1].Revision != newest {
			c.Judge = Judge{} // which is of the newest
		}
		c.settle()
		out.Configurations = append(out.Configurations, c)
	}
	return out
}

// served is the newest revision that has a share.
func (c *Configuration) served() int {
	for i := len(c.Revisions) - 1; i > 0; i-- {
		if c.Revisions[i].Percent > 0 {
			return i
		}
	}
	return 0
}

// retarget changes the target's percentage: an increase goes to the newest revision that has a
// share, a decrease is taken from the oldest.
func (c *Configuration) retarget(percent int64) {
	diff := percent - c.Percent
	c.Percent = percent
	if diff > 0 {
		c.Revisions[c.served()].Percent += diff
	}
	for i := 0; diff < 0 && i < len(c.Revisions); i++ {
		take := min(-diff, c.Revisions[i].Percent)
		c.Revisions[i].Percent -= take
		diff += take
	}
}

// step moves Size percent to the newest revision, from the newest of the others first.
func (c *Configuration) step() {
	last := len(c.Revisions) - 1
	left := c.Step.Size
	for i := last - 1; i >= 0 && left > 0; i-- {
		take := min(left, c.Revisions[i].Percent)
		c.Revisions[i].Percent -= take
		c.Revisions[last].Percent += take
		left -= take
	}
}

// compact removes older revisions without a share, and the second oldest while there are too many.
func (c *Configuration) compact() {
	last := len(c.Revisions) - 1
	kept := c.Revisions[:0]
	for i, r := range c.Revisions {
		if r.Percent > 0 || i == last {
			kept = append(kept, r)
		}
	}
	c.Revisions = kept
	// If revisions come faster than steps, their number must stay within what a gateway supports.
	for last = len(c.Revisions) - 1; last >= maxRevisions; last = len(c.Revisions) - 1 {
		c.Revisions[c.served()].Percent += c.Revisions[1].Percent
		c.Revisions = append(c.Revisions[:1], c.Revisions[2:]...)
	}
}

// Observe sets the pace of targets whose first percent has reached the gateways. The time which
// that took is the shortest duration of a step, because gateways would not follow faster steps.
func Observe(s State, duration time.Duration, now time.Time) (State, bool) {
	out, changed := State{}, false
	for _, c := range s.Configurations {
		if len(c.Revisions) > 1 && c.Step.Size == 0 && c.Step.Start > 0 {
			shortest := max(1, math.Ceil(time.Duration(now.UnixNano()-c.Step.Start).Seconds()))
			rest := max(1, duration.Seconds()-shortest)
			steps := min(max(1, rest/shortest), float64(max(1, c.Percent-1)))
			c.Step.Size = max(1, int64(math.Round(float64(c.Percent-1)/steps)))
			c.Step.Duration = int64(rest / steps * float64(time.Second))
			c.Step.Next = after(now, c.Step.Duration)
			c.stage(now)
			changed = true
		}
		out.Configurations = append(out.Configurations, c)
	}
	return out, changed
}
