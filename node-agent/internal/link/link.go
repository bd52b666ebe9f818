// Package link is the agent's connection to the queue-proxy of one pod: the shell around
// standby.Agent.
//
// Owns: the connection, and the work on the pod's containers. Reads: the orders of queue-proxy.
// Writes: answers, and through Containers the pod's cgroups. Never: ends a connection while the
// containers may be frozen.
package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"ebb.dev/ebb/standby"
)

// Containers are the user containers of one pod.
type Containers interface {
	Freeze(ctx context.Context) error
	Thaw() error
	Compress(ctx context.Context) error
}

// Options are what a link is made of.
type Options struct {
	Pod        string // namespace/name, for the log
	UID        string
	Address    netip.AddrPort
	Containers Containers
	// Allowed reports whether the guard is there. Without a guard nothing is frozen.
	Allowed func() bool
	// Away returns a channel that is closed when the guard is away.
	Away func() <-chan struct{}
	// Swap reports whether containers can be compressed.
	Swap bool
	// Pool bounds the work of all pods of the node.
	Pool  *Pool
	Clock func() time.Duration // since boot
	Count Count
	Log   *slog.Logger
}

// Count is told what happened.
type Count interface {
	Worked(work standby.Work, took time.Duration, err error)
	// Refused is told of a peer that is not the pod it should be.
	Refused(reason string)
}

const (
	dialTime   = time.Second
	helloTime  = time.Second
	answerTime = time.Second
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	thawRetry  = 50 * time.Millisecond
	// orderRate and orderBurst bound the orders that are taken of a pod. One that sleeps and wakes
	// without a pause gives fewer: it rests for two seconds before it sleeps.
	orderRate  = 2 // a second
	orderBurst = 8
)

// Run keeps a connection to the pod until ctx ends. When it returns, the containers run.
func Run(ctx context.Context, o Options) {
	// It outlives a connection, so that a pod gains nothing by a new one.
	orders := rate.NewLimiter(orderRate, orderBurst)
	for retry := firstRetry; ctx.Err() == nil; {
		began := time.Now()
		err := once(ctx, o, orders)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastRetry {
			retry = firstRetry
		}
		o.Log.Debug("no connection to a pod", "pod", o.Pod, "error", err, "retry", retry)
		select {
		case <-ctx.Done():
		case <-time.After(retry/2 + rand.N(retry/2)):
		}
		retry = min(2*retry, lastRetry)
	}
}

