// Package ready reports whether every gateway pod follows a plan.
//
// It probes the gateways. Each rule of a plan adds the plan's hash to requests, and the activator
// or queue-proxy that answers a probe returns the hash. A probe that returns the hash has gone the
// way of the user's next request, so that one will succeed too.
//
// Owns: the probes in flight and the state of each plan. Reads: the gateways' answers. Writes:
// nothing. Never: blocks its caller; keeps a plan that was forgotten; runs more than a bounded
// number of probes at once.
package ready

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/wire"
)

// Probe is one host on one set of gateway pods.
type Probe struct {
	Service string // namespace/name of the Service in front of the gateway's pods
	Port    int32  // of that Service
	Host    string
	TLS     bool
	// Redirect expects a redirect to https instead of an answer.
	Redirect bool
	// Backend, if not empty, is the spare backend that must answer.
	Backend string
	// AnyAnswer accepts any answer, as long as the gateway knows the host.
	AnyAnswer bool
	// Hash, if not empty, is wanted in place of the plan's.
	Hash string
	// Resting, if not empty, asks activators in place of gateway pods, as one of the gateways with
	// this visibility does that leads the host to them (wire.HeaderResting).
	Resting string
}

// Want is a plan and its probes.
type Want struct {
	Hash   string
	Probes []Probe
}

// same reports whether an answer about one is an answer about the other: the plan may be the same
// and the gateways others.
func (w Want) same(other Want) bool {
	return w.Hash == other.Hash && slices.Equal(w.Probes, other.Probes)
}

// Gateways finds the pods behind a gateway's Service.
type Gateways interface {
	// Addresses lists ip:port of every ready pod behind a port of the Service (namespace/name). It
	// fails if there is none.
	Addresses(ctx context.Context, service string, port int32) ([]string, error)
}

// Pace of the probes of a plan. It is fast at first, because gateways usually follow within tens of
// milliseconds, and slow if they do not follow for long.
const (
	firstPause  = 5 * time.Millisecond
	growth      = 1.5
	longestWait = 500 * time.Millisecond
	patience    = 30 * time.Second // afterwards:
	slowPause   = 5 * time.Second
	firstWord   = time.Second // then the reason is reported
	oneProbe    = 2 * time.Second
	atOnce      = 32
)

// Prober probes the gateways until each of its plans is live.
type Prober struct {
	gateways Gateways
	wake     func(types.NamespacedName)
	client   *http.Client
	slots    chan struct{}

	mu    sync.Mutex
	plans map[types.NamespacedName]*state
	ctx   context.Context // of the probes; set while it Runs
	group sync.WaitGroup
}

type state struct {
	want   Want
	live   bool
	why    string
	cancel context.CancelFunc
}

