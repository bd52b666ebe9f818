package judge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/golden"
)

var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// TestScenarios plays testdata/*.txt: blocks of commands, a line ----, and the decisions expected.
//
//	guard on                    a new rollout under this guard
//	change errors<5%            another guard in the middle of it
//	at 5s percent=10 old=90 new=10/1
//	                            what was seen until then: requests and, after the slash, errors
//	at 5s ... old@20ms=89 old@200ms=1 new@30ms=10
//	                            and how long they took
//	at 5s ... new#3=10/1        and of which drawer their senders were, besides those without one
//	at 5s ... preview           the new revision has no share yet, and new is of its tag
//	at 5s ... last              the next step gives the new revision everything
//	at 5s ... old-starts=70s new-starts=70s
//	                            and for how long the slowest pod has been starting
//	at 5s ... new-ready         and another one is ready
//	at 5s silent                nobody told
//	from 1s to 9s ...           the same each second; a decision is told when another word is said
func TestScenarios(t *testing.T) {
	seen := map[string]bool{}
	golden.Each(t, "testdata/*.txt", func(t *testing.T, file, text string) {
		var g Guard
		var s State
		golden.File(t, file, golden.Blocks(text, func(commands string) string { return play(t, commands, &g, &s, seen) }))
	})
	for _, rule := range []string{RuleOff, RuleFine, RuleErrors, RuleStarts, RuleRequests, RuleStep, RuleSilent, RuleSuspicion, RuleUncompared, RuleSender, RuleUnanswered, RulePreview, "p99"} {
		if !seen[rule] {
			t.Errorf("no scenario shows rule %s", rule)
		}
	}
}

func play(t *testing.T, commands string, g *Guard, s *State, seen map[string]bool) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if words[0] == "guard" || words[0] == "change" {
			var err error
			if words[0] == "guard" {
				*s = State{}
			}
			if *g, err = Parse(strings.Join(words[1:], " ")); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			continue
		}
		first, args := duration(t, words[1]), words[2:]
		last, each := first, ""
		if words[0] == "from" {
			last, args = duration(t, words[3]), words[4:]
		}
		in := Input{Told: true}
		for _, word := range args {
			see(t, &in, word)
		}
		for at := first; at <= last; at += time.Second {
			var d Decision
			d, *s = Decide(*g, *s, in, epoch.Add(at))
			seen[d.Rule] = true
			if word := d.Verdict.String() + d.Rule; word != each || at == last {
				fmt.Fprintf(&out, "%s: %s [%s] %s\n", at, d.Verdict, d.Rule, d.Reason())
				each = word
			}
		}
	}
	return out.String()
}

