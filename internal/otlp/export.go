package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Protocols by which a collector is reached, as in config-observability.
const (
	HTTP = "http/protobuf"
	GRPC = "grpc"
)

// Target is where a kind of telemetry goes.
type Target struct {
	Protocol string // HTTP or GRPC
	// Endpoint is a URL or host:port; host:port and http:// are plain, https:// is over TLS. Over
	// HTTP an endpoint without a path gets the standard one of the signal.
	Endpoint string
	// RootCA is PEM of further authorities for https.
	RootCA string
}

// Export is where metrics go, and how often. Another Protocol than HTTP and GRPC pushes nothing.
type Export struct {
	Protocol string
	Endpoint string        // as in Target
	Interval time.Duration // 0 is DefaultInterval
	// Runtime is the least time between two exports of the metrics of the Go runtime and the
	// process; 0 is none.
	Runtime time.Duration
}

// Signal is what is exported.
type Signal struct{ path, method string }

// The signals.
var (
	Traces = Signal{"/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"}
	Meters = Signal{"/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"}
)

// exportTimeout bounds one attempt.
const exportTimeout = 10 * time.Second

// Exporter sends requests of one signal to one target.
type Exporter struct {
	url    string
	grpc   bool
	client *http.Client
}

// NewExporter reads the target. It opens no connection.
func NewExporter(t Target, s Signal) (*Exporter, error) {
	endpoint := t.Endpoint
	if !strings.Contains(endpoint, "://") {
		endpoint = "http://" + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("telemetry endpoint %q is neither host:port nor a URL of http or https", t.Endpoint)
	}
	e := &Exporter{}
	transport := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 90 * time.Second, Protocols: new(http.Protocols)}
	if t.RootCA != "" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM([]byte(t.RootCA)) {
			return nil, errors.New("the root certificates for the telemetry endpoint are no PEM")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	switch t.Protocol {
	case HTTP:
		transport.Protocols.SetHTTP1(true)
		if u.Path == "" || u.Path == "/" {
			u.Path = s.path
		}
	case GRPC:
		e.grpc = true
		transport.Protocols.SetHTTP2(true)
		transport.Protocols.SetUnencryptedHTTP2(true)
		u.Path = s.method
	default:
		return nil, fmt.Errorf("telemetry protocol %q is neither %s nor %s", t.Protocol, HTTP, GRPC)
	}
	e.url, e.client = u.String(), &http.Client{Transport: transport, Timeout: exportTimeout}
	return e, nil
}

// Transport replaces how the collector is reached, for tests.
func (e *Exporter) Transport(t http.RoundTripper) { e.client.Transport = t }

// Close closes what is idle.
func (e *Exporter) Close() { e.client.CloseIdleConnections() }

// RetryableError says that the same request may be accepted later.
type RetryableError struct{ Err error }

func (e *RetryableError) Error() string { return e.Err.Error() }
func (e *RetryableError) Unwrap() error { return e.Err }

// Export sends one request that Request made.
func (e *Exporter) Export(ctx context.Context, request []byte) error {
	contentType := "application/x-protobuf"
	if e.grpc {
		contentType = "application/grpc"
		frame := binary.BigEndian.AppendUint32(make([]byte, 1, 5+len(request)), uint32(len(request)))
		request = append(frame, request...)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(request))
	if err != nil {
		return fmt.Errorf("export to %s: %w", e.url, err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("User-Agent", "ebb")
	if e.grpc {
		r.Header.Set("Te", "trailers")
	}
	response, err := e.client.Do(r)
	if err != nil {
		return &RetryableError{fmt.Errorf("export to %s: %w", e.url, err)}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return &RetryableError{fmt.Errorf("export to %s: %w", e.url, err)}
	}
	if e.grpc && response.StatusCode == http.StatusOK {
		return e.grpcStatus(response)
	}
	if response.StatusCode/100 == 2 {
		return nil
	}
	err = fmt.Errorf("export to %s: it answered %s: %.200q", e.url, response.Status, body)
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &RetryableError{err}
	}
	return err
}

// grpcStatus reads the outcome of a unary call out of its trailers, or of its header where there is
// no body.
func (e *Exporter) grpcStatus(response *http.Response) error {
	fields := response.Trailer
	if fields.Get("Grpc-Status") == "" {
		fields = response.Header
	}
	code := fields.Get("Grpc-Status")
	if code == "0" {
		return nil
	}
	err := fmt.Errorf("export to %s: gRPC status %q: %.200q", e.url, code, fields.Get("Grpc-Message"))
	switch code {
	// CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, OUT_OF_RANGE, UNAVAILABLE,
	// DATA_LOSS: as the OTLP specification lists them.
	case "1", "4", "8", "10", "11", "14", "15":
		return &RetryableError{err}
	}
	return err
}

// DefaultInterval is the time between two exports of metrics where nothing is set.
const DefaultInterval = 30 * time.Second

// Push exports metrics every interval (0: DefaultInterval) until ctx ends, and once more then. An
// export that fails is told and not repeated: the next one says all that it said, since everything
// is cumulative.
func Push(ctx context.Context, e *Exporter, interval time.Duration, resource []Attribute, scope string, collect func(*Metrics), failed func(error)) {
	if interval <= 0 {
		interval = DefaultInterval
	}
	defer e.Close()
	start := time.Now()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for last := false; !last; {
		until, cancel := ctx, context.CancelFunc(func() {})
		select {
		case <-tick.C:
		case <-ctx.Done():
			last = true
			until, cancel = context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		}
		m := &Metrics{Start: start, Now: time.Now()}
		collect(m)
		if err := e.Export(until, Request(resource, scope, m.Elements())); err != nil && failed != nil {
			failed(err)
		}
		cancel()
	}
}
