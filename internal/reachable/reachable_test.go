package reachable

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/wire"
)

func keys() wire.Keys {
	key := []byte("0123456789abcdef0123456789abcdef")
	return wire.Keys{Current: key, Accepted: [][]byte{key}}
}

func connect(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

// says is what an attempt to connect to a pod ends with.
var says = map[string]error{
	"10.0.0.1": nil,
	"10.0.0.2": connect(os.ErrDeadlineExceeded),
	"10.0.0.3": connect(os.NewSyscallError("connect", syscall.ECONNREFUSED)),
	"10.0.0.4": connect(os.NewSyscallError("connect", syscall.EHOSTUNREACH)),
	"10.0.0.5": connect(os.NewSyscallError("socket", syscall.EMFILE)),
	"10.0.0.6": connect(os.NewSyscallError("connect", syscall.ENETUNREACH)),
}

func newServer(t *testing.T, silent func(silent, answered []netip.Addr)) *httptest.Server {
	var guard wire.Guard
	server := httptest.NewServer(&Server{Node: "c", Silent: silent,
		Admit: func(w http.ResponseWriter, r *http.Request) (*wire.Signature, bool) {
			return guard.Admit(w, r, keys(), "", wire.AutoscalerSubject)
		},
		Knows: func(a netip.Addr) bool { return a != netip.MustParseAddr("10.9.9.9") },
		Dial: func(_ context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			said, known := says[host]
			if err != nil || !known || network != "tcp" || port != "8012" {
				t.Errorf("dials %s %s", network, address)
			}
			if said != nil {
				return nil, said
			}
			near, far := net.Pipe()
			far.Close()
			return near, nil
		}})
	t.Cleanup(server.Close)
	return server
}

func TestEachPodIsAskedOnceAndWhatFailsHereIsNoAnswer(t *testing.T) {
	told := 0
	server := newServer(t, func(silent, answered []netip.Addr) {
		if told++; len(silent) != 2 || len(answered) != 2 {
			t.Errorf("told of %v and %v", silent, answered)
		}
	})
	question := []byte(`{"pods":["10.0.0.1","10.0.0.2","10.0.0.3","10.0.0.4","10.0.0.5","10.0.0.6","10.9.9.9"]}`)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+wire.PathReach, bytes.NewReader(question))
	if err != nil {
		t.Fatal(err)
	}
	token := keys().Token("", wire.AutoscalerSubject)
	response, err := new(wire.Signer).Do(server.Client(), request, token)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", response.Status, body, err)
	}
	if !wire.Answers(response, token, response.Header.Get(wire.HeaderReachProof), body) {
		t.Error("the answer proves nothing")
	}
	a, err := wire.DecodeReachAnswer(body)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(a.Life, netip.Addr.Compare)
	slices.SortFunc(a.Silent, netip.Addr.Compare)
	text, _ := json.Marshal(a)
	if want := `{"node":"c","life":["10.0.0.1","10.0.0.3"],"silent":["10.0.0.2","10.0.0.4"]}`; string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

func TestWhoMayAsk(t *testing.T) {
	server := newServer(t, nil)
	for name, c := range map[string]struct {
		token, body string
		status      int
	}{
		"an activator":      {keys().Token("", wire.ActivatorSubject), `{}`, 401},
		"a pod":             {keys().Token("default", "hello-00001"), `{}`, 401},
		"an autoscaler":     {keys().Token("", wire.AutoscalerSubject), `{}`, 200},
		"one that is wrong": {keys().Token("", wire.AutoscalerSubject), `{"pods":["x"]}`, 400},
		"a long question":   {keys().Token("", wire.AutoscalerSubject), `{"pods":[` + strings.Repeat(" ", wire.MaxReachBytes) + `]}`, 413},
	} {
		status, _ := new(wire.Signer).Post(t.Context(), server.Client(), server.URL+wire.PathReach, c.token, []byte(c.body))
		if status != c.status {
			t.Errorf("%s: got %d, want %d", name, status, c.status)
		}
	}
}

// After a pause of this process nobody knows whether a pod answered in time.
func TestAPauseOfThisProcessIsNoSilence(t *testing.T) {
	for took, silent := range map[time.Duration]int{patience: 1, paused: 0} {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{Knows: func(netip.Addr) bool { return true }, Dial: func(context.Context, string, string) (net.Conn, error) {
				time.Sleep(took)
				return nil, connect(os.ErrDeadlineExceeded)
			}}
			a := s.answer(t.Context(), wire.ReachQuestion{Pods: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
			if len(a.Life) != 0 || len(a.Silent) != silent {
				t.Errorf("after %s: %+v", took, a)
			}
		})
	}
}

// A NetworkPolicy may keep an agent from a pod at all times. That proves nothing.
func TestWhatNeverAnsweredIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers, pod := false, netip.MustParseAddr("10.0.0.1")
		s := &Server{Knows: func(netip.Addr) bool { return true }, Memory: &Memory{}, Dial: func(context.Context, string, string) (net.Conn, error) {
			if answers {
				return nil, connect(os.NewSyscallError("connect", syscall.ECONNREFUSED))
			}
			return nil, connect(os.ErrDeadlineExceeded)
		}}
		ask := func() wire.ReachAnswer { return s.answer(t.Context(), wire.ReachQuestion{Pods: []netip.Addr{pod}}) }
		if a := ask(); len(a.Silent) != 0 {
			t.Errorf("before it answered: %+v", a)
		}
		answers = true
		if a := ask(); len(a.Life) != 1 {
			t.Errorf("it answers: %+v", a)
		}
		answers = false
		for range 2 {
			time.Sleep(remembers / 2)
			if a := ask(); len(a.Silent) != 1 {
				t.Errorf("after it answered: %+v", a)
			}
		}
		time.Sleep(2 * remembers)
		if a := ask(); len(a.Silent) != 0 {
			t.Errorf("long after it answered: %+v", a)
		}
	})
}

func TestAMemoryIsBounded(t *testing.T) {
	var m Memory
	address := netip.MustParseAddr("10.0.0.0")
	for range 3 * maxRemembered {
		address = address.Next()
		m.note(address)
	}
	if len(m.answered) != maxRemembered || m.has(address) || !m.has(netip.MustParseAddr("10.0.0.1")) {
		t.Errorf("%d addresses", len(m.answered))
	}
}
