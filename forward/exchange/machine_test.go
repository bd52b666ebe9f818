package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/golden"
)

var began = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// A scenario is one request's story. Its first lines set the traits and the policy ("traits streams
// reviews", "policy defer total=10s"); each other line is an event, with what the machine does and
// the state it is in then: `connected reused -> send-head; sent`.
func TestScenarios(t *testing.T) {
	golden.Each(t, "testdata/*.scenario", func(t *testing.T, file, text string) {
		s := told{traits: Traits{Started: began}}
		golden.File(t, file, golden.Lines(t, text, s.line))
	})
}

// told is a machine that is told a story.
type told struct {
	Machine
	traits Traits
	policy Policy
}

// line tells the machine an event and returns what it did.
func (s *told) line(words []string) (string, error) {
	switch words[0] {
	case "traits":
		return "", s.traits.read(words[1:])
	case "policy":
		return "", s.policy.read(words[1:])
	case "forget-body":
		s.ForgetBody()
		return "", nil
	case "wrote":
		d, err := time.ParseDuration(words[1])
		s.Wrote(began.Add(d))
		return "", err
	}
	e, err := parseEvent(words)
	if err != nil {
		return "", err
	}
	switch e.Kind {
	case Begin:
		s.Init(s.traits)
	case Decided:
		s.Configure(s.policy)
	}
	do := s.Step(&e)
	outcome := fmt.Sprintf("%s; %s", cmp.Or(do.String(), "nothing"), s.State())
	if do.Has(Finish | SeeOut) {
		outcome += fmt.Sprintf(" (%s", s.Ending().Cause)
		if s.Ending().Timer != NoTimer {
			outcome += fmt.Sprintf(", %s", s.Ending().Timer)
		}
		if do.Has(Abort) {
			outcome += fmt.Sprintf(", code %d", s.Ending().Code)
		}
		outcome += ")"
	}
	return outcome, nil
}

// read reads "streams reviews".
func (t *Traits) read(words []string) error {
	for _, w := range words {
		switch w {
		case "streams":
			t.Streams, t.KeepsBody = true, true
		case "idempotent":
			t.Idempotent = true
		case "expects":
			t.Expects = true
		case "redirects":
			t.Redirects = true
		case "reviews":
			t.Reviews = true
		default:
			return fmt.Errorf("there is no trait %q", w)
		}
	}
	return nil
}

// read reads "defer total=10s".
func (p *Policy) read(words []string) error {
	for _, w := range words {
		name, value, timed := strings.Cut(w, "=")
		d, err := time.ParseDuration(value)
		switch {
		case timed && err != nil:
			return err
		case name == "defer":
			p.DeferBody = time.Second
		case name == "continue":
			p.ContinueNow = true
		case name == "cut":
			p.Timeouts.Action = CutResponse
		case name == "total":
			p.Timeouts.Total = d
		case name == "start":
			p.Timeouts.ResponseStart = d
		case name == "idle":
			p.Timeouts.Idle = d
		default:
			return fmt.Errorf("a policy has no %q", w)
		}
	}
	return nil
}

// parseEvent reads an event such as "lost unseen code=7", "head 200 at=3s".
func parseEvent(words []string) (Event, error) {
	e := Event{At: began}
	known := false
	for kind, name := range kindNames {
		if name == words[0] {
			e.Kind, known = Kind(kind), true
		}
	}
	if !known {
		return e, fmt.Errorf("there is no event %q", words[0])
	}
	switch e.Kind {
	case DialFailed, Lost, Failed, BadBody, Panicked:
		e.Err = errors.New("told")
	}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		switch {
		case name == "at":
			d, err := time.ParseDuration(value)
			if err != nil {
				return e, err
			}
			e.At = began.Add(d)
		case name == "code":
			n, err := strconv.Atoi(value)
			if err != nil {
				return e, err
			}
			e.Code = uint32(n)
		case w == "reused":
			e.Reused = true
		case w == "body":
			e.BodyFollows = true
		case w == "unused":
			e.Loss = Unused
		case w == "unseen":
			e.Loss = Unseen
		case w == "reply":
			e.Choice = Reply
		case w == "forward":
			e.Choice = Forward
		case w == "pass":
			e.Choice = Pass
		case w == "dropped":
			e.Err = errors.New("the response was dropped")
		default:
			n, err := strconv.Atoi(w)
			if err != nil {
				return e, fmt.Errorf("%q says nothing of an event", w)
			}
			e.Status = n
		}
	}
	return e, nil
}