// New returns a Prober. It calls wake, from its own goroutine, when Check has a new answer: a plan
// became live, or there is a reason why not.
func New(gateways Gateways, wake func(types.NamespacedName)) *Prober {
	dialer := &net.Dialer{Timeout: oneProbe}
	return &Prober{
		gateways: gateways, wake: wake,
		client: &http.Client{
			Transport: &http.Transport{
				DialContext: dialer.DialContext, MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second,
				// The issuer of the certificate does not matter. The probe checks the way only.
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
				DisableKeepAlives: true, // a kept connection could use an old listener
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       oneProbe,
		},
		slots: make(chan struct{}, atOnce),
		plans: map[types.NamespacedName]*state{},
	}
}

// Through sends probes another way, before the first one.
func (p *Prober) Through(way http.RoundTripper) { p.client.Transport = way }

// Run allows probes until ctx ends, and returns when the last one has ended.
func (p *Prober) Run(ctx context.Context) {
	p.mu.Lock()
	p.ctx = ctx
	for key, s := range p.plans {
		s.cancel() // from before Run: probed again, now that there is a context
		delete(p.plans, key)
		p.wake(key)
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.ctx = nil // a Check that found it alive has begun its probes
	p.mu.Unlock()
	p.group.Wait()
	p.client.CloseIdleConnections()
}

// Check reports whether the plan of key is live, and if not, why. It starts to probe for a new
// plan. wake is called when to Check again.
func (p *Prober) Check(key types.NamespacedName, want Want) (live bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.plans[key]; ok {
		if s.want.same(want) {
			return s.live, s.why
		}
		s.cancel()
	}
	s := &state{want: want, why: "the gateways have just been told", cancel: func() {}}
	p.plans[key] = s
	if p.ctx == nil || p.ctx.Err() != nil {
		return false, s.why
	}
	ctx, cancel := context.WithCancel(p.ctx)
	s.cancel = cancel
	p.group.Go(func() {
		defer cancel()
		p.ask(ctx, key, s, want)
	})
	return false, s.why
}

// Known reports whether the Prober has a plan of key.
func (p *Prober) Known(key types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.plans[key]
	return ok
}

// Forget stops the probes for the plan of key. What was found out about it counts no more.
func (p *Prober) Forget(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.plans[key]; ok {
		s.cancel()
		delete(p.plans, key)
	}
}

func (p *Prober) ask(ctx context.Context, key types.NamespacedName, s *state, want Want) {
	passed := map[string]bool{}
	began, pause, told := time.Now(), firstPause, ""
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := p.round(ctx, want, passed)
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		if err == nil {
			s.live, s.why = true, ""
			p.mu.Unlock()
			p.wake(key)
			return
		}
		s.why = err.Error()
		p.mu.Unlock()
		if since := time.Since(began); since > firstWord && told == "" || since > patience && told != s.why {
			told = s.why
			p.wake(key)
		}
		if pause = time.Duration(float64(pause) * growth); pause > longestWait {
			pause = longestWait
		}
		if time.Since(began) > patience {
			pause = slowPause
		}
		timer.Reset(pause)
	}
}

// round probes every pod that has not passed yet. It returns the first failure.
func (p *Prober) round(ctx context.Context, want Want, passed map[string]bool) error {
	for _, probe := range want.Probes {
		addresses, err := p.gateways.Addresses(ctx, probe.Service, probe.Port)
		if err != nil {
			return err
		}
		for _, address := range addresses {
			id := address + " " + probe.Host + " " + probe.Backend
			if passed[id] {
				continue
			}
			select {
			case p.slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			err := p.one(ctx, probe, address, want.Hash)
			<-p.slots
			if err != nil {
				return err
			}
			passed[id] = true
		}
	}
	return nil
}

func (p *Prober) one(ctx context.Context, probe Probe, address, hash string) error {
	scheme := "http"
	if probe.TLS {
		scheme = "https"
	}
	client := p.client
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+wire.PathHealth, nil)
	if err != nil {
		return fmt.Errorf("probe of gateway pod %s: %w", address, err)
	}
	request.Host = probe.Host
	request.Header.Set(wire.HeaderNetworkProbe, wire.ProbeIngress)
	request.Header.Set("User-Agent", wire.AgentIngressProbe)
	if probe.Backend != "" {
		request.Header.Set(wire.HeaderBackend, probe.Backend)
	}
	pod := "gateway pod"
	if probe.Resting != "" {
		request.Header.Set(wire.HeaderResting, probe.Resting)
		pod = "activator"
	}
	if probe.Hash != "" {
		hash = probe.Hash
	}
	if t, ok := p.client.Transport.(*http.Transport); ok && probe.TLS {
		// The name in the handshake selects the listener.
		t = t.Clone()
		t.TLSClientConfig.ServerName = probe.Host
		client = &http.Client{Transport: t, CheckRedirect: p.client.CheckRedirect, Timeout: oneProbe}
		defer t.CloseIdleConnections()
	}
	response, err := client.Do(request)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op
		}
		return fmt.Errorf("%s %s cannot be reached for host %s: %w", pod, address, probe.Host, err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 4096))
	_ = response.Body.Close()
	return probe.wrong(response, hash, pod+" "+address)
}

// wrong says what is wrong with an answer to a probe, nil if nothing is.
func (p *Probe) wrong(response *http.Response, hash, from string) error {
	got := response.Header.Get(wire.HeaderNetworkHash)
	switch {
	case p.Redirect:
		if response.StatusCode/100 == 3 && strings.HasPrefix(response.Header.Get("Location"), "https://") {
			return nil
		}
		return fmt.Errorf("%s answers %d for host %s instead of a redirect to https", from, response.StatusCode, p.Host)
	// A gateway's own 404 means an unknown host. Envoy adds a header if the answer is the
	// backend's. An activator says that it does not know the host, either.
	case p.AnyAnswer && response.StatusCode < 500 && response.Header.Get(wire.HeaderResting) != wire.RestingUnknown &&
		(response.StatusCode != http.StatusNotFound || response.Header.Get("X-Envoy-Upstream-Service-Time") != ""):
		return nil
	case response.StatusCode == http.StatusOK && got == hash:
		return nil
	case got != "" && got != hash:
		return fmt.Errorf("%s follows an older plan for host %s", from, p.Host)
	default:
		return fmt.Errorf("%s answers %d for host %s", from, response.StatusCode, p.Host)
	}
}
