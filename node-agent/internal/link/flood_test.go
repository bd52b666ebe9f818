package link

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"ebb.dev/ebb/standby"
)

// slow are containers whose work takes a while.
type slow struct {
	takes   time.Duration
	running atomic.Int64
	most    atomic.Int64
	frozen  atomic.Int64
	thawed  atomic.Int64
}

func (s *slow) work(ctx context.Context, count *atomic.Int64) error {
	count.Add(1)
	if n := s.running.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	defer s.running.Add(-1)
	select {
	case <-time.After(s.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (s *slow) Freeze(ctx context.Context) error          { return s.work(ctx, &s.frozen) }
func (s *slow) Thaw() error                               { return s.work(context.Background(), &s.thawed) }
func (s *slow) Compress(ctx context.Context) error        { <-ctx.Done(); return ctx.Err() }
func (s *slow) Worked(standby.Work, time.Duration, error) {}
func (s *slow) Refused(string)                            {}
func order(to io.Writer, m standby.Message) error         { _, err := to.Write(m.Append(nil)); return err }
func alone(c net.Conn, s *slow, pool *Pool) (*connection, *bufio.Reader) {
	began := time.Now()
	return &connection{conn: c, rate: rate.NewLimiter(orderRate, orderBurst), done: make(chan error, 1), agent: standby.Agent{Swap: true},
		o: Options{Containers: s, Pool: pool, Count: s, Log: slog.New(slog.DiscardHandler), Clock: func() time.Duration { return time.Since(began) }}}, bufio.NewReaderSize(c, standby.MaxLine)
}

// A pod may say what it likes, as often as it likes.
func TestAPodThatFloodsTheAgentIsSlowedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		s := &slow{takes: time.Millisecond}
		c, lines := alone(there, s, NewPool())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.run(ctx, lines, nil) }()
		go func() { _, _ = io.Copy(io.Discard, here) }()
		go func() {
			for n := uint64(1); ; n += 2 {
				if order(here, standby.Message{Verb: standby.Freeze, Number: n, Level: standby.Frozen, Expires: 1 << 60}) != nil ||
					order(here, standby.Message{Verb: standby.Thaw, Number: n + 1}) != nil {
					return
				}
			}
		}()
		const seconds = 60
		time.Sleep(seconds * time.Second)
		if n := s.frozen.Load() + s.thawed.Load(); n > seconds*orderRate+orderBurst || n < seconds {
			t.Errorf("the agent worked %d times in %d s", n, seconds)
		}
		stop()
		<-ended
		here.Close()
	})
}

// A node full of such pods: the agent works on few of them at once, and a pod that wakes waits for
// wakes alone.
func TestWorkOfANodeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, ctx := NewPool(), t.Context()
		crowd := &slow{takes: standby.OrderTime}
		for range 200 {
			for _, work := range []standby.Work{standby.FreezeAll, standby.Compress} {
				go func() { _ = pool.do(ctx, work, func(context.Context) error { return crowd.Freeze(ctx) }) }()
			}
		}
		synctest.Wait()
		began := time.Now()
		if err := pool.do(ctx, standby.ThawAll, func(context.Context) error { return nil }); err != nil || time.Since(began) > 0 {
			t.Errorf("a wake among freezes took %s: %v", time.Since(began), err)
		}
		late, cancel := context.WithTimeout(ctx, standby.OrderTime)
		defer cancel()
		if err := pool.do(late, standby.FreezeAll, func(context.Context) error { t.Error("an order is carried out late"); return nil }); err == nil {
			t.Error("no error for an order that found no place")
		}
		time.Sleep(time.Hour)
		if n := crowd.most.Load(); n > 3 {
			t.Errorf("%d pods were worked on at once", n)
		}
		if n := crowd.frozen.Load(); n != 401 { // the wake interrupted a compression, which began anew
			t.Errorf("%d turns of 400 pods and one that had two", n)
		}
	})
}

// A pod whose freeze makes room for others is not held up by that when a request comes: it is not
// frozen at all.
func TestAThawInterruptsAFreezeThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := NewPool()
		over := make(chan struct{})
		go func() { _ = pool.do(t.Context(), standby.ThawAll, func(context.Context) error { <-over; return nil }) }()
		here, there := net.Pipe()
		s := &slow{}
		c, lines := alone(there, s, pool)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.run(ctx, lines, nil) }()
		answers := make(chan string, 4)
		go func() {
			for lines := bufio.NewScanner(here); lines.Scan(); {
				answers <- lines.Text()
			}
		}()
		if err := order(here, standby.Message{Verb: standby.Freeze, Number: 1, Level: standby.Frozen, Expires: 1 << 60}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		if err := order(here, standby.Message{Verb: standby.Thaw, Number: 2}); err != nil {
			t.Fatal(err)
		}
		for answer := ""; answer != "thawed 2"; {
			answer = <-answers
			t.Log(answer)
		}
		if took := time.Since(began); took != 0 || s.frozen.Load() != 0 {
			t.Errorf("it woke after %s, and was frozen %d times", took, s.frozen.Load())
		}
		close(over)
		stop()
		<-ended
		here.Close()
	})
}
