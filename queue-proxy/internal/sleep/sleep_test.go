package sleep

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/standby"
)

// pipes is a listener of connections that need no network.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

var node = netip.MustParseAddr("10.0.0.1")

func (p *pipes) dial(from netip.Addr) net.Conn {
	here, there := net.Pipe()
	p.conns <- addressed{there, net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 40000))}
	return here
}

// rig is a pod with a container that can be frozen.
type rig struct {
	*Sleeper
	t     *testing.T
	pipes *pipes

	mu     sync.Mutex
	shut   bool
	inside int
	frozen bool
	fails  int // how many freezes are to fail
	words  []Word
	// before and after are what the hooks do, if the rig has any.
	before, after func(ctx context.Context) error
	calls         []string
}

// hook is what the Sleeper calls. No request is inside then, and the container runs.
func (r *rig) hook(name string, do *func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		r.mu.Lock()
		if r.frozen || r.inside > 0 {
			r.t.Errorf("the hook %s is called with %d requests inside, frozen %v", name, r.inside, r.frozen)
		}
		r.calls = append(r.calls, name)
		f := *do
		r.mu.Unlock()
		return f(ctx)
	}
}

func (r *rig) called() (calls []string) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	calls, r.calls = r.calls, nil
	return calls
}

func (r *rig) Shut() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = r.inside == 0
	return r.shut
}

func (r *rig) Open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = false
}

func newRig(t *testing.T) *rig { return newRigWith(t, nil) }

func newRigWith(t *testing.T, more func(*rig, *Options)) *rig {
	r := &rig{t: t, pipes: &pipes{conns: make(chan net.Conn), done: make(chan struct{})}}
	ctx, stop := context.WithCancel(t.Context())
	began := time.Now()
	o := Options{Gate: r, PodUID: "uid", Node: []netip.Addr{node}, Quiet: time.Second,
		Announce: func(_ context.Context, w Word) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.words = append(r.words, w)
		},
		Probe: func(context.Context) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.frozen {
				return errors.New("no answer")
			}
			return nil
		},
		Clock: func() time.Duration { return time.Since(began) },
		Log:   slog.New(slog.DiscardHandler),
	}
	if more != nil {
		more(r, &o)
	}
	r.Sleeper = New(ctx, o)
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, r.pipes) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
	return r
}

// request does what the chain does. It reports false when the request was refused.
func (r *rig) request(ctx context.Context, patient bool, lasts time.Duration) bool {
	for {
		r.mu.Lock()
		if !r.shut {
			if r.frozen {
				r.t.Error("a request is sent into a frozen container")
			}
			r.inside++
			r.mu.Unlock()
			time.Sleep(lasts)
			r.mu.Lock()
			if r.frozen {
				r.t.Error("the container was frozen under a request")
			}
			r.inside--
			r.mu.Unlock()
			return true
		}
		r.mu.Unlock()
		if !r.Await(ctx, patient) {
			return false
		}
	}
}

func (r *rig) said() (w []Word) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	w, r.words = r.words, nil
	return w
}

// agent talks to the pod as the node agent does. takes is how long each piece of work takes. It
// returns the function that ends the agent as its death does: without thawing.
func (r *rig) agent(takes time.Duration) (die func()) {
	conn := r.pipes.dial(node)
	write := func(m standby.Message) { _, _ = conn.Write(m.Append(nil)) }
	orders := make(chan standby.Message, 4)
	go func() {
		defer close(orders)
		buf, text := make([]byte, standby.MaxLine), ""
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			text += string(buf[:n])
			for line := ""; ; {
				var more bool
				if line, text, more = cut(text); !more {
					break
				}
				m, err := standby.Parse(line)
				if err != nil {
					r.t.Error(err)
				}
				orders <- m
			}
		}
	}()
	write(standby.Message{Verb: standby.Hello, Number: standby.Version, Text: "uid"})
	if hello := <-orders; hello.Verb != standby.Hello || hello.Text != "uid" {
		r.t.Errorf("the pod said %+v", hello)
	}
	dead := make(chan struct{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		var a standby.Agent
		var done <-chan time.Time
		var doing standby.Work
		act := func(w standby.Work, answer *standby.Message) {
			if answer != nil {
				write(*answer)
			}
			if w != standby.Nothing {
				doing, done = w, time.After(takes)
				r.mu.Lock()
				if w == standby.FreezeAll {
					r.frozen = true
				}
				r.mu.Unlock()
			}
		}
		for {
			select {
			case m, ok := <-orders:
				if !ok {
					orders = nil
					act(a.Close(r.o.Clock()), nil)
					continue
				}
				w, answer, ok := a.Receive(m, r.o.Clock())
				if !ok {
					r.t.Errorf("the pod broke the protocol with %+v", m)
				}
				act(w, answer)
			case <-done:
				done = nil
				if doing == standby.ThawAll {
					r.mu.Lock()
					r.frozen = false
					r.mu.Unlock()
				}
				act(a.Done(r.failure(doing), r.o.Clock()))
			case <-dead:
				return
			}
			if a.Gone() {
				return
			}
		}
	}()
	var once sync.Once
	die = func() {
		once.Do(func() {
			close(dead)
			<-gone
			conn.Close()
		})
	}
	r.t.Cleanup(die)
	return die
}

