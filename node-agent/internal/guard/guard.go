// Package guard makes sure that nothing stays frozen because of the agent. It is a second process:
// it sees the agent die or stall, and thaws.
//
//	agent alive, answers pings      the guard does nothing
//	agent does not answer in time   the guard kills it, then as below
//	agent dead                      the guard thaws every container that an agent froze, until there is one
//	guard dead or stalled           the agent thaws, and freezes nothing (Allowed)
//
// Owns: the socket between the two. Reads: pings. Writes: pings, SIGKILL to an agent that stalls.
// Never: freezes.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ebb.dev/ebb/standby"
)

const (
	// Together they are shorter than standby.StallTime, the longest stall of an agent.
	pingEvery  = 450 * time.Millisecond
	answerTime = 450 * time.Millisecond
	retryTime  = 100 * time.Millisecond
	// A look at all containers costs little once, and something ten times a second. After an agent
	// was lost it is done that often for lostTime, and otherwise each restTime.
	lostTime = 2 * standby.StallTime
	restTime = 10 * time.Second
)

// Post is the agent's side.
type Post struct {
	began    time.Time
	lastPing atomic.Int64 // since began, 0 for never

	mu     sync.Mutex
	away   chan struct{}
	closes *time.Timer // closes away, unless there is a ping
}

// NewPost returns the agent's side, which has seen no guard yet.
func NewPost() *Post {
	p := &Post{began: time.Now(), away: make(chan struct{})}
	close(p.away)
	return p
}

// Away returns a channel that is closed when the guard is away. Who waits for it needs no clock of
// its own.
func (p *Post) Away() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.away
}

func (p *Post) pinged() {
	p.lastPing.Store(int64(time.Since(p.began)))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closes != nil && p.closes.Stop() {
		p.closes.Reset(standby.StallTime)
		return
	}
	away := make(chan struct{})
	p.away, p.closes = away, time.AfterFunc(standby.StallTime, func() { close(away) })
}

// Allowed reports whether a guard watches.
func (p *Post) Allowed() bool {
	last := p.lastPing.Load()
	return last != 0 && time.Since(p.began)-time.Duration(last) < standby.StallTime
}

// Serve answers the guard's pings at the socket path until ctx ends.
func (p *Post) Serve(ctx context.Context, path string) error {
	// A socket of an agent that was killed stays behind.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for the guard: %w", err)
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("take a connection of the guard: %w", err)
		}
		p.answer(ctx, conn) // one guard at a time; the next one waits in the backlog
	}
}

func (p *Post) answer(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	buffer := make([]byte, 1)
	for {
		_ = conn.SetDeadline(time.Now().Add(standby.StallTime))
		if _, err := conn.Read(buffer); err != nil {
			return
		}
		p.pinged()
		if _, err := conn.Write(buffer); err != nil {
			return
		}
	}
}

// Guard is the guard's side.
type Guard struct {
	Socket string
	// ThawAll thaws every container of the node and returns how many were frozen.
	ThawAll func() (int, error)
	Log     *slog.Logger
}

// Run watches one agent after another until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	lost, looked := time.Now(), time.Time{}
	for ctx.Err() == nil {
		met, err := g.watch(ctx)
		if ctx.Err() != nil {
			break
		}
		if met {
			lost = time.Now()
		}
		if time.Since(lost) < lostTime || time.Since(looked) >= restTime {
			looked = time.Now()
			thawed, thawErr := g.ThawAll()
			if thawed > 0 || thawErr != nil {
				lost = time.Now()
				g.Log.Warn("the agent is away; thawed its containers", "containers", thawed, "error", thawErr, "agent", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryTime):
		}
	}
	return nil
}

// watch returns once the agent is dead, and whether there was one.
func (g *Guard) watch(ctx context.Context) (met bool, err error) {
	conn, err := (&net.Dialer{Timeout: answerTime}).DialContext(ctx, "unix", g.Socket)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	agent, err := peer(conn.(*net.UnixConn))
	if err != nil {
		return true, err
	}
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for buffer := []byte{'.'}; ; {
		_ = conn.SetDeadline(time.Now().Add(answerTime))
		_, err := conn.Write(buffer)
		if err == nil {
			_, err = conn.Read(buffer)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return true, g.kill(agent)
		}
		if err != nil {
			return true, err // the kernel closed the connection: the agent is dead, or ended in order
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-ping.C:
		}
	}
}

// kill ends an agent that stalls and waits until it is dead: before, it might go on and freeze.
func (g *Guard) kill(agent int) error {
	g.Log.Warn("the agent does not answer; killing it", "pid", agent, "after", answerTime)
	for {
		if err := unix.Kill(agent, unix.SIGKILL); errors.Is(err, unix.ESRCH) {
			return errors.New("the agent stalled and was killed")
		} else if err != nil {
			return fmt.Errorf("kill the agent that stalls, process %d: %w; the containers of its pod must share their process namespace", agent, err)
		}
		if dead(agent) {
			return errors.New("the agent stalled and was killed")
		}
		time.Sleep(time.Millisecond)
	}
}

// dead reports whether a process does nothing any more: its parent may take a while to reap it.
func dead(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	for i := len(text) - 1; i > 0; i-- {
		if text[i] == ')' { // of the name, which may hold anything
			return i+2 < len(text) && (text[i+2] == 'Z' || text[i+2] == 'X')
		}
	}
	return false
}

// peer returns the process that listens at the other end.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) { who, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, inner); err != nil {
		return 0, fmt.Errorf("ask who the agent is: %w", err)
	}
	if who.Pid <= 0 {
		return 0, errors.New("the agent's process is not visible: the containers of its pod must share their process namespace")
	}
	return int(who.Pid), nil
}
