// Package coap lets CoAP clients call services: over UDP, and over DTLS with keys that they share
// with the entry.
//
// Owns: two sockets, a session for each peer, and what is in flight, all bounded. Reads: the keys.
// Writes: HTTP requests to the gateway, with the host that Uri-Host names. Never: is a proxy to
// anywhere else; keeps an answer longer than the transfer of it takes.
package coap

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"ebb.dev/ebb/coap/internal/memory"
	"ebb.dev/ebb/coap/internal/peers"
	"ebb.dev/ebb/internal/run"
)

// Options are where the entry listens and what it may use. A bound of 0 is the default.
type Options struct {
	Plain  string // address for CoAP over UDP; "" is none
	Secure string // address for CoAP over DTLS; "" is none
	// Gateway is host:port of the HTTP server that all requests go to.
	Gateway string
	// Keys are the keys of clients, by identity. It is asked at each handshake.
	Keys func() map[string][]byte
	Log  *slog.Logger

	Peers        int           // peers of each socket at a time (512)
	Requests     int           // requests in flight (512)
	PerPeer      int           // of one peer (64)
	Observations int           // observations (256)
	Body         int           // bytes of a request's body (64 KiB)
	Answer       int           // bytes of an answer's body (256 KiB); an event may have 1/32 of it
	Memory       int           // bytes of all bodies (16 MiB)
	Rate         int           // datagrams in a second from one address (200)
	Timeout      time.Duration // from the request to its answer (90 s)
}

func (o Options) withDefaults() Options {
	o.Peers, o.Requests, o.PerPeer = cmp.Or(o.Peers, 512), cmp.Or(o.Requests, 512), cmp.Or(o.PerPeer, 64)
	o.Observations = cmp.Or(o.Observations, 256)
	o.Body, o.Answer, o.Memory = cmp.Or(o.Body, 64<<10), cmp.Or(o.Answer, 256<<10), cmp.Or(o.Memory, 16<<20)
	o.Rate, o.Timeout = cmp.Or(o.Rate, 200), cmp.Or(o.Timeout, 90*time.Second)
	return o
}

// event is how many bytes an event may have.
func (o Options) event() int { return o.Answer / 32 }

// Entry is the sockets and what all peers share.
type Entry struct {
	options      Options
	plain        *peers.Listener
	secure       *peers.Listener
	http         *http.Transport
	messages     *pool.Pool
	memory       *memory.Budget
	requests     *semaphore.Weighted
	observations *semaphore.Weighted
	metrics      *metrics

	mutex    sync.Mutex
	sessions map[*session]struct{}
}

// datagramSize is the largest datagram that is read: what Ethernet carries. With a block of 1024
// bytes, messages are shorter.
const datagramSize = 1500

// New opens the sockets and registers the metrics.
func New(o Options, registry prometheus.Registerer) (*Entry, error) {
	o = o.withDefaults()
	e := &Entry{
		options: o, messages: pool.New(256, 2048), memory: memory.New(int64(o.Memory)), sessions: map[*session]struct{}{},
		requests: semaphore.NewWeighted(int64(o.Requests)), observations: semaphore.NewWeighted(int64(o.Observations)),
	}
	e.metrics = newMetrics(e)
	if err := registry.Register(e.metrics); err != nil {
		return nil, err
	}
	e.http = &http.Transport{
		DialContext:        (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 32 << 10, ReadBufferSize: 2 << 10, WriteBufferSize: 2 << 10,
	}
	bounds := peers.Options{MaxPeers: o.Peers, Unproven: o.Peers, NewPeers: 500, Burst: 2 * o.Rate, Queue: 16,
		Size: datagramSize, Datagrams: rate.Limit(o.Rate), Dropped: e.metrics.drop}
	var err error
	if o.Plain != "" {
		if e.plain, err = peers.Listen(o.Plain, bounds); err != nil {
			return nil, err
		}
	}
	if o.Secure != "" {
		// A handshake costs more than a datagram, and anybody may begin one.
		bounds.Unproven, bounds.NewPeers = max(1, o.Peers/4), 100
		if e.secure, err = peers.Listen(o.Secure, bounds); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Plain and Secure are the addresses of the sockets, nil for one that is not open.
func (e *Entry) Plain() net.Addr  { return addressOf(e.plain) }
func (e *Entry) Secure() net.Addr { return addressOf(e.secure) }

func addressOf(l *peers.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

// Run serves until ctx is done, and then ends all sessions.
func (e *Entry) Run(ctx context.Context) error {
	if e.plain == nil && e.secure == nil {
		return errors.New("the CoAP entry has no address to listen on")
	}
	defer e.http.CloseIdleConnections()
	parts := []run.Part{{Name: "expiry", Run: e.expire}}
	if e.plain != nil {
		parts = append(parts, run.Part{Name: "CoAP over UDP", Run: func(ctx context.Context) error {
			return e.plain.Run(ctx, func(p *peers.Peer) { e.serve(ctx, p, p) })
		}})
	}
	if e.secure != nil {
		parts = append(parts, run.Part{Name: "CoAP over DTLS", Run: func(ctx context.Context) error {
			return e.secure.Run(ctx, func(p *peers.Peer) { e.serveSecure(ctx, p) })
		}})
	}
	return run.All(ctx, parts...)
}

// expire retransmits, and ends what has waited too long, about once in a second.
func (e *Entry) expire(ctx context.Context) error {
	return run.Every(ctx, time.Second, func(now time.Time) error {
		for _, s := range e.all() {
			s.expire(now)
		}
		for _, l := range []*peers.Listener{e.plain, e.secure} {
			if l != nil {
				l.Sweep(now)
			}
		}
		return nil
	})
}

func (e *Entry) all() []*session {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	all := make([]*session, 0, len(e.sessions))
	for s := range e.sessions {
		all = append(all, s)
	}
	return all
}
