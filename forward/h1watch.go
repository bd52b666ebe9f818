package forward

import (
	"context"
	"sync/atomic"
	"syscall"
	"time"
)

// The watcher notices that a client leaves while its request waits for admission or for a slow
// upstream. It reads ahead into the connection's buffer until that is full, so a queued request
// needs no more memory than an idle connection.

// watcher is the watcher of a connection. Only stop and the channels are used by both goroutines.
type watcher struct {
	fn      func() // conn.watch
	running bool   // started, and not stopped
	stop    atomic.Bool
	quit    chan struct{} // ends watchFull
	done    chan struct{}
}

func (c *conn) startWatch() {
	if c.watcher.running || c.pump.active() || c.gone.Load() {
		return
	}
	c.watcher.running = true
	c.watcher.stop.Store(false)
	select {
	case <-c.watcher.quit:
	default:
	}
	go c.watcher.fn()
}

func (c *conn) stopWatch() {
	if !c.watcher.running {
		return
	}
	c.watcher.stop.Store(true)
	c.watcher.quit <- struct{}{}
	c.nc.SetReadDeadline(past)
	<-c.watcher.done
	c.readEnd = time.Time{}
	c.nc.SetReadDeadline(c.readEnd)
	c.watcher.running = false
	// The watcher may have stopped before it noticed that the client left. Under overload, most
	// clients leave, and a slot that one of them gets is lost for a client that still waits.
	if raw := c.socket(); raw != nil && !c.gone.Load() && tcpClosing(raw) {
		c.leave()
	}
}

func (c *conn) watch() {
	defer func() {
		if v := recover(); v != nil {
			c.srv.caught(v)
			c.leave()
		}
		c.watcher.done <- struct{}{}
	}()
	for !c.watcher.stop.Load() {
		if c.inW == len(c.in) {
			c.watchFull()
			break
		}
		n, err := c.nc.Read(c.in[c.inW:])
		c.inW += n
		if n > 0 || err == nil {
			continue
		}
		if !isTimeout(err) {
			c.leave()
			break
		}
		// Clear a deadline of the wait for this request. If stopWatch has set it, the loop ends.
		c.nc.SetReadDeadline(time.Time{})
	}
}

// watchFull waits without reading, because the buffer is full. Only the state of the socket shows
// that the client left.
func (c *conn) watchFull() {
	raw := c.socket()
	if raw == nil {
		return
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.watcher.quit:
			return
		case <-tick.C:
		}
		if tcpClosing(raw) {
			c.leave()
			return
		}
	}
}

// socket returns the socket of the client's connection, or nil if it has none.
func (c *conn) socket() syscall.RawConn {
	sc, ok := c.tcp().(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// leave is called by the watcher or the pump when the client has left.
func (c *conn) leave() {
	c.gone.Store(true)
	if cancel := c.leaveCtx.Load(); cancel != nil {
		(*cancel)(ErrClientGone)
	}
	c.wake()
}

// context implements carrier.
func (c *conn) context() context.Context {
	r := &c.req
	if r.ctx == nil {
		r.ctx, r.ctxCancel = context.WithCancelCause(c.srv.base)
		c.machine.Configure(r.policy())
		if end, t := c.machine.Timer(); t != NoTimer {
			cancel, err := r.ctxCancel, &TimerError{Timer: t, After: r.Timeouts.Of(t)}
			c.ctxTimer = time.AfterFunc(time.Until(end), func() { cancel(err) })
		}
		// The watcher may already be running. Either it finds the function here, or this call finds
		// that the client has left.
		leave := r.ctxCancel
		c.leaveCtx.Store(&leave)
		if c.gone.Load() {
			leave(ErrClientGone)
		}
	}
	c.startWatch() // for each wait anew: it was stopped at the end of the last one
	return r.ctx
}

func (c *conn) endContext() {
	if c.req.ctx == nil {
		return
	}
	if c.ctxTimer != nil {
		c.ctxTimer.Stop()
	}
	c.leaveCtx.Store(nil)
	c.req.ctxCancel(context.Canceled)
}
