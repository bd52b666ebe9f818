// Package sidecar puts queue-proxy together and takes it down in order.
//
// Owns: the listeners and the goroutines of the process. Reads: what it is told (wire.Sidecar).
// Writes: logs. Never: decides anything itself.
//
// Up: the data port first, since everybody waits for it; then the rest; then the first probe of the
// user container and the announcement. Down (SIGTERM): readiness fails, the announcement is
// withdrawn, the drain runs (package drain), the servers finish what is in flight, upgraded
// connections get a minute, and the process ends.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/tracing"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/queue-proxy/internal/announce"
	"ebb.dev/ebb/queue-proxy/internal/certs"
	"ebb.dev/ebb/queue-proxy/internal/chain"
	"ebb.dev/ebb/queue-proxy/internal/drain"
	"ebb.dev/ebb/queue-proxy/internal/podkey"
	"ebb.dev/ebb/queue-proxy/internal/probe"
	"ebb.dev/ebb/queue-proxy/internal/records"
	"ebb.dev/ebb/queue-proxy/internal/sleep"
	"ebb.dev/ebb/queue-proxy/internal/stat"
	"ebb.dev/ebb/queue-proxy/internal/told"
	"ebb.dev/ebb/queue-proxy/internal/usermetrics"
	"ebb.dev/ebb/wire"
)

const (
	upgradedGrace   = time.Minute
	withdrawTimeout = 3 * time.Second
	certInterval    = time.Minute // how often a certificate is looked for
)

// MemoryLimit is the soft limit of the process. Above it the garbage collector runs more often.
const MemoryLimit = 48 << 20

// Queue-proxy's queue is this many times its concurrency (contract section 5.3), and at most this
// heavy, so that a full queue leaves the garbage collector room.
const (
	waitingPerSlot = 10
	maxWaitBytes   = MemoryLimit / 2
)

// Sidecar is one running queue-proxy.
type Sidecar struct {
	cfg       *wire.Sidecar
	log       *slog.Logger
	server    *forward.Server
	gate      *chain.Gate
	user      *forward.Upstream
	probes    []probe.Spec // of the user container; all must pass
	prober    *probe.Prober
	drainer   *drain.Drainer
	reporter  *stat.Reporter
	announcer *announce.Announcer
	metrics   *usermetrics.Metrics
	tracer    *tracing.Tracer
	pusher    *otlp.Exporter // of metrics; nil for none
	files     *certs.Files
	certs     time.Duration     // between two looks for a certificate
	token     func() string     // of the revision; "" while there is none
	recorder  *records.Recorder // of records of requests; nil for none
	board     *told.Board       // of what the container tells; nil for one that tells nothing
	work      *told.Busy        // until when it is busy; nil for one that may not say so
	misspoke  atomic.Bool       // it said so in a way that is not understood
	// For a revision that sleeps, else nil.
	sleeper     *sleep.Sleeper
	spare       *time.Timer // of giveBack
	stopSleeper context.CancelFunc
	orders      wire.Guard // of the autoscaler
	started     time.Time

	userReady atomic.Pointer[time.Time] // nil before the container first passed

	ports  ports
	failed chan error
}

// Listen binds every port, the data port first, and builds the rest. It returns an error that names
// what could not be done.
func Listen(cfg *wire.Sidecar, log *slog.Logger) (*Sidecar, error) {
	s := &Sidecar{cfg: cfg, log: log, certs: certInterval, started: time.Now(), failed: make(chan error, 8)}
	var err error
	if s.ports.data, err = listen("requests", cfg.Port); err != nil {
		return nil, err
	}
	if err := s.build(); err != nil {
		s.closeListeners()
		return nil, err
	}
	return s, nil
}

// newUpstream leads to the user container.
func (s *Sidecar) newUpstream() *forward.Upstream {
	return forward.NewUpstream(net.JoinHostPort("127.0.0.1", strconv.Itoa(s.cfg.UserPort)), forward.UpstreamOptions{
		MaxIdle: maxIdle(s.cfg.Concurrency),
		// Where nobody listens a connection is refused at once. What takes longer is a pod that
		// gets no processor time, and the request has a timeout of its own.
		DialTimeout: 30 * time.Second,
		OnOverrun: func(answer string) {
			s.log.Warn("the container sent more than its response announced; its connections are closed after such responses from now on", "answer", answer)
		},
	})
}

