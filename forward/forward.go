// Package forward is Ebb's HTTP forwarder. queue-proxy and activator are thin policies over it.
//
// Owns: client connections, pools of upstream connections, and the framing of every message between
// them. One goroutine serves one client connection. A head is parsed in place, the few fields that
// must change are rewritten while it is copied once, and the body is passed in its own framing. A
// forwarded HTTP/1.1 request does not allocate. Reads: the sockets, and the decisions of its
// Handler. Writes: the sockets, and its counters. Never: decides whether a request may pass, where
// it goes, or how long it may take; the Handler does.
//
// The deadlines are the same for every protocol. All timers start when the request's head is
// complete:
//
//	ResponseStart  ends when the first byte of the final response head is written to the client; on an upgraded connection,
//	               when the upstream sends the first byte after the 101
//	Idle           runs since the last byte written to the client (since the start, while nothing was written);
//	               on an upgraded connection, bytes in either direction count
//	Total          always ends the request
//
// A timer that fires before the response started becomes Server.TimeoutReply (504). Afterwards
// Timeouts.Action counts: the response ends cleanly, with the trailer Ebb-Timeout that names the
// timer, or it is cut, so that the client cannot take a truncated body for a whole one. A response
// with a Content-Length that is not met can only be cut.
//
// The files are floors. At the top, server.go accepts connections and finds out which shell each
// needs. Below it are the shells: h1*.go for HTTP/1.1 and h2*.go for HTTP/2; neither uses the
// other. All other files are the ground floor, which both stand on and which uses neither: it
// reaches a connection through shell, the exchange of a Request through carrier, and the
// connections of an Upstream over HTTP/2 through pool. The floors are not packages: the shells work
// on the fields of Request and of a connection at each step, so these would have to be exported, or
// be called for.
package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// Handler is the policy of a server. The methods of one request, those of Redirector and Reviewer
// too, are called one after another. Over HTTP/1.1 that is on the goroutine of the client's
// connection. Over HTTP/2 each call may be on another goroutine: that of either connection, or of a
// timer.
type Handler interface {
	// Admit decides about one request before any byte of its body is forwarded. It may block;
	// Request.Context tells it when to stop.
	Admit(r *Request) Decision
	// Done is called exactly once for every Admit, when the exchange is over. The Request is
	// invalid afterwards.
	Done(r *Request, res *Result)
}

// Redirector is an optional part of a Handler. OnDialError is asked when no connection to the
// chosen upstream could be made, so that nothing was sent. It may name another upstream or a reply,
// any number of times: the Handler has to limit that, and the request's timers do. Without it the
// answer is 502.
type Redirector interface {
	OnDialError(r *Request, err error) Decision
}

// Reviewer is an optional part of a Handler. OnResponse sees the head of every final response
// before any of it goes to the client. If again is true, the response is dropped and d is carried
// out instead. That is allowed only while Response.Replayable is true.
type Reviewer interface {
	OnResponse(r *Request, resp *Response) (d Decision, again bool)
}

// Decision is the Handler's answer: forward to Upstream or, if that is nil, send Reply.
type Decision struct {
	Upstream *Upstream
	Reply    Reply
}

// Reply is a local answer.
type Reply struct {
	Status int
	Body   string
	Type   string   // the Content-Type of Body; "" is text/plain
	Header []Header // further fields, written as they are
	Close  bool     // close the client connection afterwards
}

func (p *Reply) status() int {
	if p.Status < 200 || p.Status > 999 {
		return 500
	}
	return p.Status
}

func (p *Reply) contentType() string { return cmp.Or(p.Type, "text/plain; charset=utf-8") }

// bodiless reports whether the status allows no content, and so no Content-Length (RFC 9110,
// section 8.6).
func (p *Reply) bodiless() bool { return p.Status == 204 || p.Status == 304 }

// Header is one field of a Reply.
type Header struct{ Name, Value string }

// The inputs of package exchange, and its names for how an exchange ended.
type (
	Timeouts   = exchange.Timeouts
	Timer      = exchange.Timer
	TimerError = exchange.TimerError
	Cause      = exchange.Cause
)

