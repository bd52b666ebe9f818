package standby

import (
	"strings"
	"testing"
	"time"
)

func TestMessagesSurviveTheWire(t *testing.T) {
	for _, m := range []Message{
		{Verb: Hello, Number: Version},
		{Verb: Hello, Number: Version, Text: "0b5f3c0e-8f0e-4f6e-9a52-5a5b1d2d3c4f"},
		{Verb: Freeze, Number: 7, Level: Compressed, Expires: 12 * time.Hour},
		{Verb: Thaw, Number: 1<<64 - 1},
		{Verb: Froze, Number: 7, Level: Frozen},
		{Verb: Thawed, Number: 8},
		{Verb: Failed, Number: 9, Text: "freeze user-container: no such cgroup"},
	} {
		line := string(m.Append(nil))
		got, err := Parse(strings.TrimSuffix(line, "\n"))
		if err != nil || got != m {
			t.Errorf("%q became %+v, %v", line, got, err)
		}
	}
}

func TestMessagesThatAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"":                   "unknown message",
		"sleep 1":            "unknown message",
		"thaw":               "is not a number",
		"thaw -1":            "is not a number",
		"thaw 1 now":         "unexpected",
		"freeze 1 warm 5":    "needs no agent",
		"freeze 1 solid 5":   "is not one of warm, frozen, compressed",
		"freeze 1 frozen":    "is not a time since boot",
		"freeze 1 frozen -5": "is not a time since boot",
		"froze 1 frozen 5":   "unexpected",
		"hello 1 " + strings.Repeat("x", MaxLine): "longer than",
	} {
		if _, err := Parse(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", line, err, want)
		}
	}
}

// What is read is written as it was, or in one canonical form, and never longer than a line.
// An order that says that it is valid for ever would be carried out long after the pod took the
// containers for running.
func TestNoOrderIsValidForLong(t *testing.T) {
	a := Agent{}
	if work, _, ok := a.Receive(Message{Verb: Thaw, Number: 1}, time.Hour); work != ThawAll || !ok {
		t.Fatal(work, ok)
	}
	if _, _, ok := a.Receive(Message{Verb: Freeze, Number: 2, Level: Frozen, Expires: 1<<63 - 1}, time.Hour); !ok {
		t.Fatal("the order is refused")
	}
	work, answer := a.Done("", time.Hour+OrderTime+1)
	if work != Nothing || answer == nil || answer.Verb != Failed || a.Frozen {
		t.Errorf("the agent does %v and answers %+v", work, answer)
	}
}

func FuzzParse(f *testing.F) {
	for _, line := range []string{"hello 1", "hello 1 uid", "freeze 2 frozen 99", "thaw 3", "froze 2 compressed", "thawed 3", "failed 2 text with  blanks"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		m, err := Parse(line)
		if err != nil {
			return
		}
		out := m.Append(nil)
		if len(out) > MaxLine {
			t.Fatalf("%q is %d bytes", out, len(out))
		}
		again, err := Parse(strings.TrimSuffix(string(out), "\n"))
		if err != nil || again.Verb != m.Verb || again.Number != m.Number || again.Level != m.Level || again.Expires != m.Expires {
			t.Fatalf("%q became %q: %+v, %v", line, out, again, err)
		}
		if second := again.Append(nil); string(second) != string(out) {
			t.Fatalf("%q became %q", out, second)
		}
	})
}

// Whatever the other side sends, in any order, neither machine ends, and the pod keeps its promise:
// it holds requests back while the containers may be frozen.
func FuzzPeersThatLie(f *testing.F) {
	f.Add([]byte{0, 3, 5, 6, 9})
	f.Fuzz(func(t *testing.T, script []byte) {
		var pod Pod
		agent := Agent{Swap: true}
		for i := 0; i+2 < len(script); i += 3 {
			number := pod.Order.Number + uint64(script[i+1]%4) - 2
			m := Message{Verb: Verb(script[i+1] / 4 % 6), Number: number, Level: Level(script[i+2] % 3)}
			before := pod.State
			pod.Step(Event{Kind: Kind(script[i] % 10), Level: Level(script[i+2] % 3), Message: m, At: time.Duration(i)})
			if before == Asleep && !pod.Holds() {
				t.Fatalf("a pod that was asleep forwards at once after event %d", script[i]%10)
			}
			if _, _, ok := agent.Receive(m, time.Duration(i)); !ok {
				agent.Close(0)
			}
			if script[i+2]&8 != 0 {
				agent.Done("", 0)
			}
		}
	})
}