func (s *Sidecar) build() error {
	cfg := s.cfg
	logf := func(format string, args ...any) { s.log.Warn(fmt.Sprintf(format, args...)) }
	s.user = s.newUpstream()
	s.token = tokenOf(cfg)
	s.prober = s.newProber()
	s.announcer = &announce.Announcer{
		Activators: cfg.Activators, Token: s.token, Logf: logf,
		Base: wire.Announcement{
			Namespace: cfg.Namespace, Revision: cfg.Revision, Pod: cfg.Pod, ProcessStarted: s.started,
			Address: netip.AddrPortFrom(cfg.PodIP, s.ports.data.Addr().(*net.TCPAddr).AddrPort().Port()),
		},
	}
	s.gate = chain.NewGate(chain.GateOptions{Slots: cfg.Concurrency, MaxWaiting: waitingPerSlot * cfg.Concurrency, MaxBytes: maxWaitBytes,
		Pod: cfg.Pod, Now: s.started, WarmUp: cfg.WarmUp, Offer: s.offer})
	s.drainer = drain.New(cfg.DrainQuiet, s.unfinished, s.drainChanged)
	s.announcer.Leaving = s.drainer.Draining
	action := forward.EndResponse
	if cfg.CutResponses {
		action = forward.CutResponse
	}
	c := &chain.Chain{
		Namespace: cfg.Namespace, Revision: cfg.Revision,
		Gate: s.gate, User: s.user, Ready: s.ready, Draining: s.drainer.Draining, Arrive: s.drainer.Arrive, Busy: cfg.BusyFor > 0,
		Activator: s.announcer.Activator,
		Timeouts:  forward.Timeouts{ResponseStart: cfg.ResponseStartTimeout, Idle: cfg.IdleTimeout, Total: cfg.Timeout, Action: action},
	}
	s.server = &forward.Server{
		Handler: c, TimeoutReply: chain.TimeoutReply, FailureReply: chain.FailureReply,
		StripResponse: []string{wire.HeaderRefused, wire.HeaderFailed}, MaxStuckBytes: 16 << 20,
		OnConnLimit: func(conns int) {
			s.log.Warn("connection limit reached: a new connection has to wait", "connections", conns)
		},
		OnPanic: func(v any, stack []byte) { s.log.Error("a connection failed", "panic", v, "stack", string(stack)) },
	}
	if err := s.buildStandby(); err != nil {
		return err
	}
	if s.sleeper != nil {
		c.Await, c.Asleep = s.sleeper.Await, s.asleep
	}
	if err := s.observe(c); err != nil {
		return err
	}
	s.reporter = &stat.Reporter{
		Source: s.gate, Namespace: cfg.Namespace, Revision: cfg.Revision, Token: s.token, Autoscaler: cfg.Autoscaler, Logf: logf, Busy: s.busy,
	}
	if s.sleeper != nil {
		s.reporter.Asleep, s.reporter.Hold = s.depth, s.sleeper.Settling
	}
	s.hear()
	return s.listenBeside()
}

// newProber asks the user container until it answers, and keeps what is asked in s.probes.
func (s *Sidecar) newProber() *probe.Prober {
	cfg := s.cfg
	s.probes = probe.Specs(cfg.Probes, cfg.DetectHTTP2)
	if len(s.probes) == 0 {
		s.probes = []probe.Spec{probe.TCP(cfg.UserPort)}
	}
	startup := probe.Specs(cfg.StartupProbes, cfg.DetectHTTP2)
	if !slices.ContainsFunc(s.probes, func(p probe.Spec) bool { return p.Port() == cfg.UserPort }) {
		// The probes ask another port than requests go to. Requests would come before somebody
		// listens there, such as KServe's agent, which stands before the container that is asked.
		startup = append(startup, probe.TCP(cfg.UserPort))
	}
	return probe.New(startup, s.probes)
}

// tokenOf returns the pod's token, as it is at each call.
func tokenOf(cfg *wire.Sidecar) func() string {
	token := cfg.Token
	if key := strings.TrimSpace(cfg.Key); key != "" {
		token = wire.PodToken([]byte(key), cfg.Revision)
	}
	if token == "" {
		return podkey.New(cfg.KeyFile, cfg.Revision).Token
	}
	return func() string { return token }
}

// maxIdle keeps as many connections to the container as requests can run (contract section 5.2, row
// 12).
func maxIdle(concurrency int) int {
	if concurrency > 0 {
		return concurrency
	}
	return 1000
}