// The timers and causes of package exchange.
const (
	NoTimer            = exchange.NoTimer
	TotalTimer         = exchange.TotalTimer
	ResponseStartTimer = exchange.ResponseStartTimer
	IdleTimer          = exchange.IdleTimer

	EndResponse = exchange.EndResponse
	CutResponse = exchange.CutResponse

	Completed      = exchange.Completed
	Replied        = exchange.Replied
	ClientGone     = exchange.ClientGone
	TimedOut       = exchange.TimedOut
	UpstreamFailed = exchange.UpstreamFailed
	BadRequest     = exchange.BadRequest
)

// ErrClientGone is the cancellation cause of a request whose client closed its connection.
var ErrClientGone = exchange.ErrClientGone

// TimeoutTrailer is the trailer of a response that a timer ended. Its value is the name of the
// timer.
const TimeoutTrailer = "Ebb-Timeout"

// Result is how one exchange ended.
type Result struct {
	Status        int   // sent to the client; 0 when nothing could be sent
	GRPC          uint8 // with which the upstream ended a call of gRPC; 0, which is OK, if it said nothing
	Cause         Cause
	Timer         Timer
	Err           error
	RequestBytes  int64 // body bytes passed on, framing included
	ResponseBytes int64 // body bytes written to the client, framing included
	FirstByte     time.Duration
	Duration      time.Duration // since Request.Started, until the client had its end
	Parted        time.Duration // for so long the upstream then went on with the request
	Marked        bool          // by Server.Stripped, for a field of the answer
	Upgraded      bool
	Retried       bool
}

// ended copies what the machine knows.
func (r *Result) ended(e *exchange.Ending, after time.Duration) {
	r.Cause, r.Timer, r.Err, r.Retried, r.Duration = e.Cause, e.Timer, e.Err, e.Retried, after
}

// Server serves client connections. Fill the fields, then call Serve; do not change them
// afterwards.
type Server struct {
	Handler Handler
	// TimeoutReply answers a request whose timer fired before the response started. Default: 504
	// "request timeout".
	TimeoutReply func(t Timer, after time.Duration) Reply
	// FailureReply answers when no usable response came from the upstream. Default: 502 and
	// FailureText.
	FailureReply func(err error) Reply
	// MaxHeaderBytes bounds a request or response head. Default 64 KiB.
	MaxHeaderBytes int
	// HeaderTimeout bounds the time from a head's first byte to its last. Default 10 s.
	HeaderTimeout time.Duration
	// FirstRequestTimeout bounds the wait for the first byte on a new connection. Default 60 s.
	FirstRequestTimeout time.Duration
	// IdleTimeout bounds the wait for the next request. Default 65 min, which is longer than the
	// gateway's own (Envoy: 1 h). So the gateway closes first, and no request meets a closing
	// connection.
	IdleTimeout time.Duration
	// StallTimeout bounds a write that makes no progress if no timer of the request does. Default 5
	// min.
	StallTimeout time.Duration
	// MaxConns bounds the client connections. One of HTTP/2 counts as three, because of its memory.
	// Default 65536, and never more than half of the file descriptors that the process may have.
	// Beyond it, a connection without a request is closed for a new one. If all have requests, the
	// new connection waits until a response has ended.
	MaxConns int
	// MaxStuckBytes bounds what waits over HTTP/2 for peers that do not read, and for connections
	// to upstreams, of all requests together. Beyond it, those that have been stuck for the longest
	// end. Default 64 MiB.
	MaxStuckBytes int64
	// OnConnLimit, if set, is called from time to time while a new connection waits because all
	// others (conns of them) have requests.
	OnConnLimit func(conns int)
	// OnPanic, if set, is called after a panic, in the Handler or in this package, on any
	// goroutine. The request gets 500, or its connection is closed, and the process continues. If
	// it is not set, the process ends.
	OnPanic func(value any, stack []byte)
	// StripResponse names fields that are removed from the answers of upstreams: from their heads,
	// and over HTTP/2 from their trailers. Over HTTP/1.1, trailers are passed on as they come.
	StripResponse []string
	// Stripped, if set, is called with each field that is removed, on the goroutine of the
	// exchange, and with Request.Started. The strings are valid during the call only. If it returns
	// true for one, so is Result.Marked.
	Stripped func(name, value string, started time.Time) (mark bool)
	// TLS, if set, makes ServeTLS possible. Its GetCertificate is called for every handshake.
	TLS *tls.Config

	redirects  Redirector // the Handler, when it is one
	reviews    Reviewer
	idleEnough time.Duration
	headBytes  int           // the limit of partialHeads
	windows    h2windows     // for tests; zero is the default
	lane       chan struct{} // see h2conn.busy
	lingerFor  time.Duration // how long a polite close swallows what the client still sends
	once       sync.Once     // see init

	mu sync.Mutex // see serverLife and serverConns
	serverLife
	serverConns
	serverCounts
	heads partialHeads
	stuck stuckBytes
}

