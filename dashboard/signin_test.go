package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/dashboard/page"
	"ebb.dev/ebb/test/fleet"
)

// signed adds the credentials of an administrator to each request, as the transport of a kubeconfig
// does.
type signed struct{}

func (signed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+fleet.Admin)
	return http.DefaultTransport.RoundTrip(r)
}

// `kubectl ebb dashboard` prints an address with a key.
func TestTheKeyOpensThePageAndLeavesTheAddress(t *testing.T) {
	s := onStage(t)
	handler, err := page.New(page.Options{API: s.few.fleet.URL, Transport: signed{}, Key: "the-key-of-this-run", Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	r := s.opens(t, server.URL+"/", "", "#key=the-key-of-this-run", 1000, 700, false)
	r.sees("30 Services", "Live")
	if address := value[string](r, "location.href"); address != server.URL+"/#/" {
		t.Errorf("the address is %s", address)
	}
	s.opens(t, server.URL+"/", "", "", 1000, 700, false).sees("Open the whole address.", "kubectl ebb dashboard")
	s.opens(t, server.URL+"/", "", "#key=of-another-run", 1000, 700, false).sees("Open the whole address.")
}

// A proxy that people sign in to sets the header; the page has no token then, and asks for none.
func TestAProxyInFrontSignsIn(t *testing.T) {
	s := onStage(t)
	to, err := url.Parse(s.few.program.URL)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(&httputil.ReverseProxy{Transport: signed{}, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	t.Cleanup(front.Close)
	t.Cleanup(front.CloseClientConnections)
	r := s.opens(t, front.URL+"/", "", "", 1000, 700, false)
	r.sees("30 Services", "Live")
	if value[bool](r, "document.body.innerText.includes('Sign out')") {
		t.Error("one cannot sign out of a token that the page does not have")
	}
}