// failure is how a work of the agent ends.
func (r *rig) failure(of standby.Work) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if of != standby.FreezeAll || r.fails == 0 {
		return ""
	}
	r.fails--
	return "the node agent was busy with other pods"
}

func cut(text string) (line, rest string, more bool) {
	for i := range text {
		if text[i] == '\n' {
			return text[:i], text[i+1:], true
		}
	}
	return "", text, false
}

func (r *rig) is(want standby.State) {
	r.t.Helper()
	synctest.Wait()
	if got := r.State(); got != want {
		r.t.Errorf("the pod is %s, want %s", got, want)
	}
}

func (r *rig) heard(want ...Word) {
	r.t.Helper()
	got := r.said()
	if len(got) != len(want) {
		r.t.Errorf("the pod announced %v, want %v", got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			r.t.Errorf("the pod announced %v, want %v", got, want)
		}
	}
}

func (r *rig) sleep(level standby.Level) {
	r.t.Helper()
	if err := r.Sleep(level); err != nil {
		r.t.Error(err)
	}
}

func TestWithoutAnAgentThePodDozes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.sleep(standby.Frozen)
		r.heard(Gone)
		time.Sleep(2 * time.Second)
		r.is(standby.Dozing)
		r.heard(Asleep)
		begin := time.Now()
		if !r.request(t.Context(), false, 0) || time.Since(begin) > 0 {
			t.Errorf("a dozing pod took %s to answer", time.Since(begin))
		}
		r.is(standby.Awake)
		r.heard()
		time.Sleep(standby.SettleTime + time.Millisecond)
		r.heard(Awake)
	})
}

func TestARequestWakesAFrozenPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.agent(time.Millisecond)
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Asleep)
		r.heard(Gone, Asleep)
		begin := time.Now()
		if !r.request(t.Context(), false, 0) {
			t.Error("the request was refused")
		}
		if took := time.Since(begin); took != time.Millisecond {
			t.Errorf("the pod took %s to wake, the agent 1ms", took)
		}
		time.Sleep(standby.SettleTime + time.Millisecond)
		r.heard(Awake)
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.heard(Gone, Asleep)
		r.Wake()
		time.Sleep(10 * time.Millisecond)
		r.is(standby.Awake)
		r.heard(Awake)
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.End()
		time.Sleep(10 * time.Millisecond)
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Awake)
	})
}

// What a wake causes elsewhere must not compete with its answer. A second request meanwhile is
// served as the first one, and the activators hear of the pod in time, however long its answer
// takes.
func TestAWakeIsAnnouncedAfterItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.agent(time.Millisecond)
		for _, takes := range []time.Duration{5 * time.Millisecond, time.Minute} {
			r.sleep(standby.Frozen)
			time.Sleep(2 * time.Second)
			r.heard(Gone, Asleep)
			go r.request(t.Context(), false, takes)
			time.Sleep(time.Millisecond + standby.SettleTime/2)
			r.is(standby.Awake)
			r.heard()
			if begin := time.Now(); !r.request(t.Context(), false, 0) || time.Since(begin) > 0 {
				t.Errorf("a second request took %s", time.Since(begin))
			}
			r.heard()
			time.Sleep(standby.SettleTime/2 + time.Millisecond)
			r.heard(Awake)
			time.Sleep(2 * takes)
			r.heard()
		}
		// The order to sleep overtakes the word.
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.heard(Gone, Asleep)
		if !r.request(t.Context(), false, 0) {
			t.Error("the request was refused")
		}
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Asleep)
		r.heard(Gone, Asleep)
	})
}

