package bind

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/golden"
)

var (
	began   = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	errTold = errors.New("told")
)

// A scenario is one request's story. Each line is an event, with what the machine does and the
// state that it is in then, the end of its wait or its answer: `no-slot cold page=2s -> wait;
// waiting until 2s`.
func TestScenarios(t *testing.T) {
	golden.Each(t, "testdata/*.scenario", func(t *testing.T, file, text string) {
		var m Machine
		golden.File(t, file, golden.Lines(t, text, func(words []string) (string, error) {
			e, err := parseEvent(words)
			if err != nil {
				return "", err
			}
			outcome := fmt.Sprintf("%s; %s", cmp.Or(m.Step(&e).String(), "nothing"), m.State())
			if d := m.Deadline(); m.State() == Waiting && !d.IsZero() {
				outcome += fmt.Sprintf(" until %s", d.Sub(began))
			}
			if m.State() == Answered {
				outcome += fmt.Sprintf(" (%s)", m.Answer())
			}
			return outcome, nil
		}))
	})
}

// parseEvent reads an event such as "no-slot cold page=2s".
func parseEvent(words []string) (Event, error) {
	kind := slices.Index(kindNames[:], words[0])
	if kind < 0 {
		return Event{}, fmt.Errorf("there is no event %q", words[0])
	}
	e := Event{Kind: Kind(kind), At: began, Err: errTold}
	for _, word := range words[1:] {
		name, value, timed := strings.Cut(word, "=")
		after, err := time.ParseDuration(value)
		switch {
		case timed && err != nil:
			return e, err
		case name == "at":
			e.At = began.Add(after)
		case name == "page":
			e.Patience.Pages, e.Patience.PageAfter = true, after
		case name == "fallback":
			e.Patience.FallsBack, e.Patience.FallbackAfter = true, after
		case name == "max-wait":
			e.Patience.MaxWait = after
		case name == "cold":
			e.Cold = true
		case name == "own":
			e.Own = true
		case name == "untrusted":
			e.Untrusted = true
		case name == "final":
			e.Final = true
		default:
			return e, fmt.Errorf("%q says nothing of an event", word)
		}
	}
	return e, nil
}

// story brings a machine into a state.
var story = map[State][]Kind{
	New:         {},
	Trying:      {Begin},
	Waiting:     {Begin, NoSlot},
	FallingBack: {Begin, NoSlot, CannotStart},
	Bound:       {Begin, Slot},
	Answered:    {Unwanted},
	Over:        {Done},
}

func in(t testing.TB, s State) *Machine {
	t.Helper()
	m := &Machine{}
	for _, kind := range story[s] {
		m.Step(&Event{Kind: kind, At: began, Cold: true, Patience: Patience{FallsBack: true, FallbackAfter: time.Second}})
	}
	if m.State() != s {
		t.Fatalf("the story of %s ends in %s", s, m.State())
	}
	return m
}

// The states to which each event leads, from each state: the table in the package comment. An event
// that is missing does nothing.
func TestTransitions(t *testing.T) {
	table := map[State]map[Kind]State{
		New:    {Begin: Trying, Unwanted: Answered, Full: Answered, Stopped: Answered},
		Trying: {Slot: Bound, NoSlot: Waiting},
		Waiting: {Slot: Bound, Full: Answered, CannotStart: FallingBack, Deleted: Answered, Stopped: Answered,
			Tick: FallingBack},
		FallingBack: {FellBack: Trying, NoFallback: Answered},
		Bound:       {Responded: Bound, Refused: Trying, Misdirected: Trying, DialFailed: Trying},
		Answered:    {},
		Over:        {},
	}
	for from, row := range table {
		for kind := Begin; kind <= Done; kind++ {
			m := in(t, from)
			want, expected := row[kind]
			switch {
			case kind == Done:
				want = Over
			case !expected:
				want = from
			}
			do := m.Step(&Event{Kind: kind, At: began.Add(time.Minute), Cold: true, Err: errTold})
			if m.State() != want || !expected && kind != Done && do != 0 {
				t.Errorf("%s in %s leads to %s (%s), want %s", kind, from, m.State(), do, want)
			}
		}
	}
}

// The status and Retry-After of each answer: the table above the answers. Metrics have their names.
func TestAnswers(t *testing.T) {
	var got strings.Builder
	for a := NoAnswer; a < Answers; a++ {
		fmt.Fprintln(&got, a, a.Status(), a.RetryAfter())
	}
	const want = `none 0 0
page 0 0
not_woken 0 0
budget 503 1
max_waiting 503 1
max_wait 503 5
cannot_start 503 5
no_fallback 503 5
deleted 404 0
untrusted 502 0
stopped 503 1
`
	if got.String() != want {
		t.Errorf("got\n%s", got.String())
	}
}

// model watches a machine to which anything happens.
type model struct {
	machine  Machine
	now      time.Time
	since    time.Time // the request came, or fell back
	slots    int       // that the request has
	replies  int
	fellBack int
	met      bool     // a pod of the revision has answered
	strange  int      // pods whose certificate was not believed
	patience Patience // of the last wait
	cold     bool     // at the last wait
}

// what are the effects of which there is one in each state, besides Answered and Over.
const what = Try | Wait | FallBack | Send | Reply

