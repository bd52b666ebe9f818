package resting

import (
	"fmt"
	"testing"

	"ebb.dev/ebb/test/golden"
)

// player plays a story: what is wanted, found and answered, and the step that follows.
type player struct{ seen Seen }

func (p *player) event(words []string) (string, error) {
	s := &p.seen
	switch words[0] {
	case "begins": // <state> [told]
		*s = Seen{Rules: Missing, Followed: true, Common: true}
		for _, word := range words[1:] {
			switch word {
			case "told":
				s.Told = true
			case "bridge":
				s.Bridge, s.Fresh = Serving, true
			case "spare":
				s.Rules = Spare
			case "full":
				s.Rules = Full
			case "needed":
				s.Needs, s.Marks = true, true
			case "missing":
			default:
				return "", fmt.Errorf("what is %s?", word)
			}
		}
	case "wanted":
		for w, name := range wantNames {
			if name == words[1] {
				s.Want = Want(w)
			}
		}
	case "done": // what the last step asks for
		do := Next(*s).Do
		s.Answered = Nothing
		switch do {
		case Need:
			s.Needs, s.Marks = true, true
		case Release:
			s.Needs, s.Marks = false, false
		case Tell:
			s.Told, s.Followed = true, false
		case Untell:
			s.Told = false
		case WriteBridge:
			s.Bridge, s.Fresh = Serving, true
		case MoveBridge:
			s.Bridge = Moved
		case DeleteBridge:
			s.Bridge = NoBridge
		case WriteSpares, Withdraw:
			s.Rules, s.Fresh = Spare, false
		case WriteRules:
			s.Rules, s.Fresh = Full, false
		case DeleteRoutes:
			s.Rules, s.Fresh = Missing, false
		case Wait:
			return "", fmt.Errorf("nothing is to be done: %+v", *s)
		}
	case "answered": // each gateway pod says yes
		s.Answered = Next(*s).Ask
	case "followed": // each activator follows the plan
		s.Followed = true
	case "lost": // somebody deletes something
		switch words[1] {
		case "bridge":
			s.Bridge = NoBridge
		case "common":
			s.Common = false
		case "routes":
			s.Rules = Missing
		}
	case "found":
		s.Common = true
	case "plan": // it changes
		if s.Rules == Spare {
			s.Rules = Old
		}
		s.Answered, s.Needs = Nothing, false
	default:
		return "", fmt.Errorf("what is %s?", words[0])
	}
	step := Next(*s)
	outcome := s.State().String() + ": " + step.Do.String()
	if step.Ask != Nothing {
		outcome += ", asking: " + step.Ask.String()
	}
	return outcome, nil
}

func TestStories(t *testing.T) {
	golden.Each(t, "testdata/*.story", func(t *testing.T, file, text string) {
		p := &player{}
		golden.File(t, file, golden.Lines(t, text, p.event))
	})
}
