package process

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"ebb.dev/ebb/forward"
)

// buggy is a policy that fails for one path.
type buggy struct{}

func (buggy) Admit(r *forward.Request) forward.Decision {
	if r.Path() == "/bug" {
		panic("a bug")
	}
	return forward.Decision{Reply: forward.Reply{Status: 200}}
}

func (buggy) Done(*forward.Request, *forward.Result) {}

type logged struct {
	sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.Write(b)
}

// Thousands of requests may wait in one activator; a bug that one of them meets is logged, counted,
// and costs the others nothing.
func TestABugCostsOneRequestNotTheActivator(t *testing.T) {
	var log logged
	server := newServer(buggy{}, options{tls: &tls.Config{}}, slog.New(slog.NewTextHandler(&log, nil)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	defer server.Close()
	for path, want := range map[string]int{"/bug": 500, "/well": 200} {
		resp, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s got %d, want %d", path, resp.StatusCode, want)
		}
	}
	if n := server.Panics(); n != 1 {
		t.Errorf("%d panics were counted, want 1", n)
	}
	log.Lock()
	defer log.Unlock()
	if text := log.String(); !strings.Contains(text, "a bug") || !strings.Contains(text, "server_test.go") {
		t.Errorf("the log lacks the panic or its stack: %s", text)
	}
}
