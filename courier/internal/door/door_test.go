package door

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/internal/testing/heap"
)

// serve starts a server that answers with how long the header X is.
func serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, len(r.Header.Get("X"))) }))
	s.ReadHeaderTimeout = time.Hour // a busy machine is at the last head after headWait
	go s.Serve(Listener(l))
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// from returns a client with an address of its own.
func from(ip string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: time.Minute}
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}}}
}

func ask(t *testing.T, c *http.Client, at string, head int) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+at, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X", strings.Repeat("x", head))
	response, err := c.Do(r)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(response.StatusCode, " ", string(text))
}

// A neighbour sends heads that do not end, from as many connections as it can.
func TestHeadsThatDoNotEndTakeLittleMemoryAndKeepNobodyOut(t *testing.T) {
	at := serve(t)
	before := heap.Live()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	part := []byte("GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", maxHead-100))
	var refused net.Conn
	for i := range maxOfOne + 100 {
		c, err := dialer.DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(part) // many are closed
		if i == maxOfOne/2 {
			refused = c
		}
	}
	if answer, err := io.ReadAll(refused); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 503") || !strings.Contains(string(answer), "send fewer at once") {
		t.Errorf("a head for which there is no room: %q, %v", answer, err)
	}
	if used := heap.Live() - before; used > 4*heads {
		t.Errorf("heads that do not end take %d MiB", used>>20)
	}
	other := from("127.0.0.3")
	for _, length := range []int{10, 40 << 10, 60 << 10} {
		if got, want := ask(t, other, at, length), fmt.Sprint("200 ", length); got != want {
			t.Errorf("a head of %d bytes of another address: %s", length, got)
		}
	}
}

func TestAConnectionGivesBackWhatItsHeadTook(t *testing.T) {
	at, c := serve(t), from("127.0.0.4")
	// Together the heads are longer than what all may take.
	for range 2 * heads / (2 * 60 << 10) {
		if got := ask(t, c, at, 60<<10); got != "200 61440" {
			t.Fatal(got)
		}
	}
	if got := ask(t, c, at, 80<<10); !strings.HasPrefix(got, "431") {
		t.Errorf("a head that is too long: %s", got)
	}
}

// A neighbour takes all places with heads that do not end or with idle connections, from few
// addresses or many: the kubelet, from an address of its own or the same one, still gets in.
func TestConnectionsWithoutARequestKeepNobodyOut(t *testing.T) {
	for _, test := range []struct {
		name      string
		addresses int
		sends     string
	}{
		{"heads that do not end, of one address", 1, "GET / HTTP/1.1\r\nHost: a\r\nX: "},
		{"heads that do not end, of many addresses", 20, "GET / HTTP/1.1\r\nHost: a\r\nX: "},
		{"idle after a request, of many addresses", 20, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"nothing, of many addresses", 20, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := serve(t)
			first := from("127.0.0.2")
			if got := ask(t, first, at, 10); got != "200 10" {
				t.Fatal(got)
			}
			for i := range most + 200 {
				dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%test.addresses))}}
				c, err := dialer.DialContext(t.Context(), "tcp", at)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_, _ = io.WriteString(c, test.sends)
			}
			for _, who := range []string{"127.0.0.3", "127.0.1.1"} {
				if got := ask(t, from(who), at, 10); got != "200 10" {
					t.Errorf("a request from %s: %s", who, got)
				}
			}
			if got := ask(t, first, at, 10); got != "200 10" {
				t.Errorf("a client whose connection was idle: %s", got)
			}
		})
	}
}

// What has a request under way stays, also beyond the places.
func TestAConnectionWithARequestIsNotReplaced(t *testing.T) {
	l := Listener(nil).(*listener)
	busy := make([]*conn, maxOfOne)
	for i := range busy {
		busy[i] = &conn{at: l, from: "a"}
		if replaced, entered := l.enter(busy[i]); replaced != nil || !entered {
			t.Fatal(i, replaced, entered)
		}
		busy[i].waiting(false)
	}
	if replaced, entered := l.enter(&conn{at: l, from: "a"}); replaced != nil || entered {
		t.Error("a connection is let in beyond its address's places, all of which have requests")
	}
	busy[5].waiting(true)
	if replaced, entered := l.enter(&conn{at: l, from: "a"}); replaced != busy[5] || !entered {
		t.Error("the idle connection was not replaced")
	}
	busy[5].waiting(true) // net/http says so late
	if l.waiting.Len() != 1 || l.all != maxOfOne || l.of["a"] != maxOfOne {
		t.Errorf("%d wait, of %d, %d of the address", l.waiting.Len(), l.all, l.of["a"])
	}
}