// story brings a machine into a state.
var story = map[State][]Event{
	Admitting:   {{Kind: Begin}},
	Connecting:  {{Kind: Begin}, {Kind: Decided}},
	Redirecting: {{Kind: Begin}, {Kind: Decided}, {Kind: DialFailed}},
	Deferred:    {{Kind: Begin}, {Kind: Decided}, {Kind: Connected, BodyFollows: true}},
	Sent:        {{Kind: Begin}, {Kind: Decided}, {Kind: Connected}},
	Reviewing:   {{Kind: Begin}, {Kind: Decided}, {Kind: Connected}, {Kind: Head}},
	Relaying:    {{Kind: Begin}, {Kind: Decided}, {Kind: Connected}, {Kind: Head}, {Kind: Decided, Choice: Pass}},
	Switching:   {{Kind: Begin}, {Kind: Decided}, {Kind: Connected}, {Kind: Switched}, {Kind: SwitchPassed}},
	Tunnel:      {{Kind: Begin}, {Kind: Decided}, {Kind: Connected}, {Kind: Switched}, {Kind: SwitchPassed}, {Kind: FirstByte}},
	Parting:     {{Kind: Begin}, {Kind: Decided}, {Kind: Connected}, {Kind: ClientLeft}},
	Over:        {{Kind: Begin}, {Kind: Decided, Choice: Reply}},
}

func in(t testing.TB, s State, streams bool) *Machine {
	t.Helper()
	m := &Machine{}
	m.Init(Traits{Started: began, Streams: streams, KeepsBody: streams, Redirects: true, Reviews: true, Idempotent: true})
	for _, e := range story[s] {
		e.At = began
		m.Configure(Policy{Timeouts: Timeouts{Total: time.Minute}, DeferBody: map[bool]time.Duration{true: time.Second}[s == Deferred]})
		m.Step(&e)
	}
	if m.State() != s {
		t.Fatalf("the story of %s ends in %s", s, m.State())
	}
	return m
}

// The states to which each event leads, from each state: the table in the package comment. An event
// that is missing does nothing.
func TestTransitions(t *testing.T) {
	ends := Over
	table := map[State]map[Kind]State{
		New:         {Begin: Admitting},
		Admitting:   {Decided: Connecting},
		Connecting:  {Connected: Sent, DialFailed: Redirecting, Failed: ends, BadBody: ends, ClientLeft: ends, Panicked: ends},
		Redirecting: {Decided: Connecting},
		Deferred:    {Head: Reviewing, Switched: Sent, Lost: Over, Failed: ends, BadBody: Parting, ClientLeft: Parting, Panicked: ends},
		Sent:        {Head: Reviewing, SwitchPassed: Switching, Lost: Over, Failed: ends, BadBody: Parting, ClientLeft: Parting, Panicked: ends},
		Reviewing:   {Decided: Connecting},
		Relaying:    {Ended: Over, Lost: Over, Failed: ends, BadBody: Parting, ClientLeft: Parting, Panicked: ends},
		Switching:   {FirstByte: Tunnel, Ended: Over, Lost: Over, Failed: ends, BadBody: Parting, ClientLeft: Parting, Panicked: ends},
		Tunnel:      {Ended: Over, Lost: Over, Failed: ends, BadBody: Parting, ClientLeft: Parting, Panicked: ends},
		Parting:     {UpstreamEnded: Over, Panicked: Over},
		Over:        {},
	}
	for _, asks := range []State{Admitting, Redirecting, Reviewing} {
		table[asks][Panicked] = Over
	}
	for from, row := range table {
		for kind := Begin; kind <= UpstreamEnded; kind++ {
			m := &Machine{}
			if from != New {
				m = in(t, from, false)
			}
			want, ok := row[kind]
			if !ok {
				want = from
			}
			e := Event{Kind: kind, At: began, Err: errors.New("told")}
			if kind == Begin || kind == Decided {
				e.Err = nil
			}
			if m.Step(&e); m.State() != want {
				t.Errorf("%s in %s leads to %s, want %s", kind, from, m.State(), want)
			}
		}
	}
}

