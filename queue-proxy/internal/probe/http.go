package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// userAgent begins as the kubelet's does, so that a container can tell probes from requests.
const userAgent = "kube-probe/ebb"

// detection is what is known of a container's HTTP: the first HTTP probe finds out whether it
// speaks HTTP/2 without TLS. All copies of a Spec share it.
type detection struct{ version atomic.Uint32 }

const (
	versionUnknown = iota
	versionHTTP1
	versionHTTP2
)

// plain is HTTP/1.1; over TLS too, as the kubelet does it.
func plain() *http.Transport {
	return &http.Transport{
		DisableKeepAlives: true,
		// The kubelet does not verify either: the container is next door and its certificate is for
		// the world.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
}

// priorKnowledge is HTTP/2 without TLS and without asking first.
func priorKnowledge() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: protocols}
}

func (s *Spec) http(ctx context.Context) error {
	if s.detect == nil || s.HTTPGet.Scheme == "HTTPS" {
		_, err := s.get(ctx, plain())
		return err
	}
	switch s.detect.version.Load() {
	case versionHTTP1:
		_, err := s.get(ctx, plain())
		return err
	case versionHTTP2:
		_, err := s.get(ctx, priorKnowledge())
		return err
	}
	upgrades, err := s.offersHTTP2(ctx)
	if err == nil && !upgrades {
		s.detect.version.Store(versionHTTP1)
		_, err := s.get(ctx, plain())
		return err
	}
	// It upgrades, or it did not understand the question, as a server of gRPC does not.
	answered, err := s.get(ctx, priorKnowledge())
	if answered {
		s.detect.version.Store(versionHTTP2)
	}
	return err
}

// offersHTTP2 asks in HTTP/1.1 whether the container would go on in HTTP/2 (RFC 7540 section 3.2).
// The error says that it gave no answer of HTTP/1.1; one that is silent leaves half of ctx's time
// for another question.
func (s *Spec) offersHTTP2(ctx context.Context) (bool, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	req, err := s.request(ctx, http.MethodOptions)
	if err != nil {
		return false, err
	}
	req.Header.Set("Connection", "Upgrade, HTTP2-Settings")
	req.Header.Set("Upgrade", "h2c")
	req.Header.Set("HTTP2-Settings", "")
	resp, err := plain().RoundTrip(req)
	if err != nil {
		return false, fmt.Errorf("ask %s whether it speaks HTTP/2: %w", req.URL.Host, err)
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusSwitchingProtocols, nil
}

// request is the probe's, with another method.
func (s *Spec) request(ctx context.Context, method string) (*http.Request, error) {
	scheme := "http"
	if s.HTTPGet.Scheme == "HTTPS" {
		scheme = "https"
	}
	path := s.HTTPGet.Path
	if path == "" || path[0] != '/' {
		path = "/" + path
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+address(s.HTTPGet.Host, s.HTTPGet.Port)+path, nil)
	if err != nil {
		return nil, fmt.Errorf("HTTP probe of %s: %w", path, err)
	}
	req.Header.Set("User-Agent", userAgent)
	for _, h := range s.HTTPGet.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	return req, nil
}

// get asks; answered says that there was an answer, even if it was not a good one.
func (s *Spec) get(ctx context.Context, transport *http.Transport) (answered bool, err error) {
	defer transport.CloseIdleConnections()
	req, err := s.request(ctx, http.MethodGet)
	if err != nil {
		return false, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false, fmt.Errorf("HTTP probe of %s: %w", req.URL.Path, err)
	}
	resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return true, fmt.Errorf("HTTP probe of %s: status %d", req.URL.Path, resp.StatusCode)
	}
	return true, nil
}
