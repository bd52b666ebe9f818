package judge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/wire"
)

// figuresOf reads figures such as "a=1:90/2 2:80/0": in the second that ended at 1, revision a
// answered 90 requests, and failed 2 more.
func figuresOf(t *testing.T, revisions ...string) (all []Figures) {
	t.Helper()
	for _, text := range revisions {
		name, seconds, _ := strings.Cut(text, "=")
		f := Figures{Name: name}
		for _, word := range strings.Fields(seconds) {
			var at int64
			var good, failed uint64
			if _, err := fmt.Sscanf(word, "%d:%d/%d", &at, &good, &failed); err != nil {
				t.Fatalf("%q: %v", word, err)
			}
			s := Second{At: time.Unix(at, 0), Counts: Counts{Tally: Tally{Requests: good + failed, Errors: failed}}}
			s.Latency[10] = uint32(good)
			f.Seconds = append(f.Seconds, s)
		}
		all = append(all, f)
	}
	return all
}

func TestEachSecondIsJudgedOnceAndOfAllRevisions(t *testing.T) {
	one := Trial{Record: Record{Revision: "d", Until: time.Unix(1, 0)}}
	show := func(all []Input, cannot string) string {
		if cannot != "" {
			return cannot
		}
		var out []string
		for _, in := range all {
			out = append(out, fmt.Sprintf("%v %d%%: %d/%d and %d/%d, %d and %d timed", in.Told, in.Share, in.Old.Requests, in.Old.Errors, in.New.Requests, in.New.Errors,
				in.Old.Latency[10], in.New.Latency[10]))
		}
		return strings.Join(out, "; ")
	}
	for _, row := range []struct {
		behaviour string
		a, b, d   string
		want      string
	}{
		{"what came before the rollout is not counted", "a=1:90/5 2:60/0", "b=2:30/1", "d=1:9/9 2:10/2", "true 10%: 91/1 and 12/2, 90 and 10 timed"},
		{"nor what was counted", "a=2:60/0", "b=2:30/1", "d=2:10/2", ""},
		{"nor what not all have told", "a=3:1/0 4:1/0", "b=3:2/0", "d=3:4/1 4:100/100", "true 10%: 3/0 and 5/1, 3 and 4 timed"},
		{"that is counted later", "a=4:1/0 5:1/0", "b=5:2/0", "d=3:4/1 4:100/100 5:1/0", "true 10%: 4/0 and 201/100, 4 and 101 timed"},
		{"each second by itself", "a=6:1/0 7:5/1", "b=6:1/0 7:2/0", "d=6:1/0 7:3/1",
			"true 10%: 2/0 and 1/0, 2 and 1 timed; true 10%: 8/1 and 4/1, 7 and 3 timed"},
		{"a revision that has told nothing yet", "a=9:1/0", "b", "d=9:1/0", ""},
	} {
		if got := show(one.count(figuresOf(t, row.a, row.b, row.d), 10)); got != row.want {
			t.Errorf("%s: %s, want %s", row.behaviour, got, row.want)
		}
	}
	told := figuresOf(t, "a", "b=9:1/0", "d=9:1/0")
	told[0].Uncounted = true
	if got := show(one.count(told, 10)); !strings.Contains(got, "the pods of a are of a version of Ebb that does not count") {
		t.Errorf("pods that do not count: %s", got)
	}
	told = figuresOf(t, "a=10:1/0", "b=10:1/0", "d=10:1/0")
	told[0].Starts, told[1].Starts, told[2].Starts = 3*time.Second, 5*time.Second, 70*time.Second
	if all, _ := one.count(told, 10); len(all) != 1 || all[0].OldStarts != 5*time.Second || all[0].NewStarts != 70*time.Second || all[0].NewReady {
		t.Errorf("pods start: %+v", all)
	}
	for ready, want := range []bool{false, false, true} {
		told = figuresOf(t, "a=11:1/0", "b=11:1/0", "d=11:1/0")
		told[ready].Ready, one.Until = true, time.Unix(10, 0)
		if all, _ := one.count(told, 10); len(all) != 1 || all[0].NewReady != want {
			t.Errorf("a pod of %s is ready: %+v", told[ready].Name, all)
		}
	}
}

// Senders of all older revisions are counted together.
func TestSendersAreCountedByDrawer(t *testing.T) {
	told := figuresOf(t, "a=2:60/0", "b=2:30/1", "d=2:10/2")
	told[0].Seconds[0].Senders[1] = Tally{Requests: 5}
	told[1].Seconds[0].Senders[1] = Tally{Requests: 4, Errors: 1}
	told[2].Seconds[0].Senders = [wire.SenderDrawers]Tally{{Requests: 1}, {Requests: 2, Errors: 2}}
	one := Trial{Record: Record{Revision: "d", Until: time.Unix(1, 0)}}
	all, _ := one.count(told, 10)
	if len(all) != 1 {
		t.Fatalf("got %+v", all)
	}
	if want := [wire.SenderDrawers]Tally{1: {Requests: 9, Errors: 1}}; all[0].Old.Senders != want {
		t.Errorf("of the old ones: %v", all[0].Old.Senders)
	}
	if want := told[2].Seconds[0].Senders; all[0].New.Senders != want {
		t.Errorf("of the new one: %v", all[0].New.Senders)
	}
}

// What a process that stopped has recorded is all that the next one knows.
func TestATrialResumesFromItsRecord(t *testing.T) {
	begun, now := time.Unix(1, 0), time.Unix(9, 0)
	g, err := Parse("errors<1%")
	if err != nil {
		t.Fatal(err)
	}
	one, found := Resume("b", nil, begun).Look(g, Sight{Share: 10, Heard: true, Figures: figuresOf(t, "a=2:90/0", "b=2:10/0")}, begun.Add(time.Second))
	if !found.Write || found.Back || one.Held {
		t.Fatalf("found %+v", found)
	}
	next := Resume("b", one.Encode(), now)
	if !next.Until.Equal(time.Unix(2, 0)) || next.State.New.Requests != one.State.New.Requests || next.Reason != found.Reason {
		t.Errorf("it goes on from %+v", next.Record)
	}
	for record, revision := range map[string]string{string(one.Encode()): "d", "": "b", "{": "b"} {
		if next := Resume(revision, []byte(record), now); next.Revision != revision || !next.Until.Equal(now) || next.State.New.Requests != 0 {
			t.Errorf("from %q: %+v", record, next.Record)
		}
	}
}

// A trial is a value: who looks twice at the same one finds the same.
func TestALookChangesNoTrialButItsOwn(t *testing.T) {
	g, err := Parse("errors<1%, p99<2x")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1, 0)
	one := Resume("b", nil, at)
	for i := int64(2); i < 12; i++ {
		at = at.Add(time.Second)
		s := Sight{Share: 10, Heard: true, Figures: figuresOf(t, fmt.Sprintf("a=%d:90/0", i), fmt.Sprintf("b=%d:5/5", i)), Recorded: i > 2, Held: one.Held}
		before := string(one.Encode())
		next, found := one.Look(g, s, at)
		again, foundAgain := one.Look(g, s, at)
		if string(one.Encode()) != before || string(next.Encode()) != string(again.Encode()) || found != foundAgain {
			t.Fatalf("at %d: %+v, then %+v", i, found, foundAgain)
		}
		one = next
	}
	if one.State.Back == nil {
		t.Errorf("half of its requests fail, and it is not back: %s", one.Reason)
	}
}
