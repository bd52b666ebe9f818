package forward

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// books charge the HTTP/2 requests of a Server to an account each, and hold what Request.Charge
// promises: everything is given back before Done, nothing is taken or given after it, and nothing
// is given that was not taken. Whoever starts a Server for HTTP/2 keeps books: start does.
//
// One of four requests has no account, as in queue-proxy, so that who pays for a connection
// changes.
type books struct {
	Handler
	room func(n int64) error // may refuse a Take

	open sync.Map // *Request -> *page
	live atomic.Int64

	mu     sync.Mutex
	faults []string
}

// charges is implemented by Handlers that may charge requests themselves.
type charges interface{ charges() bool }

// keepBooks begins the books of a Server that was not started.
func keepBooks(s *Server) *books {
	b := &books{Handler: s.Handler}
	s.init() // so that the Server knows what else the Handler is
	if h, ok := s.Handler.(charges); !ok || !h.charges() {
		s.Handler = b
	}
	return b
}

func (b *books) Admit(r *Request) Decision {
	x, is := r.carrier.(*h2exchange)
	if !is || x.down.id%8 == 7 {
		return b.Handler.Admit(r)
	}
	p := &page{books: b, what: fmt.Sprintf("%s %s on stream %d", r.Method(), r.Path(), x.down.id)}
	b.open.Store(r, p)
	b.live.Add(1)
	if err := r.Charge(p, 1); err != nil {
		return Decision{Reply: Reply{Status: 503, Body: err.Error()}}
	}
	p.admitted = true
	return b.Handler.Admit(r)
}

func (b *books) Done(r *Request, res *Result) {
	p, ok := b.open.LoadAndDelete(r)
	if ok {
		p.(*page).close()
		b.live.Add(-1)
	}
	if !ok || p.(*page).admitted {
		b.Handler.Done(r, res)
	}
}

// closed waits for the end of everything after the Server was closed, and checks.
func (b *books) closed(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); b.live.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	b.check(t)
}

// check is called when the Server is closed and everything should have ended.
func (b *books) check(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		t.Error(fault)
	}
	if n := b.live.Load(); n > 0 {
		t.Errorf("%d requests with an account have no end", n)
	}
}

func (b *books) fault(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.faults) < 3 {
		b.faults = append(b.faults, fmt.Sprintf(format, args...)+"\n"+string(debug.Stack()))
	}
}

// page is the Account of one request.
type page struct {
	books    *books
	what     string
	admitted bool // by the Handler, which is told the end
	mu       sync.Mutex
	held     int64
	over     bool
}

var errNoRoom = errors.New("the page is full")

func (p *page) Take(n int64) error {
	if room := p.books.room; room != nil {
		if err := room(n); err != nil {
			p.move(0, "was asked for memory")
			return err
		}
	}
	p.move(n, "was charged")
	return nil
}

func (p *page) Give(n int64)        { p.move(-n, "was given something back") }
func (p *page) Borrow(n int64) bool { p.move(n, "lent something"); return true }
func (p *page) Return(n int64)      { p.move(-n, "got back what it lent") }

func (p *page) move(n int64, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held += n
	switch {
	case p.over:
		p.books.fault("%s %s (%d bytes) after it was over", p.what, what, n)
	case p.held < 0:
		p.books.fault("%s %s: %d bytes more than it had", p.what, what, -p.held)
	}
}

func (p *page) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.held != 0 {
		p.books.fault("%s was over with %d bytes", p.what, p.held)
	}
}
