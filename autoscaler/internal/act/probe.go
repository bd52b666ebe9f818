package act

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/wire"
)

// probeTimeout bounds one probe, maxProbes the number of concurrent probes.
const (
	probeTimeout = time.Second
	maxProbes    = 256
)

// Prober finds out who answers at a revision's public Service: its pods or the activators.
type Prober struct {
	// Domain is the cluster's domain.
	Domain string
	// HTTP1 and H2C send to Services of either protocol. Each probe needs a new connection, because
	// a kept one leads to an earlier endpoint of the Service.
	HTTP1, H2C http.RoundTripper
	// Without, if set, reports that a revision has no public Service: nobody reaches its pods past
	// the activators then. It is asked about names that are not known.
	Without func(context.Context, loop.Key) bool
	slots   chan struct{}
}

// NewProber returns a Prober for a cluster of the given domain.
func NewProber(domain string) *Prober {
	transport := func(h2c bool) *http.Transport {
		t := &http.Transport{DisableKeepAlives: true, Protocols: new(http.Protocols)}
		t.Protocols.SetHTTP1(!h2c)
		t.Protocols.SetUnencryptedHTTP2(h2c)
		return t
	}
	return &Prober{Domain: domain, HTTP1: transport(false), H2C: transport(true), slots: make(chan struct{}, maxProbes)}
}

// Probe implements loop.Prober.
func (p *Prober) Probe(key loop.Key, h2c bool, done func(zero.Probe)) {
	select {
	case p.slots <- struct{}{}:
	default:
		done(zero.ProbedOther) // it is asked again
		return
	}
	go func() {
		defer func() { <-p.slots }()
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		if p.activator(ctx, key, h2c) {
			done(zero.ProbedActivator)
		} else {
			done(zero.ProbedOther)
		}
	}()
}

func (p *Prober) activator(ctx context.Context, key loop.Key, h2c bool) bool {
	port, transport := 80, p.HTTP1
	if h2c {
		port, transport = 81, p.H2C
	}
	// The trailing dot keeps the resolver from trying its search list first.
	url := fmt.Sprintf("http://%s.%s.svc.%s.:%d%s", names.PublicService(key.Name), key.Namespace, p.Domain, port, wire.PathHealth)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	request.Host = fmt.Sprintf("%s.%s.svc.%s", names.PublicService(key.Name), key.Namespace, p.Domain)
	request.Header.Set(wire.HeaderNetworkProbe, wire.ProbeActivator)
	request.Header.Set("User-Agent", wire.AgentAutoscalerProbe)
	response, err := transport.RoundTrip(request)
	if unknown := new(net.DNSError); errors.As(err, &unknown) && unknown.IsNotFound && p.Without != nil {
		return p.Without(ctx, key)
	}
	if err != nil {
		return false
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64))
	return err == nil && response.StatusCode == http.StatusOK && string(body) == wire.ProbeActivator
}

// WithoutService is Prober.Without: it asks the API server, if hosts may rest.
func WithoutService(kube kubernetes.Interface, rest func() bool) func(context.Context, loop.Key) bool {
	return func(ctx context.Context, key loop.Key) bool {
		if !rest() {
			return false
		}
		_, err := kube.CoreV1().Services(key.Namespace).Get(ctx, names.PublicService(key.Name), metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
}
