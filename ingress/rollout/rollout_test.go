package rollout

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func want(percent int64, revision string) State {
	return State{[]Configuration{{Name: "c", Percent: percent, Revisions: []Share{{revision, percent}}}}}
}

func show(s State) string {
	var out []string
	for _, r := range s.Configurations[0].Revisions {
		out = append(out, fmt.Sprintf("%s=%d", r.Revision, r.Percent))
	}
	return strings.Join(out, " ")
}

func TestARolloutGoesInSteps(t *testing.T) {
	const duration = 100 * time.Second
	now := zero
	s, again := Advance(State{}, want(100, "a"), duration, now)
	if show(s) != "a=100" || again != 0 {
		t.Fatalf("a target without a past: %s, again %v", show(s), again)
	}
	s, again = Advance(s, want(100, "b"), duration, now)
	if show(s) != "a=99 b=1" || again != 0 || !s.InProgress() {
		t.Fatalf("begin: %s, again %v", show(s), again)
	}
	now = now.Add(9500 * time.Millisecond) // until the gateways followed: steps are 10 s at least
	s, changed := Observe(s, duration, now)
	if step := s.Configurations[0].Step; !changed || step.Size != 11 || time.Duration(step.Duration) != 10*time.Second {
		t.Fatalf("pace: %+v", step)
	}
	if again, _ := Observe(s, duration, now.Add(time.Hour)); again.String() != s.String() {
		t.Error("the pace is set once")
	}
	var seen []string
	for range 20 {
		var wait time.Duration
		s, wait = Advance(Parse(s.String()), want(100, "b"), duration, now)
		seen = append(seen, show(s))
		if !s.InProgress() {
			break
		}
		now = now.Add(wait)
	}
	got := strings.Join(seen, ", ")
	if !strings.HasPrefix(got, "a=99 b=1, a=88 b=12, a=77 b=23") || !strings.HasSuffix(got, "a=11 b=89, b=100") && !strings.HasSuffix(got, ", b=100") {
		t.Errorf("steps: %s", got)
	}
	if took := now.Sub(zero); took > duration+20*time.Second || took < 80*time.Second {
		t.Errorf("it took %v of %v", took, duration)
	}
}

func TestWhatChangesOnTheWay(t *testing.T) {
	half := State{[]Configuration{{Name: "c", Percent: 100, Revisions: []Share{{"a", 60}, {"b", 40}}, Step: Step{Start: 1, Next: 1 << 62, Duration: 1, Size: 10}}}}
	for _, row := range []struct {
		behaviour string
		want      State
		duration  time.Duration
		result    string
	}{
		{"a newer revision takes one percent of the newest", want(100, "d"), time.Minute, "a=60 b=39 d=1"},
		{"an older one to which the user returns has all at once", want(100, "a"), time.Minute, "a=100"},
		{"more goes to the newest", State{[]Configuration{{Name: "c", Percent: 100, Revisions: []Share{{"b", 100}}}}}, time.Minute, "a=60 b=40"},
		{"less is taken from the oldest", want(30, "b"), time.Minute, "b=30"},
		{"less, not all", want(70, "b"), time.Minute, "a=30 b=40"},
		{"no duration switches at once", want(100, "b"), 0, "b=100"},
		{"one percent switches at once", want(1, "b"), time.Minute, "b=1"},
	} {
		s, _ := Advance(half, row.want, row.duration, zero)
		if show(s) != row.result {
			t.Errorf("%s: got %s, want %s", row.behaviour, show(s), row.result)
		}
	}
}

