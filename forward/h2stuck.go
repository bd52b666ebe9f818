package forward

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"ebb.dev/ebb/forward/exchange"
)

// Over HTTP/2, bytes wait here for a peer that does not read, and bodies for a connection to an
// upstream. The windows bound that for each stream, and accounts for the requests that have one.
// All together may have Server.MaxStuckBytes. When they have more, the requests that have been
// stuck for the longest end. Below half of that, streams that flow get larger windows.
//
// The sum changes with each queue, so it is one number. Who is stuck is only looked for when there
// is too much. Then an eighth is freed, so that the next look is not soon.

// h2AnswerBytes is what a request uses whose local answer waits for a window.
const h2AnswerBytes = 2 << 10

var errStuck = errors.New("too many bytes wait for peers that do not take them")

// stick counts n more bytes that are stuck, or less if n is negative. Locks may be held.
func (s *Server) stick(n int64) {
	if s.stuck.bytes.Add(n) > s.MaxStuckBytes && n > 0 && s.stuck.relieving.CompareAndSwap(false, true) {
		go s.relieve()
	}
}

func (s *Server) roomy() bool { return s.stuck.bytes.Load() < s.MaxStuckBytes/2 }

// stickLocked counts n more bytes of the stream's queue.
func (h *h2half) stickLocked(n int64) {
	if h.stuck == 0 {
		h.stuckAt = time.Now()
	}
	h.stuck += n
	h.x.srv.srv.stick(n)
}

func (h *h2half) unstickLocked() {
	if h.stuck > 0 {
		h.x.srv.srv.stick(-h.stuck)
		h.stuck = 0
	}
}

// relieve ends the requests that have been stuck for the longest.
func (s *Server) relieve() {
	defer s.catch()
	defer s.stuck.relieving.Store(false)
	type stuck struct {
		x  *h2exchange
		at time.Time
	}
	var all []stuck
	for _, c := range s.h2conns() {
		c.mu.Lock()
		halves := c.halvesLocked()
		c.mu.Unlock()
		for _, h := range halves {
			if at := h.x.stuckAt(); !at.IsZero() {
				all = append(all, stuck{h.x, at})
			}
		}
	}
	slices.SortFunc(all, func(a, b stuck) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	for _, oldest := range all {
		if s.stuck.bytes.Load() <= s.MaxStuckBytes-s.MaxStuckBytes/8 {
			return
		}
		oldest.x.endStuck()
	}
}

// h2conns returns the clients' connections.
func (s *Server) h2conns() (conns []*h2conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if h2, ok := c.shell.(*h2server); ok {
			conns = append(conns, h2.c)
		}
	}
	return conns
}

// stuckAt returns when the first of the request's stuck bytes last moved, zero without any.
func (x *h2exchange) stuckAt() (at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.body.stuck > 0 {
		at = x.r.Started
	}
	for _, h := range []*h2half{&x.down, x.up} {
		if h == nil {
			continue
		}
		h.c.mu.Lock()
		if h.stuck > 0 && (at.IsZero() || h.stuckAt.Before(at)) {
			at = h.stuckAt
		}
		h.c.mu.Unlock()
	}
	return at
}

// endStuck ends a request, or resets the stream of one that is over and whose answer waits.
func (x *h2exchange) endStuck() {
	defer x.srv.c.guard()
	var b h2batch
	defer b.flush()
	x.mu.Lock()
	live := x.machine.Live()
	do := x.performLocked(&exchange.Event{Kind: exchange.Failed, Err: fullError{errStuck}}, &b)
	if !live {
		x.down.c.drop(&x.down, http2.ErrCodeCancel, &b)
	}
	if x.machine.Pending() != nil { // it ends when the Handler has decided
		x.body.held = nil
		x.settleBodyLocked()
	}
	x.mu.Unlock()
	if !live {
		x.rest(&b)
	}
	x.follow(do, nil, &b)
}
