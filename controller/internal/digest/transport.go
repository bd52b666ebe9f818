package digest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/internal/egress"
	"ebb.dev/ebb/internal/env"
)

// Way returns the transport for the questions about an image of the given registry. trusted are the
// registries that the operator named: HOST, or http://HOST for one that may be asked without TLS.
type Way func(registry string, trusted []string) http.RoundTripper

// Options is what the environment says of the way to registries.
type Options struct {
	server string // address of the API server's Service
	tls    *tls.Config
}

// ReadOptions reads the environment.
func ReadOptions(e *env.Reader) Options {
	return Options{
		server: e.Text("KUBERNETES_SERVICE_HOST", "", "Address of the API server's Service, which nobody may have Ebb call."),
		tls: &tls.Config{
			MinVersion:   version(e.Text("TAG_TO_DIGEST_TLS_MIN_VERSION", "1.2", "Least version of TLS to registries: 1.2 or 1.3."), tls.VersionTLS12),
			MaxVersion:   version(e.Text("TAG_TO_DIGEST_TLS_MAX_VERSION", "", "Highest version of TLS to registries."), 0),
			CipherSuites: suites(e.Text("TAG_TO_DIGEST_TLS_CIPHER_SUITES", "", "Suites of TLS 1.2 by their IANA names, separated by commas.")),
		},
	}
}

// NewWay returns the way to registries of a cluster.
func NewWay(kube kubernetes.Interface, o Options) Way {
	return newWay(&egress.Services{Kube: kube, Server: o.server}, o.tls, http.ProxyFromEnvironment, dialling)
}

// dial opens a connection to an address.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

func dialling(allowed egress.Rule) dial {
	return (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second, ControlContext: allowed.Control}).DialContext
}

func newWay(of *egress.Services, secure *tls.Config, proxy func(*http.Request) (*url.URL, error), dialling func(egress.Rule) dial) Way {
	transport := func(allowed egress.Rule) *http.Transport {
		t := remote.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = nil
		t.DialContext = dialling(allowed)
		t.TLSClientConfig = secure.Clone()
		// There are many registries, and each gets few requests.
		t.MaxIdleConnsPerHost = 4
		return t
	}
	// A connection is used again only by requests that may open it: each rule has its own pool.
	g := guarded{proxy: proxy, remote: transport(egress.NotLocal), outside: transport(of.NotAService), public: transport(of.Public)}
	g.remote.Proxy = proxy
	return func(registry string, trusted []string) http.RoundTripper {
		to := g
		to.registry, to.trusted = registry, trusted
		return &to
	}
}

// guarded decides for each request, also one that follows a redirect or asks for a token, whether
// it may be sent and to which addresses. An image may name any host and a registry may lead
// anywhere, so that a tenant would otherwise have the controller ask what only the controller
// reaches.
//
//	                                   | without TLS      | private address           | address of a Service
//	a registry that the operator named | if named http:// | yes                       | yes
//	the registry of the image          | no               | yes                       | no
//	another host, such as a realm      | no               | if the registry was named | no
//
// With TLS nothing is sent before the server has shown a certificate for the name that the image
// has, so a private address is of no use to a tenant. Another host gets a path that its sender
// chose, though.
type guarded struct {
	registry string
	trusted  []string
	proxy    func(*http.Request) (*url.URL, error)
	// Transports by the addresses that they connect to: any but this host's, none of a Service, and
	// public ones.
	remote, outside, public *http.Transport
}

var errPlain = errors.New("the registry wants to be asked without TLS, which no operator allowed")

func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	trusted, plain := trusts(g.trusted, r.URL.Host)
	if r.URL.Scheme != "https" && !plain {
		return nil, errPlain
	}
	through, err := g.proxy(r)
	if err != nil {
		return nil, fmt.Errorf("find the proxy to a registry: %w", err)
	}
	leads, _ := trusts(g.trusted, g.registry)
	switch {
	case trusted || through != nil: // a proxy has rules of its own
		return g.remote.RoundTrip(r)
	case leads || r.URL.Host == g.registry:
		return g.outside.RoundTrip(r)
	}
	return g.public.RoundTrip(r)
}

// trusts reports whether the operator named a host, and whether it may be asked without TLS.
func trusts(trusted []string, host string) (named, plain bool) {
	plain = slices.Contains(trusted, "http://"+host)
	return plain || slices.Contains(trusted, host), plain
}

func version(text string, otherwise uint16) uint16 {
	switch text {
	case "1.2":
		return tls.VersionTLS12
	case "1.3":
		return tls.VersionTLS13
	}
	return otherwise
}

func suites(text string) []uint16 {
	var ids []uint16
	for _, name := range strings.Split(text, ",") {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == strings.TrimSpace(name) })
		if i >= 0 {
			ids = append(ids, tls.CipherSuites()[i].ID)
		}
	}
	return ids
}
