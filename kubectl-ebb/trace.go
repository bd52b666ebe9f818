package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	view "ebb.dev/ebb/api/view/v1alpha1"
)

// traceOptions are the flags of `trace`.
type traceOptions struct {
	path, gateway, id string
	timeout           time.Duration
}

func (p *program) traceCommand() *cobra.Command {
	o := traceOptions{}
	c := &cobra.Command{
		Use:   "trace SERVICE",
		Short: "Send a request to a Service, and tell who had it, when and why",
		Long: `Send a request to a Service, and tell who had it, when and why.

It sends one GET to the URL of the Service, as a client does, and tells how long the connection, the
gateway, the pod and its container took. If the request waited for a pod from zero, it waits a few
seconds until the cold start is known, and shows its phases. With --id it sends nothing, and looks
for the cold start or the record of a request with that trace id.

Whether the request met an activator is known of a cold start, and of the mode at that moment
otherwise.`,
		Example: `  kubectl ebb trace hello
  kubectl ebb trace hello --path /cart?item=7
  kubectl ebb trace hello --gateway 192.0.2.7:80      # without DNS for the Service's domain
  kubectl ebb trace hello --id 4bf92f3577b34da6a3ce929d0e0e4736`,
		Args:              cobra.MatchAll(cobra.ExactArgs(1)),
		ValidArgsFunction: p.completeServices,
		RunE: func(c *cobra.Command, args []string) error {
			if !strings.HasPrefix(o.path, "/") {
				return fmt.Errorf("--path %q: it must begin with /", o.path)
			}
			if o.timeout <= 0 {
				return fmt.Errorf("--timeout %v: it must be above 0", o.timeout)
			}
			a, err := p.access()
			if err != nil {
				return err
			}
			var told *traced
			if o.id != "" {
				told, err = a.traceOf(c.Context(), args[0], o.id)
			} else {
				told, err = a.trace(c.Context(), args[0], o)
			}
			if err != nil {
				return err
			}
			if p.output == "json" {
				return writeJSON(p.out, told)
			}
			return told.write(p.out)
		},
	}
	c.Flags().StringVar(&o.path, "path", "/", "path and query of the request")
	c.Flags().StringVar(&o.gateway, "gateway", "", "address of the gateway, host or host:port, if the Service's domain has no DNS")
	c.Flags().StringVar(&o.id, "id", "", "send nothing; tell of the request with this trace id")
	c.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait for the response")
	p.addOutput(c)
	return c
}

// traceOf looks for the cold start, or the record, with a trace id.
func (a *access) traceOf(ctx context.Context, name, id string) (*traced, error) {
	v, err := a.viewOf(ctx, name)
	if err != nil {
		if _, missing := a.ebb.ServingV1().Services(a.namespace).Get(ctx, name, metav1.GetOptions{}); missing != nil {
			return nil, a.noService(name, missing)
		}
		return nil, errors.New(strings.TrimSuffix(whyNoView(err), "."))
	}
	for i := range v.ColdStarts {
		if c := &v.ColdStarts[i]; strings.EqualFold(c.TraceID, id) {
			return &traced{Service: name, TraceID: c.TraceID, Began: c.At, TotalMs: c.TotalMs, Cold: c}, nil
		}
	}
	if c := callOf(v, id); c != nil {
		return &traced{Service: name, TraceID: c.TraceID, Began: c.At, TotalMs: c.WaitedMs + c.RanMs, Call: c}, nil
	}
	return nil, fmt.Errorf("nothing that is remembered of %s has the trace id %s: only the newest %d cold starts are, and the newest %d records of requests",
		name, id, view.MaxColdStarts, view.MaxCalls)
}

// coldKnown is how long a cold start may take to be known: the activator asks for its steps three
// seconds after the response, and tells them within one.
const coldKnown = 12 * time.Second

// trace sends a request and tells what became of it.
func (a *access) trace(ctx context.Context, name string, o traceOptions) (*traced, error) {
	service, err := a.ebb.ServingV1().Services(a.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, a.noService(name, err)
	}
	if service.Status.URL == nil {
		return nil, fmt.Errorf("%s has no URL yet; see `kubectl ebb explain %s`", name, name)
	}
	before := a.modes(ctx, name)
	told, err := send(ctx, service.Status.URL.URL().Scheme, service.Status.URL.Host, o)
	if err != nil {
		return nil, err
	}
	told.Service, told.Modes = name, before
	// A request that waited for a pod takes longer than this; one that did not has no cold start.
	if told.TotalMs >= 20 && before.cold() {
		told.Cold, told.Note = a.awaitCold(ctx, name, told.TraceID)
	}
	told.Call = a.awaitCall(ctx, name, told.TraceID)
	return told, nil
}

// callKnown is how long the record of a request may take to be known: queue-proxy tells it within a
// second.
const callKnown = 3 * time.Second

