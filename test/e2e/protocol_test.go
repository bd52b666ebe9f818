//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

func TestEveryKindOfTrafficGetsThroughFromZero(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.readyAtZero("kinds", service{name: "kinds"}.manifest())
	host, err := cluster.HostOf(url)
	if err != nil {
		t.Fatal(err)
	}
	client := s.client()

	t.Run("a WebSocket, before any pod is ready", func(t *testing.T) { s.echoesAWebSocket(t, host) })
	t.Run("a stream arrives as it is sent", func(t *testing.T) { s.streamsEvents(t, client, url+"/stream?n=4&every=500") })
	t.Run("a large reply", func(t *testing.T) { s.sendsALargeBody(t, client, url) })
	t.Run("a large request", func(t *testing.T) { s.receivesALargeBody(t, client, url) })
	t.Run("statuses that the program returns", func(t *testing.T) { s.returnsStatuses(t, client, url) })
}

func (s *story) echoesAWebSocket(t *testing.T, host string) {
	dialer := websocket.Dialer{
		NetDial:          func(network, _ string) (net.Conn, error) { return net.DialTimeout(network, s.Gateway, 10*time.Second) },
		HandshakeTimeout: time.Minute,
	}
	conn, response, err := dialer.DialContext(s.ctx, "ws://"+host+"/ws", nil)
	if err != nil {
		t.Fatalf("%v, response %v", err, response)
	}
	defer conn.Close()
	for _, message := range []string{"one", strings.Repeat("two", 100_000)} {
		if err := conn.WriteMessage(websocket.TextMessage, []byte(message)); err != nil {
			t.Fatal(err)
		}
		_, back, err := conn.ReadMessage()
		if err != nil || string(back) != message {
			t.Fatalf("%d bytes came back, want %d: %v", len(back), len(message), err)
		}
	}
}

// streamsEvents reads four events, which are sent over 1.5 s.
func (s *story) streamsEvents(t *testing.T, client *http.Client, url string) {
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var first, last time.Time
	events := 0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			events++
			if last = time.Now(); first.IsZero() {
				first = last
			}
		}
	}
	// If something buffered them, they would arrive together.
	if events != 4 || last.Sub(first) < 500*time.Millisecond {
		t.Errorf("%d events within %s, want 4 over 1.5 s: %v", events, last.Sub(first), lines.Err())
	}
}

func (s *story) sendsALargeBody(t *testing.T, client *http.Client, url string) {
	const size = 20 << 20
	response, err := client.Get(url + "/?size=20971520")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n != size {
		t.Errorf("%d bytes, %v, want %d", n, err, size)
	}
}

func (s *story) receivesALargeBody(t *testing.T, client *http.Client, url string) {
	const size = 20 << 20
	response, err := client.Post(url+"/echo", "application/octet-stream", bytes.NewReader(make([]byte, size)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var echo struct{ BodySize int }
	if err := json.NewDecoder(response.Body).Decode(&echo); err != nil || echo.BodySize != size {
		t.Errorf("the program received %d bytes, want %d: status %d, %v", echo.BodySize, size, response.StatusCode, err)
	}
}

func (s *story) returnsStatuses(t *testing.T, client *http.Client, url string) {
	for _, status := range []int{204, 302, 404, 418, 500, 503} {
		reply := probe.Get(s.ctx, client, fmt.Sprintf("%s/?status=%d", url, status))
		if reply.Status != status {
			t.Errorf("got %v, want %d", reply, status)
		}
	}
}

func TestAProgramSeesWhatTheRuntimeContractPromises(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("contract", service{name: "contract", revision: "contract-one"}.manifest())
	client := s.client()
	var env map[string]string
	s.getJSON(client, url+"/env", &env)
	for name, want := range map[string]string{"PORT": "8080", "K_SERVICE": "contract", "K_CONFIGURATION": "contract", "K_REVISION": "contract-one"} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	var echo struct {
		Host    string
		Headers http.Header
	}
	s.getJSON(client, url+"/echo", &echo)
	if host, _ := cluster.HostOf(url); echo.Host != host {
		t.Errorf("Host is %q, want %q", echo.Host, host)
	}
	if !strings.Contains(echo.Headers.Get("Forwarded"), "for=") || echo.Headers.Get("X-Forwarded-For") == "" {
		t.Errorf("the program does not receive the client's address: %v", echo.Headers)
	}
	for name := range echo.Headers {
		if strings.HasPrefix(name, "Knative-Serving-") || strings.HasPrefix(name, "K-Network") || strings.HasPrefix(name, "Ebb-") {
			t.Errorf("the program receives Ebb's own header %s", name)
		}
	}
}

func TestAnH2CServiceIsSpokenToInHTTP2(t *testing.T) {
	s := begin(t, 3*time.Minute)
	manifest := service{name: "two"}.manifest() + "        ports:\n        - name: h2c\n          containerPort: 8080\n"
	url := s.readyAtZero("two", manifest)
	var echo struct{ Protocol string }
	s.getJSON(s.client(), url+"/echo", &echo) // through the activator
	if echo.Protocol != "HTTP/2.0" {
		t.Errorf("the program receives requests as %q, want HTTP/2.0", echo.Protocol)
	}
}

// With the final dot, clients spare the resolver its search list. ab, health checks of load
// balancers, and nginx unless it is told otherwise speak HTTP/1.0.
func TestEachSpellingOfAHostAndOldClientsAreServed(t *testing.T) {
	s := begin(t, 3*time.Minute)
	outside, err := cluster.HostOf(s.readyAtZero("spelled", service{name: "spelled", env: map[string]string{"TEXT": "spelled"}}.manifest()))
	if err != nil {
		t.Fatal(err)
	}
	local, err := s.LocalGateway(s.ctx, "80")
	if err != nil {
		t.Fatal(err)
	}
	for gateway, host := range map[string]string{s.Gateway: outside, local: "spelled." + s.namespace + ".svc.cluster.local"} {
		for _, ask := range []string{"HTTP/1.1\r\nHost: %s", "HTTP/1.1\r\nHost: %s.", "HTTP/1.1\r\nHost: %s.:80", "HTTP/1.0\r\nHost: %s", "HTTP/1.0\r\nHost: %s."} {
			ask = fmt.Sprintf(ask, host)
			if got := s.raw(gateway, "GET / "+ask+"\r\nConnection: close\r\n\r\n"); got != "200 spelled\n" {
				t.Errorf("%q: got %q", ask, got)
			}
		}
	}
}

// raw sends bytes and returns the status and the body of the answer.
func (s *story) raw(address, request string) string {
	s.Helper()
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, request); err != nil {
		s.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	return fmt.Sprint(response.StatusCode, " ", string(body))
}

func TestARequestThatTakesTooLongGets504(t *testing.T) {
	s := begin(t, 3*time.Minute)
	manifest := strings.Replace(service{name: "late"}.manifest(), "containerConcurrency: 0", "timeoutSeconds: 2", 1)
	url := s.ready("late", manifest)
	if reply := probe.Get(s.ctx, s.client(), url+"?sleep=20000"); reply.Status != 504 {
		t.Errorf("got %v, want 504 after 2 s", reply)
	}
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Errorf("the next request: %v", reply)
	}
}

func (s *story) getJSON(client *http.Client, url string, value any) {
	s.Helper()
	reply := probe.Get(s.ctx, client, url)
	if !reply.OK() {
		s.Fatal(reply)
	}
	if err := json.Unmarshal([]byte(reply.Body), value); err != nil {
		s.Fatalf("%s: %v: %q", url, err, reply.Body)
	}
}