// An activator that cannot be reached is told again and again for seconds. What the others are to
// know does not wait for that.
func TestANewerWordEndsTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var speaking atomic.Int32
		r := newRigWith(t, func(_ *rig, o *Options) {
			announce := o.Announce
			o.Announce = func(ctx context.Context, w Word) {
				if speaking.Add(1) > 1 {
					t.Error("two words are announced at once, so the older one may come last")
				}
				defer speaking.Add(-1)
				announce(ctx, w)
				<-ctx.Done()
			}
		})
		r.sleep(standby.Frozen)
		r.heard(Gone)
		time.Sleep(2 * time.Second)
		r.heard(Asleep)
		if !r.request(t.Context(), false, 0) {
			t.Error("the request was refused")
		}
		time.Sleep(standby.SettleTime + time.Millisecond)
		r.heard(Awake)
	})
}

func TestABusyPodDoesNotFallAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.agent(time.Millisecond)
		r.sleep(standby.Frozen)
		for range 10 {
			if !r.request(t.Context(), false, 900*time.Millisecond) {
				t.Error("a request was refused")
			}
			r.is(standby.Resting)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		r.is(standby.Asleep)
	})
}

// A program that says that it is busy keeps its pod awake, also one that was told to sleep already,
// until the time is over or the program says that it is done.
func TestAPodWhoseProgramIsBusyStaysAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.agent(time.Millisecond)
		r.sleep(standby.Frozen)
		r.heard(Gone)
		r.is(standby.Resting)
		r.Busy(time.Minute)
		r.is(standby.Awake)
		r.heard(Awake)
		time.Sleep(59 * time.Second)
		if err := r.Sleep(standby.Frozen); err == nil || !strings.Contains(err.Error(), "busy for another 1s") {
			t.Errorf("the order was answered %v", err)
		}
		r.is(standby.Awake)
		time.Sleep(time.Second)
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Asleep)
		r.Wake()
		time.Sleep(2 * time.Second)
		r.Busy(time.Hour)
		r.Busy(0)
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Asleep)
	})
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A freeze that found no turn is tried again, so a pod that is not needed does not stay warm. The
// log says why it is.
func TestAFreezeThatFailedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		r := newRigWith(t, func(_ *rig, o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		r.agent(time.Millisecond)
		r.fails = 2
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Dozing)
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "busy with other pods") {
			t.Errorf("the log says %q", text)
		}
		if why := r.Failure(); why != "the node agent was busy with other pods" {
			t.Errorf("the pod says %q", why)
		}
		time.Sleep(standby.AgainTime - 2*time.Second)
		for r.State() != standby.Freezing {
			time.Sleep(500 * time.Microsecond)
		}
		if why := r.Failure(); why == "" {
			t.Error("it says nothing of it while the freeze is tried again")
		}
		time.Sleep(time.Second)
		r.is(standby.Dozing)
		time.Sleep(standby.AgainTime)
		r.is(standby.Asleep)
		if why := r.Failure(); why != "" {
			t.Errorf("it is frozen and says %q", why)
		}
		r.heard(Gone, Asleep, Asleep, Asleep)
		if !r.request(t.Context(), false, 0) {
			t.Error("the request was refused")
		}
	})
}

// The time of a freeze that failed is that of its own sleep: a pod that woke meanwhile and failed
// to freeze again does not try sooner, nor twice as often.
func TestAFreezeIsTriedAgainAfterItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.agent(time.Millisecond)
		r.fails = 2
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Dozing)
		time.Sleep(standby.AgainTime / 2)
		r.Wake()
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Dozing)
		time.Sleep(standby.AgainTime - time.Second)
		r.is(standby.Dozing)
		time.Sleep(2 * time.Second)
		r.is(standby.Asleep)
	})
}

