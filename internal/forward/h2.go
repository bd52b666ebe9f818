package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

// HTTP/2 rides on net/http; the Handler, the timers and the Result are the same as for HTTP/1.1. A request that came over
// HTTP/2 goes to the upstream over HTTP/2 (prior knowledge, or TLS).

type h2Side struct {
	http  *http.Server
	srv   *Server
	conns chan net.Conn
	once  sync.Once
	stop  chan struct{}
}

// connKey is the context key under which a handler finds its connection.
type connKey struct{}

func (s *h2Side) init(srv *Server) {
	s.srv = srv
	s.conns = make(chan net.Conn)
	s.stop = make(chan struct{})
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:        http.HandlerFunc(s.exchange),
		MaxHeaderBytes: srv.MaxHeaderBytes,
		IdleTimeout:    srv.IdleTimeout,
		Protocols:      protocols,
		ErrorLog:       log.New(io.Discard, "", 0), // what it would say of a broken client, the Result says
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          1000,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
		},
		BaseContext: func(net.Listener) context.Context { return srv.base },
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			if t, ok := nc.(*tls.Conn); ok {
				nc = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, nc.(*h2Conn).c)
		},
	}
}

// Accept, Close and Addr make h2Side the listener from which the http.Server gets its connections.
func (s *h2Side) Accept() (net.Conn, error) {
	select {
	case nc := <-s.conns:
		return nc, nil
	case <-s.stop:
		return nil, net.ErrClosed
	}
}

func (s *h2Side) Close() error {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	return nil
}

func (s *h2Side) Addr() net.Addr { return &net.TCPAddr{} }

// serve runs one HTTP/2 connection to its end; read is what was already taken from it.
func (s *h2Side) serve(c *conn, read []byte) {
	c.state.Store(connActive)
	c.nc.SetDeadline(time.Time{})
	var h *h2Conn
	nc := c.nc
	if c.tls != nil {
		h = c.tls.NetConn().(*h2Conn)
	} else {
		h = &h2Conn{Conn: nc, c: c, prefix: bytes.Clone(read), closed: make(chan struct{})}
		nc = h
	}
	c.in, c.out, c.rb = nil, nil, nil
	s.once.Do(func() { go s.http.Serve(s) })
	select {
	case s.conns <- nc:
		<-h.closed
	case <-s.stop:
	}
}

// shutdown sends GOAWAY on every connection; streams in flight finish.
func (s *h2Side) shutdown() {
	go s.http.Shutdown(s.srv.base)
}

// h2Conn is a connection handed to net/http: it gives back what was read ahead and tells when it was closed.
type h2Conn struct {
	net.Conn
	c      *conn
	prefix []byte
	once   sync.Once
	closed chan struct{}
}

