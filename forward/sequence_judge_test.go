package forward

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// judge looks at all answers, and counts them.
func (s *sequence) judge() (tally sequenceTally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	victims := map[int]*turn{}  // of bytes that came too late to tell
	repeats := map[string]int{} // by kind of answer
	slices.SortFunc(s.all, func(a, b *turn) int { return a.got.ended.Compare(b.got.ended) })
	for _, v := range s.all {
		tally.exchanges++
		if v.faulty() {
			tally.faults++
		}
		number, unasked := v.foreign()
		switch {
		case number != 0:
			from := s.turn[number]
			if from == nil {
				s.fail(v, "has bytes that nobody wrote")
				continue
			}
			if unasked && s.late(from, v) {
				repeats[from.kind()]++
			} else if unasked || victims[number] == nil && !s.unseen(from) || s.http2 {
				// The answer of a victim is unasked, too.
				s.fail(v, fmt.Sprintf("has bytes of\n%s", from.story()))
				continue
			}
			victims[v.number] = v
			tally.late++
		case v.got.broken != "":
			s.fail(v, "is no answer")
		case v.got.mark == "":
			tally.errors++
			if !v.got.cut && !slices.Contains([]int{502, 503, 504}, v.got.status) {
				s.fail(v, "is not the program's")
			} else if !v.faulty() && v.method == "GET" && !s.disturbed(v, victims) {
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

// late reports whether nobody could tell that the unasked bytes of from were not the answer to v.
func (s *sequence) late(from, v *turn) bool {
	return !s.http2 && !from.together && (from.to.IsZero() || !from.to.Before(v.began))
}

// unseen reports whether v may have been given what came too late, and its client had left before
// it saw that. Then the forwarder takes the answer to v for the one to the next request.
func (s *sequence) unseen(v *turn) bool {
	if v.got.status != 0 || v.got.broken != "" || v.on == nil {
		return false
	}
	for _, o := range v.on.read {
		switch {
		case o == v:
			return false
		case o.unasked && o.whole && s.late(o, v), s.unseen(o):
			return true
		}
	}
	return false
}

// disturbed reports whether something that came too late may have cost v its answer.
func (s *sequence) disturbed(v *turn, victims map[int]*turn) bool {
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
	return len(victims) > 0
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