// tell gives the machine an event and returns which promise it breaks.
func (m *model) tell(e *Event) error {
	before, deadline := m.machine.State(), m.machine.Deadline()
	do := m.machine.Step(e)
	after := m.machine.State()
	if expected[e.Kind]&(1<<before) == 0 {
		if do != 0 || after != before {
			return errors.New("it was not expected, and did something")
		}
		return nil
	}
	switch e.Kind {
	case Begin, FellBack:
		m.since = e.At
	case NoSlot:
		m.patience, m.cold = e.Patience, e.Cold
	case Responded, Refused:
		m.met = true
	case DialFailed:
		if e.Untrusted {
			m.strange++
		}
	}
	if do.Has(Send) {
		m.slots++
	}
	m.slots -= bits.OnesCount16(uint16(do & (SlotRefused | SlotFailed | SlotDone)))
	if do.Has(Reply) {
		m.replies++
	}
	if do.Has(FallBack) {
		m.fellBack++
	}
	waited := e.At.Sub(m.since)
	effect := map[State]Do{Trying: Try, Waiting: Wait, FallingBack: FallBack, Bound: Send, Answered: Reply}[after]
	switch a := m.machine.Answer(); {
	case do&what != effect && !(after == Bound && before == Bound && do&what == 0):
		return fmt.Errorf("in %s the shell is told to %q", after, do&what)
	case (m.slots == 1) != (after == Bound) || m.slots < 0 || m.slots > 1:
		return fmt.Errorf("the request has %d slots", m.slots)
	case (m.replies == 1) != (a != NoAnswer) || m.replies > 1:
		return fmt.Errorf("%d replies, the answer is %s", m.replies, a)
	case do.Has(Reply) && (a == AnswerDeleted || a == AnswerUntrusted) && m.machine.Err() == nil:
		return errors.New("an answer without a reason")
	case m.fellBack > 1:
		return errors.New("it falls back a second time")
	case do.Has(FallBack) && (m.met || !m.patience.FallsBack):
		return errors.New("a request that may not fall back does")
	case do.Has(FallBack) && e.Kind == Tick && (!m.cold || waited < m.patience.FallbackAfter):
		return fmt.Errorf("it falls back after %s", waited)
	case do.Has(Reply) && a == AnswerPage && (m.met || m.fellBack > 0 || !m.cold || !m.patience.Pages || waited < m.patience.PageAfter):
		return fmt.Errorf("the page comes after %s", waited)
	case do.Has(Reply) && a == AnswerMaxWait && (m.patience.MaxWait == 0 || waited < m.patience.MaxWait):
		return fmt.Errorf("it is rejected after %s", waited)
	case e.Kind == Tick && !deadline.IsZero() && !e.At.Before(deadline) && after == Waiting:
		return errors.New("it waits beyond its deadline")
	case (a == AnswerUntrusted) != (m.strange > maxUntrusted):
		return fmt.Errorf("%d pods were not believed, the answer is %s", m.strange, a)
	}
	return nil
}

// Whatever happens in whatever order: a slot that was taken is given back once, there is one
// answer, nothing follows the end, and page, fallback and rejection come when they may and not
// earlier.
func TestAnyOrderOfEvents(t *testing.T) {
	reached := [Answers]int{}
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 1))
		flip := func() bool { return random.IntN(2) == 0 }
		soon := func() time.Duration { return time.Duration(random.IntN(10)) * time.Second }
		m := model{now: began}
		var history []string
		for range 60 {
			m.now = m.now.Add(soon() / 2)
			kind := Kind(random.IntN(int(Done) + 1))
			for state := m.machine.State(); state != Over && random.IntN(20) > 0 && expected[kind]&(1<<state) == 0; { // most are expected
				kind = Kind(random.IntN(int(Done) + 1))
			}
			e := Event{Kind: kind, Cold: flip(), Own: flip(), Untrusted: flip(), Final: flip(), At: m.now, Err: errTold,
				Patience: Patience{Pages: flip(), PageAfter: soon(), FallsBack: flip(), FallbackAfter: soon(), MaxWait: soon()}}
			if e.Kind == Done && random.IntN(4) > 0 { // so that stories are long
				continue
			}
			history = append(history, e.Kind.String())
			if err := m.tell(&e); err != nil {
				t.Fatalf("seed %d: after %v: %v", seed, history, err)
			}
		}
		reached[m.machine.Answer()]++
	}
	for a, n := range reached {
		if n == 0 {
			t.Errorf("no story ends with the answer %s", Answer(a))
		}
	}
}

func TestStepsAllocateNothing(t *testing.T) {
	var m Machine
	if n := testing.AllocsPerRun(100, func() {
		m = Machine{}
		m.Step(&Event{Kind: Begin, At: began})
		m.Step(&Event{Kind: NoSlot, Cold: true, Patience: Patience{Pages: true, FallsBack: true, MaxWait: time.Minute}})
		m.Step(&Event{Kind: Slot})
		m.Step(&Event{Kind: Refused})
		m.Step(&Event{Kind: Slot})
		m.Step(&Event{Kind: Done})
	}); n != 0 {
		t.Errorf("a request's steps allocate %v times", n)
	}
}

func BenchmarkSteps(b *testing.B) {
	for b.Loop() {
		var m Machine
		m.Step(&Event{Kind: Begin, At: began})
		m.Step(&Event{Kind: Slot})
		m.Step(&Event{Kind: Responded})
		m.Step(&Event{Kind: Done})
	}
}