func see(t *testing.T, in *Input, word string) {
	t.Helper()
	key, value, _ := strings.Cut(word, "=")
	of, took, timed := strings.Cut(key, "@")
	of, drawer, sent := strings.Cut(of, "#")
	counts := map[string]*Counts{"old": &in.Old, "new": &in.New}[of]
	switch {
	case timed && counts != nil:
		for range whole(t, value) {
			counts.Latency.Add(duration(t, took))
		}
	case counts != nil:
		requests, errors, _ := strings.Cut(value, "/")
		tally := Tally{whole(t, requests), whole(t, errors)}
		counts.Tally.add(tally)
		if sent {
			counts.Senders[whole(t, drawer)].add(tally)
		}
	case key == "percent":
		in.Share = int(whole(t, value))
	case key == "preview":
		in.Preview = true
	case key == "last":
		in.Last = true
	case key == "least":
		in.Least = whole(t, value)
	case key == "silent":
		in.Told = false
	case key == "old-starts":
		in.OldStarts = duration(t, value)
	case key == "new-ready":
		in.NewReady = true
	case key == "new-starts":
		in.NewStarts = duration(t, value)
	default:
		t.Fatalf("unknown word %q", word)
	}
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func whole(t *testing.T, text string) uint64 {
	t.Helper()
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func text(t *testing.T, s State) []byte {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Whatever is seen in whatever order: a revision that goes back stays back, and goes only with
// evidence of three moments or a pod that does not start; it goes on only while somebody tells of
// it and little speaks against it; a state is not changed, and is the same for the next process.
func TestAnyOrderOfFigures(t *testing.T) {
	reached := map[string]int{}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 3))
		g, err := Parse([]string{"on", "errors<1%", "errors<0.01%, requests>50", "p99<2x, p50<1.4x", "starts<1s", "errors<50%, p90<3x, p99.9<100x, starts<1h"}[r.IntN(6)])
		if err != nil {
			t.Fatal(err)
		}
		var s State
		var heard, now time.Time
		now = epoch
		moments, back := 0, false
		some := func() uint64 {
			return []uint64{0, uint64(r.IntN(3)), uint64(r.IntN(50)), uint64(r.IntN(3000))}[r.IntN(4)]
		}
		counts := func() (c Counts) {
			c.Requests = some()
			c.Errors = some() * uint64(r.IntN(2)) // perhaps more than there are requests
			for range r.IntN(3) {
				c.Latency[r.IntN(len(c.Latency))] += uint32(some())
			}
			for range r.IntN(2) * r.IntN(4) {
				c.Senders[r.IntN(len(c.Senders))] = Tally{some(), some()}
			}
			return c
		}
		for range 40 {
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			if r.IntN(20) == 0 {
				now = now.Add(time.Duration(r.IntN(90)) * time.Second)
			}
			in := Input{Told: r.IntN(5) > 0, Share: 1 + r.IntN(3), Last: r.IntN(2) == 0, Least: uint64(r.IntN(2) * r.IntN(60)), Old: counts(), New: counts()}
			if r.IntN(30) == 0 {
				in.NewStarts, in.OldStarts = time.Duration(r.IntN(4))*time.Hour/2, time.Duration(r.IntN(4))*time.Hour/2
				in.NewReady = in.NewStarts == time.Hour
			}
			if heard.IsZero() || in.Told {
				heard = now
			}
			var slow uint64
			for _, n := range in.New.Latency {
				slow += uint64(n)
			}
			if in.Told && (in.New.Errors > 0 && in.New.Requests > 0 || slow > 0) {
				moments++
			}
			before := text(t, s)
			d, next := Decide(g, s, in, now)
			if !bytes.Equal(before, text(t, s)) {
				t.Fatalf("seed %d: the state is changed", seed)
			}
			var read State
			if err := json.Unmarshal(before, &read); err != nil {
				t.Fatal(err)
			}
			if again, _ := Decide(g, read, in, now); again != d {
				t.Fatalf("seed %d: the next process decides %+v, this one %+v", seed, again, d)
			}
			s = next
			reached[d.Verdict.String()+" "+d.Rule]++
			switch {
			case d.Reason() == "" || !(d.maxRate() >= 0 && d.maxRate() <= 1) || math.IsNaN(d.Evidence):
				t.Fatalf("seed %d: %+v", seed, d)
			case back && d.Verdict != GoBack:
				t.Fatalf("seed %d: it went back, and now %s", seed, d.Reason())
			case d.Verdict == GoBack && d.Rule != RuleStarts && moments < 3:
				t.Fatalf("seed %d: it goes back after %d moments: %s", seed, moments, d.Reason())
			case d.Verdict == GoBack && d.Rule != RuleStarts && d.Evidence < 1/FalseAlarms:
				t.Fatalf("seed %d: it goes back with evidence of %v", seed, d.Evidence)
			case d.Verdict == GoOn && (now.Sub(heard) >= silence || d.Evidence >= suspicion):
				t.Fatalf("seed %d: it goes on: %+v", seed, d)
			case d.Verdict == GoOn && in.Last && d.New.Requests < g.Requests:
				t.Fatalf("seed %d: it goes on after %d requests", seed, d.New.Requests)
			case d.Verdict == GoOn && next.Step.Requests < in.Least:
				t.Fatalf("seed %d: it goes on after %d requests with %d %%", seed, next.Step.Requests, in.Share)
			case d.Verdict == GoOn && g.tests() > 0 && next.Owed >= unanswered:
				t.Fatalf("seed %d: it goes on, and answers nothing: %+v", seed, next)
			case !in.Told && (d.New != read.New.Tally || d.Old != read.Old.Tally) && !back:
				t.Fatalf("seed %d: nobody told, and it counts", seed)
			}
			back = back || d.Verdict == GoBack
		}
	}
	for _, rule := range []string{"go on fine", "wait silent", "wait suspicion", "wait uncompared", "wait sender", "wait unanswered", "wait starts", "wait requests", "wait step", "go back errors", "go back starts", "go back p99", "go back p50"} {
		if reached[rule] < 3 {
			t.Errorf("%q was reached %d times: %v", rule, reached[rule], reached)
		}
	}
}

func TestAFactorBetweenTwoBucketsCountsAsTheLarger(t *testing.T) {
	for factor, want := range map[float64]int{1.4: 1, 1.5: 2, 2: 2, 2.1: 3, 2.8: 3, 3: 4, 4: 4, 100: 14} {
		if got := buckets(factor); got != want {
			t.Errorf("%vx is worth %d buckets, want %d", factor, got, want)
		}
	}
}

// What both revisions suffer from speaks against neither, be it as bad as it may.
func TestWhatBothSufferFromConvictsNobody(t *testing.T) {
	g, _ := Parse("on")
	back := 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 4))
		var s State
		now := epoch
		for range 120 {
			now = now.Add(time.Second)
			in := Input{Told: true, Share: 10}
			outage := r.IntN(10) == 0
			for range 50 {
				c, took := &in.Old, 20*time.Millisecond
				if r.IntN(10) == 0 {
					c = &in.New
				}
				c.Requests++
				if outage && r.IntN(3) > 0 {
					c.Errors++
					took = 5 * time.Second
				}
				c.Latency.Add(took)
			}
			var d Decision
			if d, s = Decide(g, s, in, now); d.Verdict == GoBack {
				back++
				break
			}
		}
	}
	if back > 1 {
		t.Errorf("%d of 100 rollouts went back for what both revisions failed", back)
	}
}
