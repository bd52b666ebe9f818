package decide

import "time"

// loadNoise is the deviation, as a part of the mean, of a load that counts as constant.
const loadNoise = 0.15

// steadyShare is the lowest value of such a load, as a share of its highest.
const steadyShare = (1 - loadNoise) / (1 + loadNoise)

// Hysteresis keeps the scale constant under noise. A constant load between two whole numbers of
// pods must not add and remove a pod in turn. The number stays as long as noise can explain the
// load. Below that, the load has fallen, and the scale follows it without hysteresis until the load
// is constant again. Otherwise the number would stop at a value that the average only passes.
type Hysteresis struct {
	// Target is the target that Number was computed with. Number has no meaning with another one.
	Target float64
	// Number of pods that were asked for.
	Number int32
	// Falling is true while the scale follows a falling load. Fell is when the number last fell.
	Falling bool
	Fell    time.Time
}

// hold takes the number of pods that the averages ask for and returns the number to keep. lowers is
// true if this decision may lower the scale.
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

// leastFor is the lowest load, with noise, that may have asked for that number of pods.
func leastFor(number int32, target float64) float64 {
	return steadyShare * float64(number-1) * target
}

// at converts a number of pods from the target of h to a higher target: the number for the lowest
// load that may have asked for it.
func (h Hysteresis) at(target float64, number int32) int32 {
	if number == 0 {
		return 0
	}
	return 1 + int32(float64(number-1)*h.Target/target)
}

// endTry ends the panic that a try caused, so that its pods are not kept for a window longer than
// the try. If the load rose meanwhile, the panic goes on with the number of pods for that load.
func (s *State) endTry(c Config, o Observation) {
	if s.Tried.Target > 0 && s.Tried.Target < c.Target {
		s.PanicMax = s.Tried.at(c.Target, s.PanicMax)
		if !o.lacks(c) && o.Panic*steadyShare <= o.Stable {
			s.PanicSince, s.PanicMax = time.Time{}, 0
		}
	}
	s.Tried = Hysteresis{}
}

// steady returns the stable scale after the hysteresis.
func (s *State) steady(c Config, d *Decision, o Observation, urgent int32, now time.Time) (int32, Rule) {
	if !c.Trying {
		s.endTry(c, o)
	}
	// In a panic the stable window still fills. A lower value is no fall of the load.
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