// Who names a revision has it at once, in the middle of a rollout, too. What follows comes after.
func TestANamedRevisionIsWhatTheNextOneComesAfter(t *testing.T) {
	named := want(100, "a")
	named.Configurations[0].Named = true
	half := State{[]Configuration{{Name: "c", Percent: 100, Revisions: []Share{{"a", 60}, {"b", 40}}, Judge: Judge{Held: true, Judged: []byte("1")},
		Step: Step{Start: 1, Next: 1, Duration: 1, Size: 10}}}}
	s, again := Advance(half, named, time.Minute, zero)
	if c := s.Configurations[0]; show(s) != "a=100" || again != 0 || c.Held || c.Judged != nil || c.Step != (Step{}) {
		t.Fatalf("named: %s, again %v", s, again)
	}
	for _, row := range []struct {
		behaviour string
		want      State
		result    string
	}{
		{"the latest one", want(100, "d"), "a=99 d=1"},
		{"a part of it", want(60, "d"), "a=59 d=1"},
		{"the same one", want(100, "a"), "a=100"},
	} {
		if next, _ := Advance(Parse(s.String()), row.want, time.Minute, zero); show(next) != row.result {
			t.Errorf("%s: %s, want %s", row.behaviour, show(next), row.result)
		}
	}
}

// Who returns to a revision on the way ends the newer ones. What is older goes on to it in steps.
func TestAReturnToARevisionOnTheWay(t *testing.T) {
	three := State{[]Configuration{{Name: "c", Percent: 100, Revisions: []Share{{"a", 30}, {"b", 60}, {"d", 10}}, Judge: Judge{Held: true, Judged: []byte("1")},
		Step: Step{Start: 1, Next: 1, Duration: 1, Size: 10}}}}
	s, _ := Advance(three, want(100, "b"), time.Minute, zero)
	if c := s.Configurations[0]; show(s) != "a=30 b=70" || c.Held || c.Judged != nil || show(three) != "a=30 b=60 d=10" {
		t.Fatalf("%s", s)
	}
	s, paced := Observe(s, time.Minute, zero.Add(time.Second))
	if !paced {
		t.Fatalf("it has no pace: %s", s)
	}
	if s, _ = Advance(s, want(100, "b"), time.Minute, zero.Add(time.Hour)); show(s) == "a=30 b=70" {
		t.Errorf("it stands still: %s", s)
	}
}

func TestAHeldRolloutStandsStill(t *testing.T) {
	half := State{[]Configuration{{Name: "c", Percent: 100, Revisions: []Share{{"a", 60}, {"b", 40}},
		Judge: Judge{Held: true, Judged: []byte(`{"heard":1}`)}, Step: Step{Start: 1, Next: zero.UnixNano(), Duration: int64(time.Second), Size: 30}}}}
	if half.Configurations[0].LastStep() {
		t.Error("60 more are not the last step")
	}
	if !half.Held() || want(100, "a").Held() {
		t.Error("only one of them is held")
	}
	s, again := Advance(Parse(half.String()), want(100, "b"), time.Minute, zero.Add(time.Hour))
	if show(s) != "a=60 b=40" || again != 0 || s.String() != half.String() {
		t.Errorf("%s, again %v: %s", show(s), again, s)
	}
	s.Configurations[0].Held = false
	s, again = Advance(s, want(100, "b"), time.Minute, zero.Add(time.Hour))
	if show(s) != "a=30 b=70" || again != time.Second || s.Configurations[0].Judged == nil || !s.Configurations[0].LastStep() {
		t.Errorf("let go: %s, again %v: %s", show(s), again, s)
	}
	over, _ := Advance(s, want(100, "b"), time.Minute, zero.Add(2*time.Hour))
	if show(over) != "b=100" || over.Configurations[0].Judged != nil {
		t.Errorf("over: %s", over)
	}
	s.Configurations[0].Held = true
	if s, _ = Advance(s, want(100, "d"), time.Minute, zero.Add(2*time.Hour)); show(s) != "a=30 b=69 d=1" || s.Configurations[0].Held || s.Configurations[0].Judged != nil {
		t.Errorf("a newer revision begins anew: %s", s)
	}
}

