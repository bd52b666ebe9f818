package config

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// environment is what every queue-proxy has, and more.
func environment(more map[string]string) func(string) string {
	return func(name string) string {
		if v, ok := more[name]; ok {
			return v
		}
		return map[string]string{"SERVING_NAMESPACE": "ns", "SERVING_REVISION": "rev-00001", "SERVING_POD": "pod"}[name]
	}
}

func TestEveryWrongVariableIsNamed(t *testing.T) {
	wrong := map[string]string{
		"SERVING_POD": "", "USER_PORT": "http", "REVISION_TIMEOUT_SECONDS": "-1", "EBB_DRAIN_QUIET": "soon", "SERVING_POD_IP": "here",
		"ENABLE_HTTP2_AUTO_DETECTION": "perhaps", "SERVING_READINESS_PROBE": "{", "OBSERVABILITY_CONFIG": "{",
	}
	_, err := Parse(environment(wrong))
	if err == nil {
		t.Fatal("it was taken")
	}
	for name := range wrong {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
	if _, err := Parse(environment(nil)); err != nil {
		t.Errorf("what every queue-proxy has is refused: %v", err)
	}
}

func TestHTTP2IsDetectedIfThatIsSet(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	for text, want := range map[string]bool{"true": true, "false": false, "": false} {
		c, err := Parse(environment(map[string]string{
			"ENABLE_HTTP2_AUTO_DETECTION": text, "USER_PORT": fmt.Sprint(server.Listener.Addr().(*net.TCPAddr).Port),
			"SERVING_READINESS_PROBE": `{"httpGet":{"path":"/"}}`, "EBB_STARTUP_PROBE": `{"httpGet":{"path":"/"}}`,
		}))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range append(c.Probes, c.StartupProbes...) {
			if err := s.Once(t.Context(), 30*time.Second); (err == nil) != want {
				t.Errorf("%q: a container that speaks HTTP/2 only: %v", text, err)
			}
		}
	}
}