// An agent that has stalled answers nothing. Another pod takes the requests of activators; those
// that came directly wait until the guard has killed the agent and thawed the pod.
func TestAStalledAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		die := r.agent(time.Millisecond)
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Asleep)
		// From here on the agent reads nothing.
		r.mu.Lock()
		frozen := r.frozen
		r.mu.Unlock()
		if !frozen {
			t.Fatal("the container runs")
		}
		die()
		begin := time.Now()
		patient := make(chan bool, 1)
		go func() { patient <- r.request(t.Context(), true, 0) }()
		if r.request(t.Context(), false, 0) {
			t.Error("a request was served by a frozen container")
		}
		if took := time.Since(begin); took != standby.WakeTime {
			t.Errorf("the request was refused after %s", took)
		}
		if begin = time.Now(); r.request(t.Context(), false, 0) || time.Since(begin) != 0 {
			t.Error("the next request waited again")
		}
		r.mu.Lock()
		r.frozen = false // by the guard
		r.mu.Unlock()
		if !<-patient {
			t.Error("the patient request was refused")
		}
		r.is(standby.Awake)
		if r.agent(time.Millisecond); !r.request(t.Context(), false, 0) {
			t.Error("the pod does not recover")
		}
	})
}

func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		refused := func(name string, conn net.Conn, say string) {
			t.Helper()
			go func() { _, _ = io.WriteString(conn, say) }()
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			if text, err := io.ReadAll(conn); err != nil && !errors.Is(err, io.ErrClosedPipe) || len(text) > 0 {
				t.Errorf("%s: the pod said %q, %v", name, text, err)
			}
		}
		refused("another address", r.pipes.dial(netip.MustParseAddr("10.0.0.2")), "hello 1\n")
		refused("another version", r.pipes.dial(node), "hello 2 uid\n")
		refused("no UID", r.pipes.dial(node), "hello 1\n")
		refused("the UID of another pod", r.pipes.dial(node), "hello 1 another\n")
		refused("garbage", r.pipes.dial(node), "GET / HTTP/1.1\r\n\r\n")
		refused("silence", r.pipes.dial(node), "")
		if n := r.RejectedPeers(); n != 6 {
			t.Errorf("%d strangers were counted", n)
		}
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Dozing)
	})
}

// Who can speak from the node's address, such as through a NodePort, cannot take the agent's place.
func TestStrangersDoNotDisturbTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.agent(time.Millisecond)
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		r.is(standby.Asleep)
		var all []net.Conn
		for range 4 * maxUnproven {
			all = append(all, r.pipes.dial(node))
		}
		synctest.Wait()
		r.is(standby.Asleep)
		if n := r.RejectedPeers(); n < 3*maxUnproven {
			t.Errorf("%d of %d silent connections were refused at once", n, len(all))
		}
		for range 20 {
			conn := r.pipes.dial(node)
			go func() { _, _ = io.WriteString(conn, "hello 1\n") }()
			time.Sleep(100 * time.Millisecond)
		}
		r.is(standby.Asleep)
		if !r.request(t.Context(), false, 0) {
			t.Error("the agent does not wake the pod any more")
		}
		for _, conn := range all {
			conn.Close()
		}
	})
}

// A container that hangs in a pod whose agent died must not be taken for a frozen one for ever.
func TestAPodThatLostItsAgentIsNotFrozenForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		die := r.agent(time.Millisecond)
		if r.MayBeFrozen() {
			t.Error("awake")
		}
		r.sleep(standby.Frozen)
		time.Sleep(2 * time.Second)
		if r.is(standby.Asleep); !r.MayBeFrozen() {
			t.Error("asleep")
		}
		die()
		time.Sleep(30 * time.Second)
		if r.is(standby.Lost); !r.MayBeFrozen() {
			t.Error("the guard has time to thaw")
		}
		time.Sleep(lostTime)
		if r.is(standby.Lost); r.MayBeFrozen() {
			t.Error("the container hangs, and nobody will know")
		}
		r.mu.Lock()
		r.frozen = false
		r.mu.Unlock()
		time.Sleep(time.Second)
		if r.is(standby.Dozing); r.MayBeFrozen() {
			t.Error("a pod that sleeps warm")
		}
	})
}