// Nobody judges a revision any further that is not the newest. So one that was held for what speaks
// against it has no share beside a newer one: the last one that was good has it back.
func TestASuspectHasNoShareBesideANewerRevision(t *testing.T) {
	suspect := State{[]Configuration{{Name: "c", Percent: 100, Revisions: []Share{{"a", 30}, {"b", 20}, {"d", 50}}, Judge: Judge{Held: true, Suspect: true, Judged: []byte("1")},
		Step: Step{Start: 1, Next: 1, Duration: 1, Size: 10}}}}
	preview := want(100, "e")
	preview.Configurations[0].Stages = []Stage{{0, time.Minute, 0}}
	for _, row := range []struct {
		behaviour string
		want      State
		result    string
	}{
		{"it stands still", want(100, "d"), "a=30 b=20 d=50"},
		{"a newer one", want(100, "e"), "a=30 b=69 e=1"},
		{"a newer one, as a preview", preview, "a=30 b=70 e=0"},
		{"a newer one of a smaller target", want(40, "e"), "b=39 e=1"},
		{"a return to the one before", want(100, "b"), "a=30 b=70"},
	} {
		s, _ := Advance(Parse(suspect.String()), row.want, time.Minute, zero)
		if c := s.Configurations[0]; show(s) != row.result || c.Suspect != (show(s) == show(suspect)) {
			t.Errorf("%s: %s, want %s", row.behaviour, s, row.result)
		}
	}
	if show(suspect) != "a=30 b=20 d=50" {
		t.Errorf("what was before is now %s", suspect)
	}
}

func TestARolloutInStages(t *testing.T) {
	goal := func(percent int64) State {
		w := want(percent, "b")
		w.Configurations[0].Stages = []Stage{{1, time.Minute, 0}, {10, time.Hour, 7}, {50, 2 * time.Minute, 0}}
		return w
	}
	for _, row := range []struct {
		percent int64
		want    string
	}{
		{100, "0s a=99 b=1, 1m0s a=90 b=10, 1h1m0s a=50 b=50, 1h3m0s b=100"},
		{60, "0s a=59 b=1, 1m0s a=54 b=6, 1h1m0s a=30 b=30, 1h3m0s b=60"},
		{5, "0s a=4 b=1, 1h0m0s a=3 b=2, 1h2m0s b=5"}, // 1 % and 10 % of 5 are the first percent
	} {
		before := want(row.percent, "a")
		s, _ := Advance(before, goal(row.percent), time.Hour, zero)
		s, _ = Observe(s, time.Hour, zero)
		now := zero
		seen := []string{"0s " + show(s)}
		for s.InProgress() && len(seen) < 10 {
			var again time.Duration
			s, again = Advance(Parse(s.String()), goal(row.percent), time.Hour, now)
			if text := show(s); !strings.HasSuffix(seen[len(seen)-1], " "+text) {
				seen = append(seen, now.Sub(zero).String()+" "+text)
			}
			now = now.Add(again)
		}
		if got := strings.Join(seen, ", "); got != row.want {
			t.Errorf("%d %%: %s, want %s", row.percent, got, row.want)
		}
	}
	// A first stage above the first percent comes as soon as the gateways follow.
	w := want(100, "b")
	w.Configurations[0].Stages = []Stage{{20, time.Minute, 0}}
	s, _ := Advance(want(100, "a"), w, time.Hour, zero)
	s, _ = Observe(s, time.Hour, zero)
	if s, again := Advance(s, w, time.Hour, zero); show(s) != "a=80 b=20" || again != time.Minute {
		t.Errorf("%s, again %v", show(s), again)
	}
}

// Time ends in 2262 here. A step that is to last until then and longer must not come at once.
func TestAStepOfCenturiesIsNotDue(t *testing.T) {
	const forever = time.Duration(math.MaxInt64)
	for behaviour, w := range map[string]State{"a stage": want(100, "b"), "the even pace": want(2, "b")} {
		percent := w.Configurations[0].Percent
		if percent == 100 {
			w.Configurations[0].Stages = []Stage{{1, forever, 0}, {50, 0, 0}}
		}
		s, _ := Advance(want(percent, "a"), w, forever, zero)
		s, _ = Observe(s, forever, zero)
		first := show(s)
		if s, again := Advance(s, w, forever, zero.Add(time.Hour)); show(s) != first || again < 200*365*24*time.Hour {
			t.Errorf("%s: %s, again %v, want %s", behaviour, show(s), again, first)
		}
	}
}

