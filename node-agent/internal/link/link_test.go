package link

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/test/eventually"
)

// pod is a queue-proxy that a test speaks for, and its containers.
type pod struct {
	t      *testing.T
	l      net.Listener
	conn   net.Conn
	lines  *bufio.Reader
	guard  atomic.Bool
	away   chan struct{}
	thaw   atomic.Pointer[error] // what Thaw returns
	frozen atomic.Bool
	// compressing is closed when Compress began; it ends with its context.
	compressing chan struct{}
	mu          sync.Mutex
	refused     []string
	stop        context.CancelFunc
	ended       chan struct{}
}

func (p *pod) gone() <-chan struct{} { return p.away }

func (p *pod) Freeze(context.Context) error { p.frozen.Store(true); return nil }
func (p *pod) Compress(ctx context.Context) error {
	close(p.compressing)
	<-ctx.Done()
	return ctx.Err()
}
func (p *pod) Thaw() error {
	if err := p.thaw.Load(); err != nil {
		return *err
	}
	p.frozen.Store(false)
	return nil
}
func (p *pod) Worked(standby.Work, time.Duration, error) {}
func (p *pod) Refused(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = append(p.refused, reason)
}

func start(t *testing.T) *pod {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{t: t, l: l, away: make(chan struct{}), compressing: make(chan struct{}), ended: make(chan struct{})}
	p.guard.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	p.stop = stop
	go func() {
		defer close(p.ended)
		Run(ctx, Options{Pod: "default/hello", UID: "uid", Address: netip.MustParseAddrPort(l.Addr().String()), Containers: p,
			Allowed: p.guard.Load, Away: p.gone, Swap: true, Pool: NewPool(), Clock: SinceBoot, Count: p, Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() { l.Close(); stop(); <-p.ended })
	return p
}

// accept takes the agent's next connection and says hello.
func (p *pod) accept(hello string) {
	p.t.Helper()
	conn, err := p.l.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	p.conn, p.lines = conn, bufio.NewReader(conn)
	p.expect("hello 1 uid")
	p.say(hello)
}

func (p *pod) say(line string) {
	p.t.Helper()
	if _, err := p.conn.Write([]byte(line + "\n")); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pod) freeze(number, level string) {
	p.t.Helper()
	m := standby.Message{Verb: standby.Freeze, Expires: SinceBoot() + time.Minute}
	line := string(m.Append(nil))
	line = strings.Replace(line, "freeze 0 warm", "freeze "+number+" "+level, 1)
	p.say(strings.TrimSuffix(line, "\n"))
}

func (p *pod) expect(want string) {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	line, err := p.lines.ReadString('\n')
	if err != nil || strings.TrimSuffix(line, "\n") != want {
		p.t.Fatalf("the agent said %q, %v; want %q", line, err, want)
	}
}

// expectEnd waits until the agent has ended the connection.
func (p *pod) expectEnd() {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	for {
		line, err := p.lines.ReadString('\n')
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "timeout") {
				p.t.Fatal("the agent keeps the connection")
			}
			return
		}
		p.t.Logf("before the end: %q", line)
	}
}

func TestFreezeAndThaw(t *testing.T) {
	p := start(t)
	p.accept("hello 1 uid")
	p.freeze("1", "frozen")
	p.expect("froze 1 frozen")
	if !p.frozen.Load() {
		t.Error("answered before the containers were frozen")
	}
	p.say("thaw 2")
	p.expect("thawed 2")
	if p.frozen.Load() {
		t.Error("answered before the containers ran")
	}
}

func TestAThawInterruptsACompression(t *testing.T) {
	p := start(t)
	p.accept("hello 1 uid")
	p.freeze("1", "compressed")
	p.expect("froze 1 compressed")
	<-p.compressing
	p.say("thaw 2")
	p.expect("thawed 2")
}

func TestContainersRunWhenAConnectionHasEnded(t *testing.T) {
	for name, end := range map[string]func(p *pod){
		"the pod closes it":       func(p *pod) { p.conn.Close() },
		"the agent stops":         func(p *pod) { p.stop() },
		"the guard goes":          func(p *pod) { p.guard.Store(false); close(p.away) },
		"the pod speaks nonsense": func(p *pod) { p.say("GET / HTTP/1.1") },
		"a number comes twice":    func(p *pod) { p.freeze("1", "frozen") },
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t)
			p.accept("hello 1 uid")
			p.freeze("1", "frozen")
			p.expect("froze 1 frozen")
			end(p)
			p.expectEnd()
			eventually.True(t, "the containers thaw", func() bool { return !p.frozen.Load() })
		})
	}
}

func TestThawingIsTriedUntilItSucceeds(t *testing.T) {
	p := start(t)
	p.accept("hello 1 uid")
	p.freeze("1", "frozen")
	p.expect("froze 1 frozen")
	failure := errors.New("the kernel is busy")
	p.thaw.Store(&failure)
	p.stop()
	select {
	case <-p.ended:
		t.Fatal("the link ended while the containers were frozen")
	case <-time.After(5 * thawRetry):
	}
	p.thaw.Store(nil)
	<-p.ended
	if p.frozen.Load() {
		t.Error("the link ended while the containers were frozen")
	}
}

func TestAPeerThatIsNotThePodIsRefused(t *testing.T) {
	for hello, reason := range map[string]string{
		"hello 1 another-uid": "other-pod",
		"hello 2 uid":         "version",
		"hello 1":             "other-pod",
		"thaw 1":              "protocol",
	} {
		t.Run(hello, func(t *testing.T) {
			p := start(t)
			p.accept(hello)
			p.expectEnd()
			p.stop()
			<-p.ended
			if !slices.Contains(p.refused, reason) || p.frozen.Load() {
				t.Errorf("counted %v, frozen %v", p.refused, p.frozen.Load())
			}
		})
	}
}

func TestNoGuardNoConnection(t *testing.T) {
	p := start(t)
	p.accept("hello 1 uid")
	p.guard.Store(false)
	close(p.away)
	p.expectEnd()
	if err := once(t.Context(), Options{Allowed: p.guard.Load, Away: p.gone}, rate.NewLimiter(1, 1)); err == nil {
		t.Error("dialled without a guard")
	}
}
