package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"ebb.dev/ebb/internal/egress"
	"ebb.dev/ebb/settings"
)

// A tenant names hosts that its DNS leads elsewhere: to a server beside the courier, such as one
// with the credentials of its node.
func TestCallsGoToTheGatewayWhateverDNSSaysOfTheirHost(t *testing.T) {
	stolen := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the address of the name was dialled") }))
	defer stolen.Close()
	asked := make(chan string, 1)
	gateway := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Host }))
	defer gateway.Close()
	all := func(context.Context, netip.Addr) error { return nil }
	c := client(func() (string, error) { return gateway.Listener.Addr().String(), nil }, all)
	port := netip.MustParseAddrPort(stolen.Listener.Addr().String()).Port()
	for _, host := range []string{stolen.Listener.Addr().String(), fmt.Sprintf("localhost:%d", port), "meta.tenant.svc.cluster.local"} {
		response, err := c.Get("http://" + host + "/latest/meta-data")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := <-asked; got != host {
			t.Errorf("the gateway was asked for %q, want %q", got, host)
		}
	}
}

func TestAGatewayIsNeverTheCourierOrItsNode(t *testing.T) {
	local := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was reached") }))
	defer local.Close()
	c := client(func() (string, error) { return local.Listener.Addr().String(), nil }, egress.NotLocal)
	response, err := c.Get("http://svc.ns.svc.cluster.local/")
	if err == nil {
		response.Body.Close()
	}
	if !errors.Is(err, egress.ErrAddress) {
		t.Errorf("got %v", err)
	}
}

func TestTheFirstLocalGatewaysServiceGetsTheCalls(t *testing.T) {
	s := settings.NewStore(nil)
	if got, err := localGateway(s.Load().Gateway, "example.org"); got != "ebb-local-istio.knative-serving.svc.example.org.:80" || err != nil {
		t.Errorf("by default: %q, %v", got, err)
	}
	if got, err := localGateway(settings.Gateway{}, "example.org"); err == nil {
		t.Errorf("without a gateway: %q", got)
	}
}
