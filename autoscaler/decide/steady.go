package decide

import "time"

// loadNoise is the part of its mean by which a load may deviate and still count as constant.
const loadNoise = 0.15

// steadyShare is the least that such a load can be, as a share of the most that it can be.
const steadyShare = (1 - loadNoise) / (1 + loadNoise)

// Hysteresis holds a scale against noise: a constant load whose mean is near what some whole number
// of pods is for must not ask for one pod more and one less in turn. The number stays while the
// load is no less than noise can make one that asked for it. Below that the load has fallen, and is
// followed without any hysteresis until it has arrived: else the number would be caught again where
// the average, which falls for a whole window, came by.
type Hysteresis struct {
	// Target is what Number stands on: by another one it has another meaning.
	Target float64
	// Number of pods that were asked for.
	Number int32
	// Falling is whether the load is followed down, Fell when the number last did.
	Falling bool
	Fell    time.Time
}

// hold takes in the number of pods that the averages ask for, and returns the one to keep. lowers
// is whether this decision may lower the scale.
func (h Hysteresis) hold(c Config, asked int32, average float64, lowers bool, now time.Time) (next Hysteresis, number int32) {
	switch {
	case h.Target != c.Target:
		return Hysteresis{Target: c.Target, Number: asked}, asked
	case asked > h.Number:
		h.Number, h.Falling = asked, false
	case asked == h.Number:
		h.Falling = h.Falling && now.Sub(h.Fell) < c.StableWindow
	case !h.Falling && average > leastFor(h.Number, h.Target):
		return h, h.Number
	case lowers:
		h.Number, h.Falling, h.Fell = asked, true, now
	}
	return h, asked
}

// valid reports whether h can be the result of decisions.
func (h Hysteresis) valid() bool { return valid(h.Target) && h.Number >= 0 }

// leastFor is the least that noise makes of a load that asked for so many pods.
func leastFor(number int32, target float64) float64 {
	return steadyShare * float64(number-1) * target
}

// at is what a number of pods for the target of h comes to at a higher one: as many as the least
// load asks for that asked for number.
func (h Hysteresis) at(target float64, number int32) int32 {
	if number == 0 {
		return 0
	}
	return 1 + int32(float64(number-1)*h.Target/target)
}

// endTry ends the panic that a try was, so that its pods are not held for a window longer than it
// lasts. If load has risen meanwhile, the panic goes on, with as many pods as what brought it asks
// for now.
func (s *State) endTry(c Config, o Observation) {
	if s.Tried.Target > 0 && s.Tried.Target < c.Target {
		s.PanicMax = s.Tried.at(c.Target, s.PanicMax)
		if !o.lacks(c) && o.Panic*steadyShare <= o.Stable {
			s.PanicSince, s.PanicMax = time.Time{}, 0
		}
	}
	s.Tried = Hysteresis{}
}

// steady returns the stable scale as the hysteresis leaves it.
func (s *State) steady(c Config, d *Decision, o Observation, urgent int32, now time.Time) (int32, Rule) {
	if !c.Trying {
		s.endTry(c, o)
	}
	// In a panic the stable window still fills: that it is below what the panic asked for is no
	// fall of load.
	asked, lowers := max(d.StableRaw, urgent), !o.BetweenTicks && !o.lacks(c) && s.PanicSince.IsZero()
	of := &s.Held
	if c.Trying {
		of = &s.Tried
	}
	var number int32
	*of, number = of.hold(c, asked, o.Stable, lowers, now)
	if number <= asked {
		return d.StableRaw, RuleStable
	}
	d.Held = number
	return number, RuleHysteresis
}