func (c *h2Conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *h2Conn) Read(b []byte) (int, error) {
	if len(c.prefix) > 0 {
		n := copy(b, c.prefix)
		c.prefix = c.prefix[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// h2Upstream is the HTTP/2 side of an Upstream.
type h2Upstream struct {
	once sync.Once
	rt   *http.Transport
}

func (u *Upstream) h2Transport() *http.Transport {
	u.h2.once.Do(func() {
		protocols := new(http.Protocols)
		protocols.SetHTTP2(true)
		protocols.SetUnencryptedHTTP2(true)
		u.h2.rt = &http.Transport{
			Protocols:          protocols,
			DisableCompression: true,
			IdleConnTimeout:    u.options.IdleTimeout,
			MaxIdleConns:       u.options.MaxIdle,
			TLSClientConfig:    u.options.TLS,
			DialContext:        u.dialH2,

			ExpectContinueTimeout: continueWait,
			HTTP2: &http.HTTP2Config{
				MaxReadFrameSize:          64 << 10,
				MaxReceiveBufferPerStream: 1 << 20,
				SendPingTimeout:           30 * time.Second,
			},
		}
	})
	return u.h2.rt
}

func (h *h2Upstream) close() {
	h.once.Do(func() {})
	if h.rt != nil {
		h.rt.CloseIdleConnections()
	}
}

type h2Exchange struct {
	req    *http.Request
	remote netip.AddrPort
	local  net.Addr
	ctx    context.Context
	cancel context.CancelCauseFunc
	r      *Request

	mu        sync.Mutex
	timer     *time.Timer
	lastWrite time.Time
	started   atomic.Bool
	over      bool
}

func (x *h2Exchange) context() context.Context {
	x.arm()
	return x.ctx
}

// arm sets the one timer to the next deadline. It is called when a deadline may have changed.
func (x *h2Exchange) arm() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	end, t := x.r.deadline(x.lastWrite, x.started.Load())
	if t == NoTimer {
		if x.timer != nil {
			x.timer.Stop()
		}
		return
	}
	left := time.Until(end)
	if x.timer == nil {
		x.timer = time.AfterFunc(left, x.fire)
	} else {
		x.timer.Reset(left)
	}
}

func (x *h2Exchange) fire() {
	x.mu.Lock()
	end, t := x.r.deadline(x.lastWrite, x.started.Load())
	over := x.over
	x.mu.Unlock()
	if over || t == NoTimer {
		return
	}
	if time.Now().Before(end) {
		x.arm()
		return
	}
	x.cancel(&TimerError{t, x.r.timeout(t)})
}

func (x *h2Exchange) end() {
	x.mu.Lock()
	x.over = true
	if x.timer != nil {
		x.timer.Stop()
	}
	x.mu.Unlock()
	x.cancel(context.Canceled)
}

func (x *h2Exchange) wrote(now time.Time) {
	x.mu.Lock()
	x.lastWrite = now
	x.mu.Unlock()
}

func (s *h2Side) exchange(w http.ResponseWriter, req *http.Request) {
	c := req.Context().Value(connKey{}).(*conn)
	r := &Request{Started: time.Now(), c: c}
	ctx, cancel := context.WithCancelCause(req.Context())
	x := &h2Exchange{req: req, remote: c.remote, local: c.nc.LocalAddr(), ctx: ctx, cancel: cancel, r: r}
	r.h2 = x
	res := &Result{}
	v := s.srv.Handler.Admit(r)
	err := s.run(x, w, v, res)
	x.end()
	res.Duration = time.Since(r.Started)
	s.srv.Handler.Done(r, res)
	if err != nil && x.started.Load() {
		panic(http.ErrAbortHandler) // resets the stream: the client must not take this for a whole response
	}
}

// reconsidered carries Reconsider's new verdict out of an attempt.
type reconsidered struct{ verdict Verdict }

func (*reconsidered) Error() string { return "the response was reconsidered" }

func (s *h2Side) run(x *h2Exchange, w http.ResponseWriter, v Verdict, res *Result) error {
	x.arm()
	for tries := 0; ; tries++ {
		if err := x.reason(); err != nil {
			return s.finish(x, w, res, err)
		}
		if v.Upstream == nil {
			res.Cause = Replied
			s.reply(x, w, &v.Reply, res)
			return nil
		}
		err := s.forward(x, w, v.Upstream, res)
		var dial *DialError
		if rc, ok := s.srv.Handler.(Rechooser); ok && errors.As(err, &dial) && tries < 16 && x.reason() == nil {
			v = rc.Rechoose(x.r, err)
			continue
		}
		if err == nil {
			res.Cause = Completed
			return nil
		}
		if a, ok := err.(*reconsidered); ok {
			v = a.verdict
			continue
		}
		if why := x.reason(); why != nil {
			err = why
		}
		return s.finish(x, w, res, err)
	}
}

// goAway asks the client to open its next stream elsewhere: net/http makes a GOAWAY of the field and does not send it.
func (s *h2Side) goAway(h http.Header) {
	if s.srv.draining.Load() {
		h.Set("Connection", "close")
	}
}

// reason is why the exchange has to end, if it has.
func (x *h2Exchange) reason() error {
	if x.ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(x.ctx)
	var timer *TimerError
	if errors.As(cause, &timer) {
		return timer
	}
	return ErrClientGone
}

func (s *h2Side) finish(x *h2Exchange, w http.ResponseWriter, res *Result, err error) error {
	res.Err = err
	var reply Reply
	var timer *TimerError
	switch {
	case err == ErrClientGone:
		res.Cause = ClientGone
		return err
	case errors.As(err, &timer):
		res.Cause, res.Timer = TimedOut, timer.Timer
		reply = s.srv.TimeoutReply(timer.Timer, timer.After)
	default:
		res.Cause = UpstreamFailed
		reply = s.srv.FailureReply(err)
	}
	if x.started.Load() {
		return err
	}
	s.reply(x, w, &reply, res)
	return err
}

func (s *h2Side) reply(x *h2Exchange, w http.ResponseWriter, p *Reply, res *Result) {
	h := w.Header()
	contentType := p.ContentType
	if contentType == "" {
		contentType = "text/plain; charset=utf-8"
	}
	h.Set("Content-Type", contentType)
	s.goAway(h)
	for _, f := range p.Header {
		h.Add(f.Name, f.Value)
	}
	res.Status = p.Status
	res.ResponseBytes = int64(len(p.Body))
	w.WriteHeader(p.Status)
	if x.req.Method != http.MethodHead {
		io.WriteString(w, p.Body)
	}
}

func (s *h2Side) forward(x *h2Exchange, w http.ResponseWriter, up *Upstream, res *Result) error {
	counted := &countingBody{ReadCloser: x.req.Body}
	defer func() { res.RequestBytes = counted.n.Load() }()
	out := x.outgoing(up, counted)
	resp, err := up.h2Transport().RoundTrip(out)
	if err != nil {
		return fmt.Errorf("forward to %s: %w", up.addr, err)
	}
	defer resp.Body.Close()
	if rc, ok := s.srv.Handler.(Reconsiderer); ok {
		replayable := x.req.ContentLength == 0 || counted.n.Load() == 0
		v, again := rc.Reconsider(x.r, &Response{Status: resp.StatusCode, Replayable: replayable, h2: resp.Header})
		if again && replayable {
			return &reconsidered{v}
		}
	}
	now := time.Now()
	res.FirstByte = now.Sub(x.r.Started)
	res.Status = resp.StatusCode
	dst := w.Header()
	for name, values := range resp.Header {
		if !h2Dropped(name) {
			dst[name] = values
		}
	}
	announced := len(resp.Trailer)
	if announced > 0 {
		names := make([]string, 0, announced)
		for name := range resp.Trailer {
			names = append(names, name)
		}
		dst.Add("Trailer", strings.Join(names, ", "))
	}
	for _, name := range s.srv.StripResponse {
		dst.Del(name)
	}
	for _, a := range x.r.added {
		dst.Add(a.Name, a.Value)
	}
	s.goAway(dst)
	x.started.Store(true)
	w.WriteHeader(resp.StatusCode)
	// A response of known length leaves in one go. Of a stream, what is there is flushed when nothing followed it for a moment: a
	// unary call's head, message and trailers arrive together and should leave together.
	endless := resp.ContentLength == -1
	fw := &flushWriter{w: w, control: http.NewResponseController(w)}
	defer fw.stop()
	if endless {
		fw.later()
	}
	x.wrote(now)
	if x.r.Timeouts.Idle > 0 || x.r.Timeouts.ResponseStart > 0 {
		x.arm()
	}
	big := largeBuffers.Get().(*[]byte)
	defer largeBuffers.Put(big)
	for {
		n, err := resp.Body.Read(*big)
		if n > 0 {
			if werr := fw.write((*big)[:n], endless && err == nil); werr != nil {
				return ErrClientGone
			}
			res.ResponseBytes += int64(n)
			if x.r.Timeouts.Idle > 0 {
				x.wrote(time.Now())
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the response body of %s: %w", up.addr, err)
		}
	}
	for name, values := range resp.Trailer {
		key := name
		if len(resp.Trailer) != announced || dst.Get("Trailer") == "" {
			key = http.TrailerPrefix + name
		}
		for _, v := range values {
			dst.Add(key, v)
		}
	}
	return nil
}

// outgoing builds the upstream's request from the client's and the Handler's edits.
func (x *h2Exchange) outgoing(up *Upstream, body *countingBody) *http.Request {
	in := x.req
	out := in.WithContext(x.ctx)
	u := *in.URL
	u.Scheme, u.Host = "http", up.addr
	if up.options.TLS != nil {
		u.Scheme = "https"
	}
	out.URL = &u
	out.RequestURI = ""
	out.Close = false
	out.Header = make(http.Header, len(in.Header)+len(x.r.edits))
	for name, values := range in.Header {
		if !h2Dropped(name) {
			out.Header[name] = values
		}
	}
	if httpguts.HeaderValuesContainsToken(in.Header["Te"], "trailers") {
		out.Header["Te"] = []string{"trailers"}
	}
	for _, e := range x.r.edits {
		switch {
		case strings.EqualFold(e.name, "Host"):
			out.Host = e.value
		case e.remove:
			out.Header.Del(e.name)
		case e.add:
			out.Header[http.CanonicalHeaderKey(e.name)] = append(out.Header.Values(e.name)[:len(out.Header.Values(e.name)):len(out.Header.Values(e.name))], e.value)
		default:
			out.Header.Set(e.name, e.value)
		}
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = []string{""} // keeps the transport from adding its own
	}
	if x.r.deferBody && in.ContentLength != 0 {
		out.Header.Set("Expect", "100-continue")
	}
	out.Body = body
	if in.ContentLength == 0 {
		out.Body = http.NoBody
	}
	return out
}

// h2Dropped: connection-specific fields have no place in HTTP/2 (RFC 9113 section 8.2.2).
func h2Dropped(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Te",
		"Proxy-Authenticate", "Proxy-Authorization":
		return true
	case "Expect": // answered by net/http when the body is first read
		return true
	}
	return false
}

// flushWriter flushes a stream's pieces a moment after they were written, unless more came meanwhile.
type flushWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController

	mu      sync.Mutex
	timer   *time.Timer
	pending bool
}

const flushAfter = 150 * time.Microsecond

func (f *flushWriter) write(b []byte, flushLater bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.w.Write(b); err != nil {
		return err
	}
	if flushLater {
		f.laterLocked()
	}
	return nil
}

func (f *flushWriter) later() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.laterLocked()
}

func (f *flushWriter) laterLocked() {
	if f.pending {
		return
	}
	f.pending = true
	if f.timer == nil {
		f.timer = time.AfterFunc(flushAfter, f.flush)
	} else {
		f.timer.Reset(flushAfter)
	}
}

func (f *flushWriter) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending {
		f.pending = false
		_ = f.control.Flush() // a client that is gone is noticed by the next write
	}
}

// stop ends flushing: after the handler has returned, the writer is not ours any more.
func (f *flushWriter) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = false
	if f.timer != nil {
		f.timer.Stop()
	}
}

type countingBody struct {
	io.ReadCloser
	n atomic.Int64
}

// Close leaves the body open: it may have to be sent again, and net/http closes it after the exchange.
func (b *countingBody) Close() error { return nil }

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// dialH2 opens a connection for the transport, which adds TLS itself.
func (u *Upstream) dialH2(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.options.DialTimeout)
	defer cancel()
	dial := u.options.Dial
	if dial == nil {
		dial = dialTCP
	}
	nc, err := dial(ctx, u.addr)
	if err != nil {
		return nil, &DialError{u.addr, err}
	}
	return nc, nil
}
