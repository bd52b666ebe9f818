package witness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

func start(t *testing.T, tokens string) (url string) {
	address := reserve.Port(t).String()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	w := &Witness{Node: "c", Address: address, Tokens: tokens, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	eventually.True(t, "the agent listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return "http://" + address + wire.PathReach
}

// ask returns the answer and its status.
func ask(t *testing.T, url, token string, pods ...string) (a wire.ReachAnswer, status int) {
	q := wire.ReachQuestion{}
	for _, pod := range pods {
		q.Pods = append(q.Pods, netip.MustParseAddr(pod))
	}
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := new(wire.Signer).Do(http.DefaultClient, r, token)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode == http.StatusOK {
		if a, err = wire.DecodeReachAnswer(text); err != nil || !wire.Answers(response, token, response.Header.Get(wire.HeaderReachProof), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	return a, response.StatusCode
}

func write(t *testing.T, folder string, keys map[string][]byte) {
	for field, token := range wire.NodeAgentTokens(keys) {
		if err := os.WriteFile(filepath.Join(folder, field), token, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhoMayAskAnAgent(t *testing.T) {
	folder := t.TempDir()
	old, current, next := []byte("old"), []byte("current"), []byte("next")
	url := start(t, folder)
	if _, status := ask(t, url, wire.Token(current, "", wire.NodeAgentSubject)); status != http.StatusUnauthorized {
		t.Errorf("without a token of its own it answers %d", status)
	}
	write(t, folder, map[string][]byte{wire.TokenSecretKey: current, wire.TokenSecretPrevious: old, wire.TokenSecretNext: next})
	for name, c := range map[string]struct {
		token  string
		status int
	}{
		"an autoscaler":                {wire.Token(current, "", wire.NodeAgentSubject), 200},
		"one that has yet the old key": {wire.Token(old, "", wire.NodeAgentSubject), 200},
		"one that has the next key":    {wire.Token(next, "", wire.NodeAgentSubject), 200},
		"one as it asks activators":    {wire.Token(current, "", wire.AutoscalerSubject), 401},
		"an activator":                 {wire.Token(current, "", wire.ActivatorSubject), 401},
		"a pod":                        {wire.Token(current, "default", wire.NodeAgentSubject), 401},
		"a stranger":                   {wire.Token([]byte("another"), "", wire.NodeAgentSubject), 401},
	} {
		if a, status := ask(t, url, c.token); status != c.status || status == 200 && a.Node != "c" {
			t.Errorf("%s: %d %+v", name, status, a)
		}
	}
}

// Who has the token of agents cannot find out with it what listens on a node's loopback addresses.
func TestOnlyAddressesThatPodsMayHaveAreAsked(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, map[string][]byte{wire.TokenSecretKey: []byte("key")})
	a, status := ask(t, start(t, folder), wire.Token([]byte("key"), "", wire.NodeAgentSubject), "127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "fe80::1",
		"::ffff:127.0.0.1", "::ffff:0.0.0.0")
	if status != 200 || len(a.Life) != 0 || len(a.Silent) != 0 {
		t.Errorf("%d %+v", status, a)
	}
}

// The port may be another program's.
func TestWithoutThePortTheAgentGoesOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, stop := context.WithCancel(t.Context())
	var log bytes.Buffer
	done := make(chan error, 1)
	w := &Witness{Address: l.Addr().String(), Log: slog.New(slog.NewTextHandler(&log, nil))}
	go func() { done <- w.Run(ctx) }()
	select {
	case err := <-done:
		t.Fatalf("it ended with %v", err)
	default:
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// All pods of a node may have one address at an agent of another node, that of their own.
func TestStrangersKeepNoAutoscalerOut(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, map[string][]byte{wire.TokenSecretKey: []byte("key")})
	url := start(t, folder)
	address := url[len("http://") : len(url)-len(wire.PathReach)]
	for range 2 * maxStrangers {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	for range 2 {
		if _, status := ask(t, url, wire.Token([]byte("key"), "", wire.NodeAgentSubject)); status != http.StatusOK {
			t.Errorf("it answers %d", status)
		}
	}
}

// All agents know the same tokens. Who sees a question on its way to one cannot have another one
// answer it, and get the place of an autoscaler there.
func TestAQuestionToAnotherAgentIsNotTaken(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, map[string][]byte{wire.TokenSecretKey: []byte("key")})
	url := start(t, folder)
	for host, want := range map[string]int{"": 200, "10.0.0.7:9395": 401, "127.0.0.1:1": 401, "elsewhere": 401} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader([]byte("{}")))
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			r.Host = host
		}
		response, err := new(wire.Signer).Do(http.DefaultClient, r, wire.Token([]byte("key"), "", wire.NodeAgentSubject))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("to %q: %d, want %d", host, response.StatusCode, want)
		}
	}
}

// The bound of new connections bounds what strangers ask, too: they get one answer on each.
func TestAStrangersConnectionEndsWithItsFirstAnswer(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, map[string][]byte{wire.TokenSecretKey: []byte("key")})
	url := start(t, folder)
	for name, c := range map[string]struct {
		method, url, token string
		closed             bool
	}{
		"an autoscaler":  {http.MethodPost, url, "key", false},
		"a stranger":     {http.MethodPost, url, "another", true},
		"another path":   {http.MethodPost, url + "/other", "key", true},
		"another method": {http.MethodGet, url, "key", true},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, c.url, bytes.NewReader([]byte("{}")))
		if err != nil {
			t.Fatal(err)
		}
		response, err := new(wire.Signer).Do(http.DefaultClient, r, wire.Token([]byte(c.token), "", wire.NodeAgentSubject))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.Close != c.closed {
			t.Errorf("%s: %d, and the connection ends: %v", name, response.StatusCode, response.Close)
		}
	}
}