// once is one connection, from dialling to the moment when the containers run again.
func once(ctx context.Context, o Options, orders *rate.Limiter) error {
	away := o.Away()
	if !o.Allowed() {
		return errors.New("the guard is away")
	}
	dialer := net.Dialer{Timeout: dialTime}
	conn, err := dialer.DialContext(ctx, "tcp", o.Address.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	lines := bufio.NewReaderSize(conn, standby.MaxLine)
	if err := greet(conn, lines, o); err != nil {
		return err
	}
	c := &connection{o: o, conn: conn, rate: orders, agent: standby.Agent{Swap: o.Swap}, done: make(chan error, 1)}
	return c.run(ctx, lines, away)
}

// greet makes sure that the peer is the queue-proxy of this pod: addresses are used again. It says
// the pod's UID, which proves to queue-proxy that it reads the API server.
func greet(conn net.Conn, lines *bufio.Reader, o Options) error {
	_ = conn.SetDeadline(time.Now().Add(helloTime))
	if _, err := conn.Write(standby.Message{Verb: standby.Hello, Number: standby.Version, Text: o.UID}.Append(nil)); err != nil {
		return err
	}
	hello, err := read(lines)
	if err != nil {
		return fmt.Errorf("hello of queue-proxy: %w", err)
	}
	reason := ""
	switch {
	case hello.Verb != standby.Hello:
		reason = "protocol"
	case hello.Number != standby.Version:
		reason = "version"
	case hello.Text != o.UID:
		reason = "other-pod"
	default:
		return conn.SetDeadline(time.Time{})
	}
	o.Count.Refused(reason)
	return fmt.Errorf("refused: %s: the peer said %q, the pod is %s and this agent speaks version %d", reason, hello.Append(nil), o.UID, standby.Version)
}

func read(lines *bufio.Reader) (standby.Message, error) {
	line, err := lines.ReadSlice('\n')
	if err != nil {
		return standby.Message{}, err
	}
	return standby.Parse(string(line[:len(line)-1]))
}

// connection is a pod that has said hello.
type connection struct {
	o     Options
	conn  net.Conn
	rate  *rate.Limiter
	agent standby.Agent
	done  chan error // of the work under way
	stop  context.CancelFunc
}

type received struct {
	m   standby.Message
	err error
}

// run carries out orders, one at a time, until the connection or ctx ends and the containers run.
func (c *connection) run(ctx context.Context, lines *bufio.Reader, away <-chan struct{}) error {
	orders := make(chan received)
	reading, ended := context.WithCancel(context.Background())
	defer ended()
	go c.read(reading, lines, orders)
	var why error
	end := func(err error) {
		if why == nil {
			why, orders = err, nil
			c.start(c.agent.Close(c.o.Clock()))
		}
	}
	finish := ctx.Done()
	for !c.agent.Gone() {
		select {
		case <-finish:
			finish = nil
			end(ctx.Err())
		case <-away:
			away = nil
			end(errors.New("the guard is away"))
		case r := <-orders:
			if r.err != nil {
				end(r.err)
				break
			}
			work, answer, ok := c.agent.Receive(r.m, c.o.Clock())
			if !ok {
				c.o.Count.Refused("protocol")
				end(fmt.Errorf("the pod broke the protocol with %q", r.m.Append(nil)))
				break
			}
			c.answer(answer)
			c.start(work)
		case err := <-c.done:
			failure := ""
			if err != nil {
				failure = err.Error()
			}
			work, answer := c.agent.Done(failure, c.o.Clock())
			c.answer(answer)
			c.start(work)
		}
		if c.agent.Hurry() {
			c.stop()
		}
	}
	return why
}

// read hands over what the pod sends, until ctx or the connection ends.
func (c *connection) read(ctx context.Context, lines *bufio.Reader, to chan<- received) {
	for {
		m, err := read(lines)
		if err == nil {
			// A pod that gives too many orders waits for its own.
			_ = c.rate.Wait(ctx)
		}
		select {
		case to <- received{m, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// answer sends an answer. A pod that does not take it is treated as one that is gone.
func (c *connection) answer(m *standby.Message) {
	if m == nil {
		return
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(answerTime))
	if _, err := c.conn.Write(m.Append(nil)); err != nil {
		_ = c.conn.Close() // the reader sees the end
	}
}

// start does the work beside the loop, so that an order that comes meanwhile is seen.
func (c *connection) start(work standby.Work) {
	if work == standby.Nothing {
		return
	}
	ctx, stop := context.Background(), context.CancelFunc(func() {})
	switch work {
	case standby.FreezeAll:
		ctx, stop = context.WithTimeout(ctx, standby.OrderTime)
	case standby.Compress:
		ctx, stop = context.WithCancel(ctx)
	}
	c.stop = stop
	asked := time.Now()
	go func() {
		began := asked
		err := c.o.Pool.do(ctx, work, func(ctx context.Context) error {
			began = time.Now()
			switch work {
			case standby.FreezeAll:
				return c.o.Containers.Freeze(ctx)
			case standby.Compress:
				return c.o.Containers.Compress(ctx)
			default:
				return c.o.Containers.Thaw()
			}
		})
		stop()
		c.o.Count.Worked(work, time.Since(began), err)
		c.o.Log.Debug("worked", "pod", c.o.Pod, "work", work.String(), "asked", asked, "began", began)
		if err != nil && work == standby.ThawAll {
			c.o.Log.Error("cannot thaw a pod", "pod", c.o.Pod, "error", err)
			time.Sleep(thawRetry)
		}
		c.done <- err
	}()
}

// SinceBoot is the clock that the agent shares with the pods of its node.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 1<<63 - 1 // every order has expired
	}
	return time.Duration(t.Nano())
}