// What each cause becomes: the table above end.
func TestEndings(t *testing.T) {
	late := began.Add(time.Hour)
	for _, test := range []struct {
		name            string
		event           Event
		before, after   Do // of a connection
		beforeS, afterS Do // of a stream
		code            uint32
	}{
		{"the client left", Event{Kind: ClientLeft}, Abort, Abort, Abort, Abort, codeCancel},
		{"a timer fired", Event{Kind: Tick, At: late}, Answer, EndTrailer, Answer, EndTrailer, 0},
		{"the body is broken", Event{Kind: BadBody, Code: 1}, Answer, Abort, Abort, Abort, 1},
		{"the upstream canceled", Event{Kind: Lost, Code: codeCancel}, Answer, Abort, Abort, Abort, codeCancel},
		{"the upstream reset", Event{Kind: Lost, Code: 11}, Answer, Abort, Answer, Abort, 11},
		{"the upstream refused", Event{Kind: Lost, Code: codeRefused}, Answer, Abort, Answer, Abort, codeInternal},
		{"the upstream broke", Event{Kind: Failed}, Answer, Abort, Answer, Abort, codeInternal},
		{"no memory is left", Event{Kind: Failed, Ours: true}, Answer, Abort, Answer, Abort, codeInternal},
		{"a panic", Event{Kind: Panicked}, Answer, Abort, Answer, Abort, codeInternal},
	} {
		for _, streams := range []bool{false, true} {
			for _, state := range []State{Sent, Relaying} {
				m := in(t, state, streams)
				e := test.event
				if e.At.IsZero() {
					e.At = began
				}
				want := map[bool]map[State]Do{false: {Sent: test.before, Relaying: test.after}, true: {Sent: test.beforeS, Relaying: test.afterS}}[streams][state]
				over := Drop | Finish
				if !streams && (e.Kind == ClientLeft || e.Kind == Tick || e.Kind == BadBody || e.Ours) { // the upstream still works
					over = Part | SeeOut
				}
				do := m.Step(&e)
				if do != want|over {
					t.Errorf("%s in %s, streams %v: %s, want %s", test.name, state, streams, do, want|over)
				}
				if do.Has(Abort) && m.Ending().Code != test.code && (streams && state == Relaying) {
					t.Errorf("%s: code %d, want %d", test.name, m.Ending().Code, test.code)
				}
			}
		}
	}
}

// When a request may be sent again: the table above mayRetry.
func TestRetries(t *testing.T) {
	for _, test := range []struct {
		name                     string
		loss                     Loss
		reused, idempotent, gone bool
		times                    int
	}{
		{"unseen", Unseen, false, false, false, 3},
		{"unseen, part of the body is gone", Unseen, false, false, true, 0},
		{"unused, reused, idempotent", Unused, true, true, false, 1},
		{"unused, reused", Unused, true, false, false, 0},
		{"unused, fresh, idempotent", Unused, false, true, false, 0},
		{"broken", Broken, true, true, false, 0},
	} {
		m := &Machine{}
		m.Init(Traits{Started: began, Idempotent: test.idempotent})
		m.Step(&Event{Kind: Begin})
		do := m.Step(&Event{Kind: Decided})
		times := -1
		for ; do.Has(Connect); times++ {
			m.Step(&Event{Kind: Connected, Reused: test.reused})
			if test.gone {
				m.ForgetBody()
			}
			do = m.Step(&Event{Kind: Lost, Loss: test.loss, Err: errors.New("told")})
		}
		if times != test.times || !do.Has(Answer) {
			t.Errorf("%s: sent again %d times, want %d; then %s", test.name, times, test.times, do)
		}
	}
}

