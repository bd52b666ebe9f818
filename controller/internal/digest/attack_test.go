package digest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/internal/egress"
	"ebb.dev/ebb/internal/env"
	"ebb.dev/ebb/internal/testing/certificate"
)

// none is an environment without variables.
func none(string) string { return "" }

func direct(*http.Request) (*url.URL, error) { return nil, nil }

// An image may name any host. The controller must not ask its own host or the node's services for a
// tenant, not even where the operator named the registry.
func TestNoImageMakesTheControllerAskItsOwnHost(t *testing.T) {
	asked := false
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, host := range []string{"127.0.0.1:" + port, "localhost:" + port, "[::ffff:127.0.0.1]:" + port} {
		way := NewWay(fake.NewClientset(), ReadOptions(env.New(none)))(host, []string{host})
		client := &http.Client{Transport: way, Timeout: 10 * time.Second}
		if _, err := client.Get("https://" + host); !errors.Is(err, egress.ErrAddress) || asked {
			t.Errorf("%s: %v, asked: %v", host, err, asked)
		}
	}
	// A clientset of Kubernetes 1.33 or newer, and the Service of the API server for older ones.
	of := &egress.Services{Server: "10.20.0.1", Kube: fake.NewClientset(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12", "fd00:10:96::/112"}}})}
	const local, service, private, public = 0, 1, 2, 3
	for address, is := range map[string]int{
		"127.0.0.1:80": local, "127.1.2.3:443": local, "[::1]:80": local, "0.0.0.0:80": local, "0.1.2.3:80": local, "[::]:80": local,
		"169.254.169.254:80": local, "[fe80::1%eth0]:80": local, "[::ffff:169.254.169.254]:80": local, "[64:ff9b::a9fe:a9fe]:80": local,
		"[fd00:ec2::254]:80": local, "100.100.100.200:80": local, "168.63.129.16:80": local, "224.0.0.1:80": local, "nonsense": local,
		"10.96.0.1:443": service, "10.20.0.1:443": service, "[fd00:10:96::5]:443": service, "[::ffff:10.96.0.1]:443": service,
		"10.0.0.5:5000": private, "172.16.0.1:443": private, "192.168.1.1:443": private, "100.64.0.1:443": private, "[fd00::1]:443": private,
		"[64:ff9b::a00:5]:443": private,
		"192.0.2.1:443":        public, "[2001:db8::1]:443": public,
	} {
		for name, one := range map[string]struct {
			allowed egress.Rule
			from    int
		}{"a named registry": {egress.NotLocal, service}, "the image's registry": {of.NotAService, private}, "another host": {of.Public, public}} {
			err := one.allowed.Control(t.Context(), "tcp", address, nil)
			if (err == nil) != (is >= one.from) {
				t.Errorf("%s at %s: %v", name, address, err)
			}
		}
	}
}

// A cluster whose ranges cannot be read is not taken for one without any.
func TestWithoutTheRangesOfServicesNoRegistryIsAsked(t *testing.T) {
	client := fake.NewClientset()
	var answer error = apierrors.NewForbidden(networkingv1.Resource("servicecidrs"), "", nil)
	client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, answer })
	of := &egress.Services{Server: "10.96.0.1", Kube: client}
	if err := of.NotAService(t.Context(), netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("an address is allowed though the ranges cannot be read")
	}
	answer = apierrors.NewNotFound(networkingv1.Resource("servicecidrs"), "") // before Kubernetes 1.33
	if err := of.NotAService(t.Context(), netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("a Kubernetes without ServiceCIDRs: %v", err)
	}
	if err := of.NotAService(t.Context(), netip.MustParseAddr("10.96.0.1")); !errors.Is(err, egress.ErrAddress) {
		t.Errorf("its API server: %v", err)
	}
}

// landscape is a network of made-up hosts over real servers on loopback. Each host has an address
// that the rules see in place of loopback.
type landscape struct {
	t     *testing.T
	at    map[string]netip.Addr // by host:port
	real  map[string]string
	asked map[string]*atomic.Int64
	roots *x509.CertPool
	key   tls.Certificate
}

