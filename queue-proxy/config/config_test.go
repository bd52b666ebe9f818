package config

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/wire"
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

func TestTheTokenIsGivenOrMadeOfTheKey(t *testing.T) {
	key := wire.NamespaceKey([]byte("a key"), "ns")
	for _, tt := range []struct {
		set  map[string]string
		want string
	}{
		{map[string]string{"EBB_TOKEN": "given"}, "given"},
		{map[string]string{"EBB_KEY": string(key)}, wire.Token([]byte("a key"), "ns", "rev-00001")},
		{map[string]string{"EBB_KEY": string(key) + "\n"}, wire.Token([]byte("a key"), "ns", "rev-00001")},
		{map[string]string{"EBB_KEY": "", "EBB_KEY_FILE": "/key"}, ""},
	} {
		c, err := Parse(environment(tt.set))
		if err != nil || c.Token != tt.want {
			t.Errorf("%v: token %q, %v; want %q", tt.set, c.Token, err, tt.want)
		}
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

// Admission does not bound every number, so what is too large is bounded here instead of refused.
func TestLargeNumbersAreBounded(t *testing.T) {
	const most = "9223372036854775807"
	c, err := Parse(environment(map[string]string{
		"CONTAINER_CONCURRENCY": most, "REVISION_TIMEOUT_SECONDS": most, "REVISION_IDLE_TIMEOUT_SECONDS": most,
		"REVISION_RESPONSE_START_TIMEOUT_SECONDS": most,
	}))
	if err != nil {
		t.Fatal(err)
	}
	if c.Concurrency != 1<<20 {
		t.Errorf("the concurrency is %d, want %d", c.Concurrency, 1<<20)
	}
	for name, d := range map[string]time.Duration{"timeout": c.Timeout, "idle timeout": c.IdleTimeout, "response start timeout": c.ResponseStartTimeout} {
		if d != (1<<30)*time.Second {
			t.Errorf("the %s is %v, want 2^30 s", name, d)
		}
	}
}

func TestWhatIsNotSetHasADefault(t *testing.T) {
	c, err := Parse(environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	if c.Port != 8012 || c.UserPort != 8080 || c.Concurrency != 0 || c.Timeout != 0 || c.CutResponses || c.DrainQuiet != 5*time.Second ||
		len(c.Probes) != 1 || c.Probes[0].TCPSocket == nil || c.Probes[0].TCPSocket.Port != 8080 || len(c.StartupProbes) != 0 {
		t.Errorf("got %+v", c)
	}
}

func TestNumbersOutOfRangeAreRefused(t *testing.T) {
	for name, values := range map[string][]string{
		"USER_PORT":                {"-1", "65536", "8080x", "99999999999999999999"},
		"QUEUE_SERVING_PORT":       {"65536"},
		"CONTAINER_CONCURRENCY":    {"-1", "1.5", "9223372036854775808"},
		"REVISION_TIMEOUT_SECONDS": {"-1", "1s"},
		"EBB_DRAIN_QUIET":          {"-1s", "5"},
		"SERVING_READINESS_PROBE": {`{"httpGet":{"port":65536}}`, `{"httpGet":{"port":"http"}}`, `{"httpGet":{"scheme":"ftp"}}`,
			`{"httpGet":{},"tcpSocket":{}}`},
		"RESPONSE_TIMEOUT_ACTION": {"stop"},
		"EBB_TOLD_METRICS":        {"{", `[{"name":""}]`, `[{"name":"a","port":65536,"path":"/"}]`, `[{"name":"a","port":1}]`, `[{},{},{},{},{}]`},
	} {
		for _, value := range values {
			if _, err := Parse(environment(map[string]string{name: value})); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: error %v does not name it", name, value, err)
			}
		}
	}
}