// Addr is where requests are served; Addrs of the side servers are by name, for tests that let the
// system choose ports.
func (s *Sidecar) Addr() string { return s.ports.data.Addr().String() }

// Run serves until ctx (SIGTERM) ends, and then through the whole sequence of leaving.
func (s *Sidecar) Run(ctx context.Context) error {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	var telling sync.WaitGroup
	defer telling.Wait() // what was observed last is worth the two seconds that it may take at most
	defer stop()
	s.tell(inner, &telling)
	s.spawn("serve requests", func() error { return s.server.Serve(s.ports.data) })
	if s.ports.tls != nil {
		s.spawn("serve requests over TLS", func() error { return s.server.ServeTLS(s.ports.tls) })
	}
	if s.files != nil {
		go s.files.Watch(inner, s.certs, s.certChanged)
	}
	for _, b := range s.ports.side {
		s.spawn("serve "+b.name, func() error { return b.server.Serve(b.listener) })
	}
	if s.sleeper != nil {
		defer s.stopSleeper()
		s.spawn("serve the node agent", func() error { return s.sleeper.Serve(inner, s.ports.agent) })
	}
	go s.reporter.Run(inner)
	if s.board != nil {
		go s.board.Run(inner, s.asleep, func(format string, args ...any) { s.log.Warn(fmt.Sprintf(format, args...)) })
	}
	go s.reporter.Push(inner)
	go s.start(inner)
	s.log.Info("queue-proxy serves", "version", version.Version, "address", s.Addr(), "user", s.user.Addr(), "concurrency", s.cfg.Concurrency,
		"timeout", s.cfg.Timeout.String(), "listening_after", time.Since(s.started).String())
	select {
	case err := <-s.failed:
		s.server.Close()
		s.closeListeners()
		return err
	case <-ctx.Done():
	}
	s.leave(inner)
	return nil
}

func (s *Sidecar) spawn(what string, f func() error) {
	go func() {
		if err := f(); err != nil && !errors.Is(err, forward.ErrServerClosed) && !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("%s: %w", what, err)
		}
	}()
}

// start waits for the container and announces it.
func (s *Sidecar) start(ctx context.Context) {
	go s.announcer.Warm(ctx)
	if s.prober.Start(ctx) != nil {
		return
	}
	now := time.Now()
	s.log.Info("the container answers", "after", now.Sub(s.started).String())
	s.userReady.Store(&now)
	if !s.drainer.Draining() {
		s.announcer.Say(ctx, true, now)
	}
}

// drainChanged is told by the drainer; the announcement follows, and every response asks its client
// to go elsewhere.
func (s *Sidecar) drainChanged(draining bool) {
	s.server.SetDraining(draining)
	ready := s.userReady.Load()
	if ready == nil {
		return // nothing was announced
	}
	s.log.Info("draining", "on", draining)
	if draining && s.sleeper != nil {
		s.sleeper.Wake() // the container has to see SIGTERM, or its preStop hook
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), withdrawTimeout)
		defer cancel()
		s.announcer.Say(ctx, true, *ready) // it says what is true when it speaks
	}()
}

// unfinished is how many requests must end before the pod goes. A pod that sleeps wakes first, with
// the hook of its program, and those that waited for it come when it has.
func (s *Sidecar) unfinished() int {
	if s.sleeper != nil && s.sleeper.Waking() {
		s.drainer.Renew()
		return 1
	}
	return s.gate.Inside() - s.server.Upgraded()
}

// offer tells a refused activator of its slot.
func (s *Sidecar) offer(caller string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if !s.announcer.Offer(ctx, caller) {
		s.gate.Decline(caller)
	}
}

// leave is the way down.
func (s *Sidecar) leave(ctx context.Context) {
	begin := time.Now()
	if s.sleeper != nil {
		s.sleeper.End()
	}
	s.drainer.Terminate(ctx)
	s.log.Info("drained", "after", time.Since(begin).String())
	grace, cancel := context.WithTimeout(ctx, upgradedGrace)
	defer cancel()
	if err := s.server.Shutdown(grace); err != nil {
		s.log.Warn("some connections had to be cut", "error", err)
	}
	s.user.Close()
	quick, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, b := range s.ports.side {
		_ = b.server.Shutdown(quick) // a scrape in flight is no reason to stay
		b.server.Close()
	}
}
