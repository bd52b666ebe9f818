package digest

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
)

// An image may name any host. The controller must not ask its own host or the node's services for a
// tenant.
func TestNoImageMakesTheControllerAskItsOwnHost(t *testing.T) {
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer server.Close()
	client := &http.Client{Transport: Transport(func(string) string { return "" }), Timeout: 10 * time.Second}
	if _, err := client.Get(server.URL); !errors.Is(err, errAddress) || asked {
		t.Errorf("loopback: %v, asked: %v", err, asked)
	}
	for address, allowed := range map[string]bool{
		"127.0.0.1:80": false, "127.1.2.3:443": false, "[::1]:80": false, "0.0.0.0:80": false, "[::]:80": false,
		"169.254.169.254:80": false, "[fe80::1%eth0]:80": false, "[::ffff:169.254.169.254]:80": false, "[fd00:ec2::254]:80": false,
		"224.0.0.1:80": false, "nonsense": false,
		"192.0.2.1:443": true, "10.0.0.5:5000": true, "[2001:db8::1]:443": true,
	} {
		if err := onlyRemote("tcp", address, nil); (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
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
			answer := ask(t, New(fake.NewClientset(), http.DefaultTransport), revisionOf(host+"/hello:1"), Settings{Timeout: time.Second})
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
