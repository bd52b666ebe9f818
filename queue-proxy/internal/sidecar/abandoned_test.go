package sidecar

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// connected is how many of the clients' connections to the server's port the kernel still calls
// established there.
func connected(t *testing.T, server int, clients []net.Conn) (n int) {
	t.Helper()
	ports := map[int64]bool{}
	for _, c := range clients {
		ports[int64(c.LocalAddr().(*net.TCPAddr).Port)] = true
	}
	const established = "01"
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			t.Skipf("the kernel does not tell: %v", err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 4 || f[3] != established {
				continue
			}
			port := func(address string) int64 {
				_, hex, _ := strings.Cut(address, ":")
				n, _ := strconv.ParseInt(hex, 16, 32)
				return n
			}
			if port(f[1]) == int64(server) && ports[port(f[2])] {
				n++
			}
		}
	}
	return n
}

// Under overload clients give up while they wait. Nobody works for them: the slot goes to the first
// who is still there, at once, although those who left came before.
func TestAbandonedRequestsNeverReachTheContainer(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	release := make(chan bool)
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.URL.Path)
		mu.Unlock()
		if r.URL.Path == "/first" {
			<-release
		}
	}, func(c *wire.Sidecar) { c.Concurrency = 1 })
	var requests sync.WaitGroup
	requests.Go(func() { r.get("/first") })
	eventually.True(t, "the first is in the container", func() bool { return r.gate.Inside() == 1 && r.gate.Waiting() == 0 })
	_, text, _ := net.SplitHostPort(r.Addr())
	port, _ := strconv.Atoi(text)
	var clients []net.Conn
	for i := range 8 {
		c, err := net.Dial("tcp", "127.0.0.1:"+text)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
		head := "GET /abandoned HTTP/1.1\r\nHost: x\r\n\r\n"
		if i%2 == 1 { // more of a body than is read ahead, so that the end of the connection is behind it
			body := strings.Repeat("b", 60_000)
			head = fmt.Sprintf("POST /abandoned HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 2*len(body), body)
		}
		if _, err := c.Write([]byte(head)); err != nil {
			t.Fatal(err)
		}
	}
	eventually.True(t, "all wait", func() bool { return r.gate.Waiting() == len(clients) })
	requests.Go(func() { r.get("/last") })
	eventually.True(t, "one more waits", func() bool { return r.gate.Waiting() == len(clients)+1 })
	for _, c := range clients {
		c.Close()
	}
	eventually.True(t, "the kernel knows that they left", func() bool { return connected(t, port, clients) == 0 })
	release <- true
	requests.Wait()
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(seen, []string{"/first", "/last"}) {
		t.Errorf("the container saw %q", seen)
	}
	eventually.True(t, "nothing is left of them", func() bool { return r.gate.Inside() == 0 })
}
