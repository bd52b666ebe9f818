package addresses

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

func service(name, kind, ip string) Service {
	var s Service
	s.Metadata.Name, s.Metadata.Namespace, s.Spec.Type = name, "n", kind
	if ip != "" {
		s.Status.LoadBalancer.Ingress = []struct{ IP string }{{ip}}
	}
	return s
}

func TestDecide(t *testing.T) {
	pool := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	other := service("z", "LoadBalancer", "")
	class := "example.com/other"
	other.Spec.Class = &class
	for name, c := range map[string]struct {
		services []Service
		want     string
	}{
		"nobody waits":                        {[]Service{service("a", "ClusterIP", ""), service("b", "LoadBalancer", "10.0.0.1")}, "[] 0"},
		"one waits":                           {[]Service{service("a", "LoadBalancer", "")}, "[{n a 10.0.0.1}] 0"},
		"a taken address is left alone":       {[]Service{service("a", "LoadBalancer", "10.0.0.1"), service("b", "LoadBalancer", "")}, "[{n b 10.0.0.2}] 0"},
		"by name, whatever the order":         {[]Service{service("b", "LoadBalancer", ""), service("a", "LoadBalancer", "")}, "[{n a 10.0.0.1} {n b 10.0.0.2}] 0"},
		"the last goes without":               {[]Service{service("a", "LoadBalancer", ""), service("b", "LoadBalancer", ""), service("c", "LoadBalancer", "")}, "[{n a 10.0.0.1} {n b 10.0.0.2}] 1"},
		"another controller's is not ours":    {[]Service{other}, "[] 0"},
		"an address that is no longer a LB's": {[]Service{service("a", "ClusterIP", "10.0.0.1"), service("b", "LoadBalancer", "")}, "[{n b 10.0.0.2}] 0"},
	} {
		t.Run(name, func(t *testing.T) {
			grants, starved := Decide(pool, c.services)
			if got := fmt.Sprint(grants, " ", starved); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestRunGrantsOverTheAPI plays an API server: a list, a patch, a list that
// shows it, and a watch.
func TestRunGrantsOverTheAPI(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	services := []Service{service("gateway", "LoadBalancer", "")}
	var patches []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Method == http.MethodPatch:
			body, _ := io.ReadAll(r.Body)
			patches = append(patches, r.URL.Path+" "+string(body))
			services[0] = service("gateway", "LoadBalancer", "10.0.0.7")
		case r.URL.Query().Get("watch") != "":
			cancel() // the rest of the test needs no more
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": "5"}, "items": services})
		}
	}))
	defer server.Close()
	c := Controller{Client: server.Client(), Server: server.URL, Pool: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
	if err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(patches) != 1 || !strings.HasPrefix(patches[0], "/api/v1/namespaces/n/services/gateway/status ") || !strings.Contains(patches[0], `"ip":"10.0.0.7"`) {
		t.Errorf("got %q", patches)
	}
}