// awaitCall returns the record of a trace, nil if there is none.
func (a *access) awaitCall(ctx context.Context, name, id string) *view.Call {
	ctx, cancel := context.WithTimeout(ctx, callKnown)
	defer cancel()
	for {
		v, err := a.viewOf(ctx, name)
		if err != nil && !apierrors.IsTooManyRequests(err) {
			return nil
		}
		if c := callOf(v, id); c != nil {
			return c
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(250 * time.Millisecond):
		}
	}
}

func callOf(v *view.ServiceView, id string) *view.Call {
	if v == nil {
		return nil
	}
	for i := range v.Calls {
		if strings.EqualFold(v.Calls[i].TraceID, id) {
			return &v.Calls[i]
		}
	}
	return nil
}

// awaitCold returns the cold start of a trace, or why it is not known.
func (a *access) awaitCold(ctx context.Context, name, id string) (*view.ColdStart, string) {
	ctx, cancel := context.WithTimeout(ctx, coldKnown)
	defer cancel()
	for {
		told, err := a.traceOf(ctx, name, id)
		if err == nil && told.Cold != nil {
			return told.Cold, ""
		}
		if _, err := a.viewOf(ctx, name); err != nil && ctx.Err() == nil && !apierrors.IsTooManyRequests(err) {
			return nil, whyNoView(err)
		}
		select {
		case <-ctx.Done():
			return nil, "The autoscaler was told of no cold start with this trace id."
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// modes are how a Service's revisions were reached before the request.
type modes []mode

type mode struct {
	Revision string `json:"revision"`
	Mode     string `json:"mode"`
	Ready    int32  `json:"readyPods"`
}

// cold reports whether a request may have had to wait for a pod.
func (m modes) cold() bool {
	for _, one := range m {
		if one.Ready == 0 {
			return true
		}
	}
	return false
}

// modes reads how the revisions with traffic are reached, nil if that cannot be read.
func (a *access) modes(ctx context.Context, name string) modes {
	about, err := a.gather(ctx, name)
	if err != nil {
		return nil
	}
	all := modes{}
	for _, r := range about.revisions {
		if r.scaler == nil || r.percent == 0 {
			continue
		}
		one := mode{Revision: r.Name, Mode: string(r.scaler.Status.Mode)}
		if n := r.scaler.Status.ActualScale; n != nil {
			one.Ready = *n
		}
		all = append(all, one)
	}
	return all
}

func (m mode) text() string {
	switch {
	case m.Ready == 0:
		return m.Revision + " had no ready pod, so an activator held its requests"
	case autoscaling.Mode(m.Mode) == autoscaling.ModeProxy:
		return m.Revision + " had " + pods(m.Ready) + ", behind an activator"
	}
	return m.Revision + " had " + pods(m.Ready) + ", which the gateway reaches directly"
}

// send sends one request through the gateway and times it.
func send(ctx context.Context, scheme, host string, o traceOptions) (*traced, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	ids := make([]byte, 24)
	rand.Read(ids) // never fails
	told := &traced{URL: scheme + "://" + host + o.path, TraceID: hex.EncodeToString(ids[:16])}
	watch := &stopwatch{}
	request, err := http.NewRequestWithContext(watch.trace(ctx), http.MethodGet, told.URL, nil)
	if err != nil {
		return nil, fmt.Errorf("--path %q: %w", o.path, err)
	}
	request.Header.Set("Traceparent", "00-"+told.TraceID+"-"+hex.EncodeToString(ids[16:])+"-01")
	request.Header.Set("User-Agent", "kubectl-ebb")
	request.Header.Set(names.RecordHeader, "1")
	transport := &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	if o.gateway != "" {
		port := map[string]string{"http": "80", "https": "443"}[scheme]
		address := o.gateway
		if _, _, err := net.SplitHostPort(address); err != nil {
			address = net.JoinHostPort(strings.Trim(address, "[]"), port)
		}
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	watch.began = time.Now()
	response, err := client.Do(request)
	if err != nil {
		return nil, whyNotSent(err, host, o)
	}
	err = discard(response.Body)
	ended := time.Now()
	told.Began, told.Status, told.TotalMs = watch.began.UTC(), response.StatusCode, since(watch.began, ended)
	told.ConnectMs, told.FirstByteMs = since(watch.began, watch.connected), since(watch.began, watch.firstByte)
	told.Gateway = watch.address
	told.Steps = serverTiming(response.Header.Values("Server-Timing"))
	if err != nil {
		told.Note = "The response broke off: " + err.Error()
	}
	return told, nil
}

// whyNotSent says what to do about a request that got no response.
func whyNotSent(err error, host string, o traceOptions) error {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return fmt.Errorf("%s has no address here: %w; name the gateway's with --gateway", host, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no response within %v; `kubectl ebb explain` tells whether a pod can start: %w", o.timeout, err)
	}
	return fmt.Errorf("the gateway at %s: %w", cmp.Or(o.gateway, host), err)
}