func TestStepsAllocateNothing(t *testing.T) {
	var m Machine
	if n := testing.AllocsPerRun(100, func() {
		m.Init(Traits{Started: began, Reviews: true})
		for _, e := range story[Relaying] {
			m.Configure(Policy{Timeouts: Timeouts{Total: time.Minute}})
			m.Step(&e)
		}
		m.Step(&Event{Kind: Ended})
	}); n != 0 {
		t.Errorf("a request's steps allocate %v times", n)
	}
}

// Whatever happens in whatever order: the Handler hears the end once, nothing follows it, there is
// one final answer, and a body is sent again only when it is still whole.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 1, 2, 5, 1, 9})
	f.Add([]byte{0x40, 0x41, 0x62, 0x25, 0x21})
	f.Add([]byte{0, 1, 3, 1, 2, 6, 7, 8, 13, 9})
	f.Fuzz(func(t *testing.T, story []byte) {
		if len(story) == 0 || len(story) > 200 {
			return
		}
		var m Machine
		flags := story[0]
		m.Init(Traits{Started: began, Streams: flags&1 != 0, KeepsBody: flags&1 != 0, Idempotent: flags&2 != 0, Expects: flags&4 != 0,
			Redirects: flags&8 != 0, Reviews: flags&16 != 0})
		m.Configure(Policy{Timeouts: Timeouts{Total: time.Minute, Idle: time.Second * 20, Action: Action(flags >> 5 & 1)},
			DeferBody: time.Duration(flags&64) * time.Second / 64, ContinueNow: flags&128 != 0})
		now := began
		finished, heads, bodies, forgotten, parting := 0, 0, 0, false, false
		for _, c := range story[1:] {
			e := Event{Kind: Kind(c&0x0f) % (Panicked + 1), Choice: Choice(c >> 4 & 3 % 3), Loss: Loss(c>>6) % 3, Reused: c&0x20 != 0,
				BodyFollows: c&0x10 != 0, Code: uint32(c >> 4), Status: 100 + int(c>>6)}
			if c&0x80 != 0 {
				now = now.Add(7 * time.Second)
			}
			if m.State() == Parting && c&1 != 0 {
				e.Kind = UpstreamEnded
			}
			if c == 0x3f {
				m.ForgetBody()
				forgotten = true
				continue
			}
			e.At = now
			if e.Kind != Begin && e.Kind != Decided && c&8 != 0 {
				e.Err = errors.New("told")
			}
			before := m.State()
			do := m.Step(&e)
			if before == Over && do != 0 {
				t.Fatalf("%s after the end: %s", e.Kind, do)
			}
			if do.Has(Rewind) && (forgotten || !m.Replayable()) {
				t.Fatalf("%s in %s sends a body again that is not whole: %s", e.Kind, before, do)
			}
			if do.Has(Rewind) {
				bodies = 0
			}
			if do.Has(SendBody) {
				if bodies++; bodies > 1 {
					t.Fatalf("%s in %s sends the body twice: %s", e.Kind, before, do)
				}
			}
			if do.Has(PassHead|PassSwitch|Answer) && !(do.Has(PassSwitch) && heads == 0) {
				if heads++; heads > 1 {
					t.Fatalf("%s in %s answers a second time: %s", e.Kind, before, do)
				}
			}
			if do.Has(Finish) {
				finished++
			}
			if before == Parting && do != 0 && do != Drop|Finish {
				t.Fatalf("%s after the client had its end: %s", e.Kind, do)
			}
			if do.Has(SeeOut) {
				if parting = true; flags&1 != 0 || finished > 0 {
					t.Fatalf("%s in %s waits for an upstream: %s", e.Kind, before, do)
				}
			}
			if parting != (m.State() == Parting || finished > 0 && parting) {
				t.Fatalf("%s in %s: parting ended in %s", e.Kind, before, m.State())
			}
			if (m.State() == Over) != (finished == 1) || finished > 1 {
				t.Fatalf("%s in %s: over %v, told %d times", e.Kind, before, m.State() == Over, finished)
			}
			if do.Has(Ask) != (m.Asking() && before != m.State()) {
				t.Fatalf("%s in %s asks: %s, now %s", e.Kind, before, do, m.State())
			}
			if do.Has(EndTrailer) && before != Relaying {
				t.Fatalf("%s in %s ends a response that has not begun", e.Kind, before)
			}
		}
	})
}