// serverLife is how far a server is from its end.
type serverLife struct {
	base      context.Context
	cancel    context.CancelFunc
	listeners map[net.Listener]struct{} // guarded by mu
	draining  atomic.Bool
	stopped   atomic.Bool
	empty     chan struct{} // closed when draining and the last connection went
}

// serverConns are the connections of clients. mu guards all but the channel and oneLess.
type serverConns struct {
	conns   map[*clientConn]struct{}
	heavy   int           // how many connections those of HTTP/2 count for in addition
	waiting int           // accepted connections that wait for room
	room    chan struct{} // has a token when a connection went while others wait
	told    time.Time     // when OnConnLimit was called
	oneLess atomic.Bool   // one waits, and no connection is idle: the next response ends its connection
}

// serverCounts are what Upgraded, Rejected, Panics and Evicted return.
type serverCounts struct {
	upgraded atomic.Int64
	rejected atomic.Int64
	panics   atomic.Int64
	evicted  atomic.Int64
}

// h2windows are what a peer may send before it is forwarded.
type h2windows struct {
	first int64 // on a stream, until bytes of it were forwarded
	full  int64 // on a stream after that
	conn  int64 // on a connection; returned as soon as bytes arrive, so they bound no memory
}

// maxStuckBytes is the default of Server.MaxStuckBytes.
const maxStuckBytes = 64 << 20

// stuckBytes is what Server.MaxStuckBytes limits; see h2stuck.go.
type stuckBytes struct {
	bytes     atomic.Int64
	relieving atomic.Bool
}

func (s *Server) init() {
	s.once.Do(func() {
		if s.MaxHeaderBytes <= 0 {
			s.MaxHeaderBytes = 64 << 10
		}
		setDefault(&s.HeaderTimeout, 10*time.Second)
		setDefault(&s.FirstRequestTimeout, time.Minute)
		setDefault(&s.IdleTimeout, 65*time.Minute)
		setDefault(&s.lingerFor, 500*time.Millisecond)
		setDefault(&s.StallTimeout, 5*time.Minute)
		setDefault(&s.idleEnough, idleEnough)
		if s.headBytes <= 0 {
			s.headBytes = maxHeadBytes
		}
		if s.MaxStuckBytes <= 0 {
			s.MaxStuckBytes = maxStuckBytes
		}
		if s.TimeoutReply == nil {
			s.TimeoutReply = func(t Timer, after time.Duration) Reply {
				return Reply{Status: 504, Body: "request timeout"}
			}
		}
		if s.FailureReply == nil {
			s.FailureReply = func(err error) Reply { return Reply{Status: 502, Body: FailureText(err)} }
		}
		s.redirects, _ = s.Handler.(Redirector)
		s.reviews, _ = s.Handler.(Reviewer)
		s.MaxConns = boundConns(s.MaxConns)
		s.room = make(chan struct{}, 1)
		if s.lane == nil {
			s.lane = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))
		}
		s.listeners = map[net.Listener]struct{}{}
		s.conns = map[*clientConn]struct{}{}
		s.empty = make(chan struct{})
		s.base, s.cancel = context.WithCancel(context.Background())
	})
}

// traits adds what is known about the Handler.
func (s *Server) traits(t exchange.Traits) exchange.Traits {
	t.Redirects, t.Reviews = s.redirects != nil, s.reviews != nil
	return t
}

// replyTo is the answer with which an exchange ends.
func (s *Server) replyTo(e *exchange.Ending, r *Request) Reply {
	switch e.Cause {
	case Replied:
		return r.reply
	case TimedOut:
		return s.timeoutReply(e)
	case BadRequest:
		return Reply{Status: errChunk.status, Body: errChunk.text}
	}
	return s.failureReply(e.Err)
}

// strips reports whether a field is removed from the answer of an upstream to a request that began
// at started, shows it to Stripped, and notes what that says.
func (s *Server) strips(res *Result, started time.Time, name, value string) bool {
	for _, field := range s.StripResponse {
		if sameName(name, field) {
			if s.Stripped != nil && s.Stripped(name, value, started) {
				res.Marked = true
			}
			return true
		}
	}
	return false
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}