// A first stage of 0 % keeps the newest revision out of the split until it is due, and no judge
// holds it.
func TestAPreviewHasNoShare(t *testing.T) {
	goal := func(percent int64, revision string) State {
		w := want(percent, revision)
		w.Configurations[0].Stages = []Stage{{0, time.Minute, 5}, {1, time.Minute, 0}, {50, time.Minute, 0}}
		return w
	}
	begun, again := Advance(want(60, "a"), goal(60, "b"), time.Hour, zero)
	if show(begun) != "a=60 b=0" || again != 0 || !begun.InProgress() {
		t.Fatalf("%s, again %v", show(begun), again)
	}
	begun, _ = Observe(begun, time.Hour, zero)
	if c := begun.Configurations[0]; c.LastStep() || c.Step.Size != 1 {
		t.Fatalf("once the gateways follow: %s", begun)
	}
	for _, row := range []struct {
		behaviour string
		goal      State
		want      string
	}{
		{"it goes on", goal(60, "b"), "a=60 b=0"},
		{"a newer revision is a preview, too", goal(60, "d"), "a=60 d=0"},
		{"a newer one, without a preview", want(60, "d"), "a=59 d=1"},
		{"more requests are not for it", goal(100, "b"), "a=100 b=0"},
		{"nor does it lose any", goal(30, "b"), "a=30 b=0"},
	} {
		if s, _ := Advance(begun, row.goal, time.Hour, zero); show(s) != row.want {
			t.Errorf("%s: %s, want %s", row.behaviour, show(s), row.want)
		}
	}
	if back := GiveBack(begun, func(revision string) bool { return revision == "b" }); show(back) != "a=60" || back.InProgress() {
		t.Errorf("it went back: %s", back)
	}
	many := State{[]Configuration{{Name: "c", Percent: 80, Step: Step{Start: 1, Next: 1 << 62, Duration: 1, Size: 1}}}}
	for i := range 8 {
		many.Configurations[0].Revisions = append(many.Configurations[0].Revisions, Share{fmt.Sprint(i), 10})
	}
	if s, _ := Advance(many, goal(80, "b"), time.Hour, zero); show(s) != "0=10 2=10 3=10 4=10 5=10 6=10 7=20 b=0" {
		t.Errorf("beside many: %s", show(s))
	}
	held := Parse(begun.String())
	held.Configurations[0].Held = true
	if s, again := Advance(held, goal(60, "b"), time.Hour, zero.Add(time.Hour)); show(s) != "a=60 b=0" || again != 0 {
		t.Errorf("it is held: %s, again %v", show(s), again)
	}
	if s, _ := Advance(begun, want(60, "b"), time.Hour, zero.Add(time.Minute)); show(s) != "a=59 b=1" {
		t.Errorf("the steps are taken away: %s", show(s))
	}
	s, now, seen := begun, zero, ""
	for range 4 {
		s, again = Advance(Parse(s.String()), goal(60, "b"), time.Hour, now)
		seen += show(s) + ", "
		now = now.Add(again)
	}
	if want := "a=60 b=0, a=59 b=1, a=30 b=30, b=60, "; seen != want || now.Sub(zero) != 3*time.Minute {
		t.Errorf("%s in %v, want %s", seen, now.Sub(zero), want)
	}
}

func TestWhatWentBackHasNoShare(t *testing.T) {
	shares := []Share{{"a", 20}, {"b", 30}, {"d", 49}, {"e", 1}}
	for _, row := range []struct{ back, want string }{
		{"e", "a=20 b=30 d=50"},
		{"de", "a=20 b=80"},
		{"b", "a=50 d=49 e=1"},
		{"ae", "b=50 d=50"},
		{"bde", "a=100"},
		{"", "a=20 b=30 d=49 e=1"},
		{"abde", "none"},
	} {
		before := State{[]Configuration{{Name: "c", Percent: 100, Revisions: shares, Judge: Judge{Held: true, Suspect: true, Judged: []byte("1")}, Step: Step{Start: 1, Next: 1, Duration: 1, Size: 10}}}}
		after := GiveBack(before, func(revision string) bool { return strings.Contains(row.back, revision) })
		got := "none"
		if len(after.Configurations) > 0 {
			got = show(after)
			c := after.Configurations[0]
			if judged := c.Revisions[len(c.Revisions)-1].Revision == "e"; c.Held != judged || c.Suspect != judged || (c.Judged != nil) != judged {
				t.Errorf("%q went back, and the judge remembers: %s", row.back, after)
			}
			if len(c.Revisions) == 1 && c.Step != (Step{}) {
				t.Errorf("%q went back, and steps are left: %s", row.back, after)
			}
		}
		if got != row.want || show(before) != "a=20 b=30 d=49 e=1" {
			t.Errorf("%q went back: %s, want %s", row.back, got, row.want)
		}
	}
	// The goal is the one before, which has all at once.
	begun, _ := Advance(want(100, "a"), want(100, "b"), time.Minute, zero)
	s, again := Advance(GiveBack(begun, func(r string) bool { return r == "b" }), want(100, "a"), time.Minute, zero)
	if show(s) != "a=100" || again != 0 || s.InProgress() {
		t.Errorf("back: %s, again %v", show(s), again)
	}
}

