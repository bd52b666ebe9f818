package forward

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// count looks at all answers, and counts what came of them.
func (s *sequence) count() (tally sequenceTally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	victims := map[*turn]bool{} // of bytes that came too late to tell
	repeats := map[string]int{} // by kind of answer
	for _, v := range s.all {
		number, unasked := v.foreign()
		switch from := s.turn[number]; {
		case number == 0:
		case from == nil:
			s.fail(v, "has bytes that nobody wrote")
		case !s.victim(v, victims):
			s.fail(v, fmt.Sprintf("has bytes of\n%s", from.story()))
		case unasked:
			repeats[from.kind()]++
		}
	}
	slices.SortFunc(s.all, func(a, b *turn) int { return a.got.ended.Compare(b.got.ended) })
	disturbed := false // nobody can tell what followed from the first victim
	for _, v := range s.all {
		tally.exchanges++
		if v.faulty() {
			tally.faults++
		}
		switch number, _ := v.foreign(); {
		case number != 0:
			disturbed = true
			tally.late++
		case v.got.broken != "":
			s.fail(v, "is no answer")
		case v.got.mark == "":
			tally.errors++
			if !v.got.cut && !slices.Contains([]int{502, 503, 504}, v.got.status) {
				s.fail(v, "is not the program's")
			} else if !v.faulty() && v.method == "GET" && !disturbed && !s.disturbed(v) {
				s.fail(v, "should have been its own: it asked for nothing special")
			}
		default:
			if why := v.wrong(); why != "" {
				s.fail(v, why)
				continue
			}
			tally.own++
		}
	}
	// Each connection may be in use when the first of a kind is noticed.
	most := 1 + 2*cap(s.slots)
	for kind, n := range repeats {
		if n > most && !s.told {
			s.told = true
			s.t.Errorf("%s: %d clients got what came too late after answers of the kind %s; after the first few, there should be no more kept connections for them", s, n, kind)
		}
	}
	return tally
}

// victim reports whether v has foreign bytes, and nobody could tell that they were not its answer:
// they came too late, or the answer to their own request had been taken from what came too late.
// known has what was found, and is false for what is being looked at. The order in which clients
// noticed their ends does not matter: the next on the connection may be the first to do so.
func (s *sequence) victim(v *turn, known map[*turn]bool) bool {
	if found, looked := known[v]; looked {
		return found
	}
	known[v] = false
	number, unasked := v.foreign()
	switch from := s.turn[number]; {
	case from == nil || s.http2:
	case unasked && s.late(from, v):
		known[v] = true
	default: // the answer of a victim is unasked, too
		known[v] = !unasked && (s.victim(from, known) || s.unseen(from, known))
	}
	return known[v]
}

// late reports whether nobody could tell that the unasked bytes of from were not the answer to v.
func (s *sequence) late(from, v *turn) bool {
	return !s.http2 && !from.together && (from.to.IsZero() || !from.to.Before(v.began))
}

// unseen reports whether v may have been given what came too late, and whoever waited for it had
// left before it saw that: its client, or the first of two forwarders, which tells an error. Then
// the forwarder takes the answer to v for the one to the next request.
func (s *sequence) unseen(v *turn, known map[*turn]bool) bool {
	if v.got.mark != "" || v.got.broken != "" || v.got.status != 0 && s.hops == 1 || v.on == nil {
		return false
	}
	for _, o := range v.on.read {
		switch {
		case o == v:
			return false
		case o.unasked && o.whole && s.late(o, v), s.victim(o, known), s.unseen(o, known):
			return true
		}
	}
	return false
}

// disturbed reports whether something that came too late may have cost v its answer.
func (s *sequence) disturbed(v *turn) bool {
	for _, o := range s.all {
		if o == v {
			continue
		}
		if s.http2 { // a fault of the program ends the connection for all
			if o.faulty() && o.began.Before(v.got.ended) && o.got.ended.Add(time.Second).After(v.began) {
				return true
			}
			continue
		}
		if !o.from.IsZero() && !o.together && o.from.Before(v.got.ended) && !o.to.Before(v.began) {
			return true
		}
	}
	return false
}

// wrong says what is wrong with an answer whose bytes are its own.
func (v *turn) wrong() string {
	if unaskedTag.Match(v.got.body) {
		return "" // its own
	}
	if v.method == "HEAD" || v.got.status == 204 || v.got.status == 304 {
		if len(v.got.body) > 0 {
			return "has a body"
		}
		return ""
	}
	if !bytes.HasPrefix(tagged(v.number, max(v.size, len(v.got.body))), v.got.body) {
		return "is not made of its own bytes"
	}
	if v.got.cut || v.got.timer != "" || v.got.status == 101 {
		return ""
	}
	if len(v.got.body) != v.size && !(v.ends == endsMore && len(v.got.body) <= v.size) {
		return fmt.Sprintf("has %d bytes, want %d", len(v.got.body), v.size)
	}
	return ""
}

// story tells what happened in an exchange.
func (v *turn) story() string {
	since := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.Sub(v.began).String()
	}
	text := fmt.Sprintf("  %d, %s of %d bytes (%s), answer by %s of %d bytes", v.number, v.method, v.sends, v.ends, v.kind(), v.size)
	if v.unasked {
		text += fmt.Sprintf(", unasked bytes after %v (like a response %v, in one write with the answer %v, written at %s, arrived at %s)", v.after, v.whole, v.together, since(v.from), since(v.to))
	}
	return text + fmt.Sprintf("; the program read it %d times, it ended at %s with %d, number %q, cut %v, %d bytes %.60q %s",
		v.asked, since(v.got.ended), v.got.status, v.got.mark, v.got.cut, len(v.got.body), v.got.body, v.got.broken)
}

// fail reports one fault of a world; the others follow from it.
func (s *sequence) fail(v *turn, what string) {
	if !s.told {
		s.told = true
		s.t.Errorf("%s: the answer to\n%s\n%s", s, v.story(), what)
	}
}