func newLandscape(t *testing.T) *landscape {
	key := certificate.Make(x509.Certificate{IsCA: true, BasicConstraintsValid: true, DNSNames: []string{"*.test"}}, nil)
	l := &landscape{t: t, at: map[string]netip.Addr{}, real: map[string]string{}, asked: map[string]*atomic.Int64{}, roots: x509.NewCertPool(),
		key: key}
	l.roots.AddCert(key.Leaf)
	return l
}

// host adds a server. It speaks TLS, except at port 80.
func (l *landscape) host(name, address string, handler http.HandlerFunc) {
	count := new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count.Add(1)
		handler(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if strings.HasSuffix(name, ":80") {
		server.Start()
	} else {
		server.TLS = &tls.Config{Certificates: []tls.Certificate{l.key}}
		server.StartTLS()
	}
	l.t.Cleanup(server.Close)
	l.at[name], l.real[name], l.asked[name] = netip.MustParseAddr(address), server.Listener.Addr().String(), count
}

func (l *landscape) way() Way {
	of := &egress.Services{Kube: fake.NewClientset(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}})}
	way := newWay(of, &tls.Config{}, direct, func(allowed egress.Rule) dial {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			if _, known := l.at[address]; !known {
				return nil, &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}
			}
			if err := allowed(ctx, l.at[address]); err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, l.real[address])
		}
	})
	g := way("", nil).(*guarded)
	for _, t := range []*http.Transport{g.remote, g.outside, g.public} {
		t.TLSClientConfig.RootCAs = l.roots
	}
	return way
}

// Where an image, the realm of its registry or a redirect may lead the controller, over real
// servers.
func TestWhereAnImageLeadsTheController(t *testing.T) {
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	manifest := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Content-Length", "2")
		w.Header().Set("Docker-Content-Digest", digest)
	}
	realm := func(url string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer t" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+url+`",service="s"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			manifest(w, r)
		}
	}
	redirect := func(url string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v2/" {
				return
			}
			http.Redirect(w, r, url+r.URL.Path, http.StatusTemporaryRedirect)
		}
	}
	l := newLandscape(t)
	token := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			manifest(w, r)
			return
		}
		fmt.Fprint(w, `{"token":"t"}`)
	}
	l.host("public.test:443", "192.0.2.1", manifest)
	l.host("private.test:443", "10.0.0.5", manifest)
	l.host("service.test:443", "10.96.0.7", manifest)
	l.host("node.test:443", "169.254.169.254", manifest)
	l.host("10.0.0.9:80", "10.0.0.9", manifest)
	l.host("10.96.0.9:80", "10.96.0.9", manifest)
	l.host("plain.local:80", "192.0.2.9", manifest)
	l.host("token.test:443", "192.0.2.2", token)
	l.host("tokens.test:443", "10.0.0.6", token)
	l.host("tokens-service.test:443", "10.96.0.8", token)
	l.host("token.test:80", "192.0.2.2", token)
	l.host("a.test:443", "192.0.2.3", realm("https://token.test/t"))
	l.host("b.test:443", "192.0.2.3", realm("https://tokens.test/t"))
	l.host("c.test:443", "192.0.2.3", realm("https://tokens-service.test/t"))
	l.host("d.test:443", "192.0.2.3", realm("http://token.test/t"))
	l.host("e.test:443", "192.0.2.3", realm("https://node.test/t"))
	l.host("f.test:443", "192.0.2.3", redirect("https://public.test"))
	l.host("g.test:443", "192.0.2.3", redirect("https://private.test"))
	l.host("h.test:443", "192.0.2.3", redirect("https://service.test"))
	l.host("i.test:443", "192.0.2.3", redirect("http://token.test"))
	l.host("j.test:443", "10.0.0.7", redirect("https://private.test"))
	l.host("wrong.example:443", "10.0.0.8", manifest) // its certificate is for another name
	way := l.way()
	for _, c := range []struct {
		registry string
		trusted  []string
		ok       bool
		// not is a server that must not get a request.
		not string
	}{
		{"public.test", nil, true, ""},
		{"private.test", nil, true, ""},
		{"service.test", nil, false, "service.test:443"},
		{"service.test", []string{"service.test"}, true, ""},
		{"service.test", []string{"other.test"}, false, "service.test:443"},
		{"node.test", []string{"node.test"}, false, "node.test:443"},
		{"wrong.example", nil, false, "wrong.example:443"},
		{"10.0.0.9:80", nil, false, "10.0.0.9:80"},
		{"10.0.0.9:80", []string{"10.0.0.9:80"}, false, "10.0.0.9:80"},
		{"10.0.0.9:80", []string{"http://10.0.0.9:80"}, true, ""},
		{"10.96.0.9:80", []string{"http://10.96.0.9:80"}, true, ""},
		{"plain.local:80", nil, false, "plain.local:80"},
		{"a.test", nil, true, ""},
		{"b.test", nil, false, "tokens.test:443"},
		{"b.test", []string{"b.test"}, true, ""},
		{"c.test", []string{"c.test"}, false, "tokens-service.test:443"},
		{"c.test", []string{"c.test", "tokens-service.test"}, true, ""},
		{"d.test", nil, false, "token.test:80"},
		{"d.test", []string{"d.test"}, false, "token.test:80"},
		{"e.test", []string{"e.test", "node.test"}, false, "node.test:443"},
		{"f.test", nil, true, ""},
		{"private.test", nil, true, ""}, // whose connection the next one must not use
		{"g.test", nil, false, "private.test:443"},
		{"h.test", []string{"h.test"}, false, "service.test:443"},
		{"i.test", nil, false, "token.test:80"},
		{"j.test", nil, false, "private.test:443"},
		{"j.test", []string{"j.test"}, true, ""},
	} {
		t.Run(fmt.Sprint(c.registry, c.trusted), func(t *testing.T) {
			var before int64
			if c.not != "" {
				before = l.asked[c.not].Load()
			}
			want, timeout := "", time.Second // what fails is tried for so long
			if c.ok {
				want, timeout = c.registry+"/team/app@"+digest, time.Minute
			}
			answer := ask(t, New(fake.NewClientset(), way), revisionOf(c.registry+"/team/app:1"), Settings{Timeout: timeout, Trusted: c.trusted})
			if answer.Missing != nil || answer.Containers[0].ImageDigest != want || (answer.Unresolved == nil) != c.ok {
				t.Errorf("got %+v, want the digest %q", answer, want)
			}
			if c.not != "" && l.asked[c.not].Load() != before {
				t.Errorf("%s was asked", c.not)
			}
		})
	}
}