func TestRevisionsThatComeFasterThanStepsStayFew(t *testing.T) {
	var many []Share
	for i := range 12 {
		many = append(many, Share{string(rune('a' + i)), 8})
	}
	many[0].Percent = 12
	s, _ := Advance(State{[]Configuration{{Name: "c", Percent: 100, Revisions: many, Step: Step{Start: 1, Next: 1 << 62, Duration: 1, Size: 1}}}},
		want(100, "z"), time.Hour, zero)
	if got, wants := show(s), "a=12 g=8 h=8 i=8 j=8 k=8 l=7 z=41"; got != wants {
		t.Errorf("got %s, want %s", got, wants)
	}
}

func TestNonsenseIsIgnored(t *testing.T) {
	for _, text := range []string{"", "{", `{"configurations":[{"percent":100,"revisions":[{"percent":1}]}]}`,
		`{"configurations":[{"percent":101,"revisions":[{"percent":101}]}]}`, `{"configurations":[{"percent":0}]}`,
		`{"configurations":[{"percent":5,"revisions":[{"percent":5}],"stepParams":{"stepSize":6}}]}`} {
		if s := Parse(text); len(s.Configurations) != 0 {
			t.Errorf("%q was taken for %v", text, s)
		}
	}
}

func FuzzAdvance(f *testing.F) {
	f.Add(`{"configurations":[{"configurationName":"c","percent":100,"revisions":[{"revisionName":"a","percent":60},{"revisionName":"b","percent":40}]}]}`, int64(50), "b", int64(5), false)
	f.Add(`{"configurations":[{"configurationName":"c","percent":100,"revisions":[{"revisionName":"a","percent":100},{"revisionName":"b","percent":0}]}]}`, int64(50), "b", int64(5), true)
	f.Fuzz(func(t *testing.T, text string, percent int64, revision string, seconds int64, preview bool) {
		if percent < 0 || percent > 100 || seconds < 0 || seconds > 1e6 {
			return
		}
		goal, before := want(percent, revision), Parse(text)
		if preview {
			goal.Configurations[0].Stages = []Stage{{0, time.Minute, 5}, {10, time.Minute, 0}}
		}
		s, _ := Advance(before, goal, time.Duration(seconds)*time.Second, zero)
		c := s.Configurations[0]
		if b, known := before.Find("c", ""); preview && known && len(c.Revisions) > 1 && !slices.ContainsFunc(b.Revisions, func(r Share) bool { return r.Revision == revision }) &&
			c.Revisions[len(c.Revisions)-1].Percent > 0 {
			t.Fatalf("a preview begins with a share: %s", s)
		}
		s, _ = Observe(s, time.Minute, zero.Add(time.Second))
		sum := int64(0)
		for _, r := range s.Configurations[0].Revisions {
			if r.Percent < 0 {
				t.Fatalf("%s", s)
			}
			sum += r.Percent
		}
		if n := len(s.Configurations[0].Revisions); n > maxRevisions {
			t.Fatalf("%d revisions in %s", n, s)
		}
		if sum != percent {
			t.Fatalf("%d %% became %s", percent, s)
		}
	})
}
