package tick

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"ebb.dev/ebb/api/calls"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/routes"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/test/eventually"
)

type queues struct{ store *store.Store }

func (q queues) Admit(ctx context.Context, of call.Service) (int, error) {
	_, err := q.store.Queue(ctx, of)
	return 0, err
}
func (queues) Added(call.Service) {}

func parsed(t *testing.T, text string) []calls.Schedule {
	list, err := calls.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

var of = call.Service{Namespace: "ns", Name: "svc"}

func ticker(t *testing.T, kept *store.Store, schedules string) *Ticker {
	route := &routes.Route{Service: of, UID: "uid", Host: "svc.ns.svc.cluster.local", Async: names.Async{Schedules: parsed(t, schedules)}}
	return &Ticker{Store: kept, Queues: queues{kept}, Routes: func() map[call.Service]*routes.Route { return map[call.Service]*routes.Route{of: route} },
		MaxCalls: func() int { return 10 }, Log: slog.New(slog.DiscardHandler)}
}

// tick waits until the calls are made.
func (t *Ticker) tick(test *testing.T, now time.Time) {
	t.Tick(test.Context(), now)
	t.group.Wait()
}

func open(t *testing.T, dir string) *store.Store {
	kept, err := store.Open(t.Context(), store.Options{Dir: dir, Bytes: 1 << 30, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kept.Close)
	return kept
}

// wait waits until a number of calls wait. JetStream counts them a moment later.
func wait(t *testing.T, kept *store.Store, want int) {
	t.Helper()
	eventually.Seen(t, fmt.Sprintf("%d calls wait", want), func() (n int, ok bool) {
		depths, err := kept.Depths(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range depths {
			n += d.Calls
		}
		return n, n == want
	})
}

func TestEachTimeMakesOneCallAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	kept := open(t, dir)
	begin := time.Date(2026, 1, 1, 8, 59, 30, 0, time.UTC)
	every := `[{name: a, cron: "* * * * *"}]`
	one := ticker(t, kept, every)
	for s := range 120 { // 8:59:30 to 9:01:29
		one.tick(t, begin.Add(time.Duration(s)*time.Second))
	}
	wait(t, kept, 2)
	// What was handled last is lost, as if the courier had been killed after the call was stored.
	if err := kept.Remember(t.Context(), "schedules.ns.svc.a", []byte(`{"at":"2026-01-01T09:00:30Z","spec":"uid * * * * *  false"}`)); err != nil {
		t.Fatal(err)
	}
	kept.Close()
	kept = open(t, dir)
	again := ticker(t, kept, every)
	again.tick(t, begin.Add(100*time.Second))
	wait(t, kept, 2)
	if n := again.Made.Load(); n != 1 {
		t.Errorf("%d calls made after a restart", n)
	}
}

func TestTimesThatPassedAreMadeUpForByThePolicy(t *testing.T) {
	at := func(hour, minute int) time.Time { return time.Date(2026, 1, 1, hour, minute, 5, 0, time.UTC) }
	for _, c := range []struct {
		behaviour, schedule string
		after, now          time.Time
		due                 int // the minute of the hour, -1 for none
		missed              int
	}{
		{"on time", `cron: "* * * * *"`, at(8, 0), at(8, 1), 1, 0},
		{"not due", `cron: "0 * * * *"`, at(8, 0), at(8, 59), -1, 0},
		{"skipped", `cron: "30 * * * *"`, at(8, 0), at(8, 59), -1, 1},
		{"made up for once", `cron: "*/10 * * * *", missed: Once`, at(8, 0), at(8, 59), 50, 4},
		{"the newest is on time", `cron: "*/10 * * * *"`, at(8, 0), at(8, 50), 50, 4},
		{"of the last day only", `cron: "0 8 * * *", missed: Once`, at(8, 0).AddDate(-1, 0, 0), at(8, 59), 0, 0},
	} {
		s := parsed(t, "[{name: a, "+c.schedule+"}]")[0]
		due, missed := Due(&s, c.after, c.now, c.now.Add(-onTime))
		if got := due.Minute(); due.IsZero() != (c.due < 0) || c.due >= 0 && got != c.due || missed != c.missed {
			t.Errorf("%s: due %v, %d missed", c.behaviour, due, missed)
		}
	}
}

func TestACallIsLeftOutWhileTheOneBeforeRuns(t *testing.T) {
	kept := open(t, t.TempDir())
	one := ticker(t, kept, `[{name: a, cron: "* * * * *", concurrency: Forbid}]`)
	begin := time.Date(2026, 1, 1, 8, 59, 30, 0, time.UTC)
	for s := range 180 {
		one.tick(t, begin.Add(time.Duration(s)*time.Second))
	}
	wait(t, kept, 1)
	if n := one.LeftOut.Load(); n != 2 {
		t.Fatalf("%d calls left out", n)
	}
	queue, err := kept.Queue(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := queue.Fetch(1)
	if err != nil {
		t.Fatal(err)
	}
	for m := range messages.Messages() {
		if err := m.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	one.tick(t, begin.Add(220*time.Second))
	wait(t, kept, 1)
	if n := one.Made.Load(); n != 2 {
		t.Errorf("%d calls made after the one before was completed", n)
	}
}

func TestASuspendedScheduleMakesNoCall(t *testing.T) {
	kept := open(t, t.TempDir())
	begin := time.Date(2026, 1, 1, 8, 59, 30, 0, time.UTC)
	one := ticker(t, kept, `[{name: a, cron: "* * * * *", missed: Once, suspend: true}]`)
	for s := range 120 {
		one.tick(t, begin.Add(time.Duration(s)*time.Second))
	}
	resumed := ticker(t, kept, `[{name: a, cron: "* * * * *", missed: Once}]`)
	resumed.tick(t, begin.Add(125*time.Second))
	wait(t, kept, 0)
	if _, err := kept.Recall(t.Context(), "nothing"); !errors.Is(err, store.ErrNone) {
		t.Error(err)
	}
}

func TestAScheduleThatIsGoneIsForgotten(t *testing.T) {
	kept := open(t, t.TempDir())
	begin := time.Date(2026, 1, 1, 8, 59, 30, 0, time.UTC)
	ticker(t, kept, `[{name: a, cron: "* * * * *"}, {name: b, cron: "* * * * *"}]`).tick(t, begin)
	later := ticker(t, kept, `[{name: b, cron: "* * * * *"}]`)
	later.tick(t, begin.Add(time.Second))
	keys, err := kept.Remembered(t.Context(), prefix)
	if err != nil || len(keys) != 1 || keys[0] != "schedules.ns.svc.b" {
		t.Errorf("%q is kept, %v", keys, err)
	}
	if _, err := kept.Recall(t.Context(), "schedules.ns.svc.a"); !errors.Is(err, store.ErrNone) {
		t.Error(err)
	}
}

// stuck is queues that let no call of a namespace be added until it is told to.
type stuck struct {
	queues
	namespace string
	until     chan struct{}
}

func (s stuck) Admit(ctx context.Context, of call.Service) (int, error) {
	if of.Namespace == s.namespace {
		<-s.until
	}
	return s.queues.Admit(ctx, of)
}

// The calls of one namespace take longer than a call may be late.
func TestSchedulesWaitForNoOtherNamespaceAndMissNothingMeanwhile(t *testing.T) {
	kept := open(t, t.TempDir())
	one := ticker(t, kept, `[{name: a, cron: "* * * * *"}]`)
	attacker := &routes.Route{Service: call.Service{Namespace: "attacker", Name: "svc"}, UID: "other", Host: "svc.attacker.svc.cluster.local",
		Async: names.Async{Schedules: parsed(t, `[{name: a, cron: "* * * * *"}]`)}}
	all := one.Routes()
	all[attacker.Service] = attacker
	one.Routes = func() map[call.Service]*routes.Route { return all }
	until := make(chan struct{})
	one.Queues = stuck{queues{kept}, "attacker", until}
	begin := time.Date(2026, 1, 1, 8, 59, 30, 0, time.UTC)
	one.tick(t, begin)
	one.Tick(t.Context(), begin.Add(31*time.Second)) // 9:00:01
	eventually.True(t, "the schedule does not wait for that of another namespace", func() bool { return one.Made.Load() != 0 })
	close(until)
	one.group.Wait()
	// It was as if the round of 9:00:01 had taken two minutes.
	one.rounds["attacker"] = round{began: begin.Add(31 * time.Second), ended: begin.Add(150 * time.Second)}
	one.Routes = func() map[call.Service]*routes.Route {
		return map[call.Service]*routes.Route{attacker.Service: attacker}
	}
	one.tick(t, begin.Add(151*time.Second)) // 9:02:01
	one.rounds["attacker"] = round{began: begin.Add(151 * time.Second), ended: begin.Add(240 * time.Second)}
	one.tick(t, begin.Add(241*time.Second)) // 9:03:31
	if made, missed := one.Made.Load(), one.Missed.Load(); made != 4 || missed != 1 {
		t.Errorf("%d calls, want that of 9:00 twice, 9:02 and 9:03; %d missed, want 9:01", made, missed)
	}
	one.rounds["attacker"] = round{began: begin.Add(241 * time.Second), ended: begin.Add(242 * time.Second)}
	one.tick(t, begin.Add(600*time.Second)) // 9:09:30, nobody looked in between
	if made, missed := one.Made.Load(), one.Missed.Load(); made != 4 || missed != 7 {
		t.Errorf("%d calls, %d missed after a pause", made, missed)
	}
}

func TestAClockThatWasAheadSilencesNoSchedule(t *testing.T) {
	dir := t.TempDir()
	kept := open(t, dir)
	every := `[{name: a, cron: "* * * * *"}]`
	begin := time.Date(2026, 1, 1, 8, 59, 30, 0, time.UTC)
	one := ticker(t, kept, every)
	one.tick(t, begin)
	one.tick(t, begin.Add(24*time.Hour+31*time.Second)) // ahead by a day
	if n := one.Made.Load(); n != 1 {
		t.Fatalf("%d calls while the clock was ahead", n)
	}
	kept.Close()
	kept = open(t, dir)
	again := ticker(t, kept, every)
	for s := range 120 { // 8:59:40 to 9:01:39
		again.tick(t, begin.Add(time.Duration(10+s)*time.Second))
	}
	if n := again.Made.Load(); n != 2 {
		t.Errorf("%d calls in two minutes when the clock was right again", n)
	}
}