// Behind a proxy the addresses are the proxy's to judge; TLS is still wanted.
func TestAProxyIsAskedAtAnyAddressOfTheOperators(t *testing.T) {
	l := newLandscape(t)
	var connects atomic.Int64
	l.host("proxy.internal:80", "10.96.0.3", func(w http.ResponseWriter, r *http.Request) {
		connects.Add(1)
		w.WriteHeader(http.StatusForbidden)
	})
	way := l.way()
	g := way("public.test", nil).(*guarded)
	g.proxy = func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy.internal:80") }
	g.remote.Proxy = g.proxy
	for target, want := range map[string]int64{"https://public.test/v2/": 1, "http://public.test/v2/": 0} {
		connects.Store(0)
		request, err := http.NewRequestWithContext(t.Context(), "GET", target, nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := g.RoundTrip(request); err == nil {
			answer.Body.Close()
			t.Errorf("%s: %s", target, answer.Status)
		}
		if got := connects.Load(); got != want {
			t.Errorf("%s: the proxy was asked %d times, want %d", target, got, want)
		}
	}
}

// What a server answers must not come back to the tenant: it may be one that only the controller
// reaches.
func TestAConditionHoldsNothingThatTheRegistrySaid(t *testing.T) {
	const secret = "the-internal-secret"
	for _, status := range []int{200, 302, 401, 403, 404, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", secret)
				w.Header().Set("Location", "http://"+secret+".invalid/")
				w.Header().Set("Docker-Content-Digest", secret)
				w.WriteHeader(status)
				fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":"%s"}]}`, strings.Repeat(secret, 1000))
			}))
			defer server.Close()
			host := strings.TrimPrefix(server.URL, "http://")
			answer := ask(t, New(fake.NewClientset(), anywhere), revisionOf(host+"/hello:1"), Settings{Timeout: time.Second})
			for _, err := range []error{answer.Missing, answer.Unresolved} {
				if err != nil && (strings.Contains(err.Error(), secret) || len(err.Error()) > 250) {
					t.Errorf("the condition says %q", err)
				}
			}
			if answer.Missing == nil && answer.Unresolved == nil {
				t.Error("no error")
			}
		})
	}
}
