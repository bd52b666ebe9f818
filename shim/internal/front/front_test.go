package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ebb.dev/ebb/shim/internal/child"
	"ebb.dev/ebb/shim/internal/config"
	"ebb.dev/ebb/test/eventually"
)

var family = child.New()

// TestMain is the program behind the front, if it is told so: an HTTP server at PORT. /end ends it,
// /wait answers when the client has left, /begin answers before it has read the body.
func TestMain(m *testing.M) {
	if os.Getenv("BE_THE_PROGRAM") == "" {
		os.Exit(m.Run())
	}
	if file := os.Getenv("FAIL_UNLESS"); file != "" {
		if _, err := os.Stat(file); err != nil {
			os.Exit(7)
		}
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	go func() {
		<-told
		os.Exit(0)
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("/end", func(http.ResponseWriter, *http.Request) { os.Exit(9) })
	mux.HandleFunc("/wait", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/begin", func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		control.EnableFullDuplex()
		io.WriteString(w, "begun")
		control.Flush()
		io.Copy(w, r.Body)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Pid", strconv.Itoa(os.Getpid()))
		fmt.Fprintf(w, "%s %s %s %s %q %s", r.Proto, r.Host, r.RequestURI, body, r.Header["X-Forwarded-For"], strings.Repeat("x", len(r.Header.Get("X-Size"))*1000))
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	listener, err := (&net.ListenConfig{Control: shared}).Listen(context.Background(), "tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err == nil {
		err = server.Serve(listener)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// shared lets a socket have a port that another one of this user has reserved.
func shared(_, _ string, raw syscall.RawConn) (err error) {
	if failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); failed != nil {
		return failed
	}
	return err
}

// reserve keeps a port for a program. Between the choice of a free port and its use, the tests of
// other packages could take it.
func reserve(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*unix.SockaddrInet4).Port
}

// running is a Front that runs until its test ends.
type running struct {
	url  atomic.Pointer[string] // nil until the port was opened first
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run, once done
}

// end waits until Run has returned.
func (r *running) end() error {
	<-r.done
	return r.err
}

func run(t *testing.T, env []string, set ...string) *running {
	t.Helper()
	variables := map[string]string{"SHIM_MODE": "http", "SHIM_PROGRAM_PORT": strconv.Itoa(reserve(t))}
	for _, pair := range set {
		name, value, _ := strings.Cut(pair, "=")
		variables[name] = value
	}
	c, err := config.Parse(func(name string) string { return variables[name] }, []string{os.Args[0]}, 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Port = 0 // the first listener has a free port, and the later ones have the same
	ctx, stop := context.WithCancel(t.Context())
	r := &running{stop: stop, done: make(chan struct{})}
	f := New(c, os.Args[0], append(os.Environ(), append(env, "BE_THE_PROGRAM=1")...), family, slog.New(slog.DiscardHandler), func(l net.Listener, h http.Handler) Server {
		c.Port = l.Addr().(*net.TCPAddr).Port
		r.url.Store(new(fmt.Sprintf("http://127.0.0.1:%d", c.Port)))
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		s := &http.Server{Handler: h, Protocols: protocols}
		go s.Serve(l)
		return s
	})
	go func() {
		defer close(r.done)
		r.err = f.Run(ctx, context.Background())
	}()
	t.Cleanup(func() {
		stop()
		<-r.done
	})
	return r
}

// get asks until there is an answer.
func (r *running) get(t *testing.T, path string) (status int, body, pid string) {
	t.Helper()
	eventually.Seen(t, "there is an answer", func() (error, bool) {
		select {
		case <-r.done:
			t.Fatalf("Run has returned: %v", r.err)
		default:
		}
		url := r.url.Load()
		if url == nil {
			return errors.New("the port was never open"), false
		}
		response, err := http.Get(*url + path)
		if err != nil {
			return err, false
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		status, body, pid = response.StatusCode, string(text), response.Header.Get("X-Pid")
		return nil, true
	})
	return status, body, pid
}

func TestRequestsReachTheProgramUnchanged(t *testing.T) {
	r := run(t, nil)
	r.get(t, "/") // it is up
	request, _ := http.NewRequestWithContext(t.Context(), "POST", *r.url.Load()+"/a%2Fb?x=1;y=%zz", strings.NewReader("body"))
	request.Host = "hello.example"
	request.Header.Set("X-Forwarded-For", "1.2.3.4")
	for _, two := range []bool{false, true} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!two)
		protocols.SetUnencryptedHTTP2(two)
		transport := &http.Transport{Protocols: protocols}
		defer transport.CloseIdleConnections()
		request.Body, _ = request.GetBody()
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if want := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[two] + ` hello.example /a%2Fb?x=1;y=%zz body ["1.2.3.4"] `; string(text) != want {
			t.Errorf("the program saw %q, want %q", text, want)
		}
	}
}

// A probe of the port is one of the program, because nothing listens while the program does not.
func TestThePortIsOpenOnlyWhileTheProgramAccepts(t *testing.T) {
	gate := t.TempDir() + "/gate"
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, []string{"FAIL_UNLESS=" + gate}, "SHIM_RESTARTS=1000")
	_, _, first := r.get(t, "/")
	os.Remove(gate)
	if response, err := http.Get(*r.url.Load() + "/end"); err == nil {
		response.Body.Close()
		// A GET is tried again, where nothing listens then.
		if response.StatusCode != http.StatusBadGateway && response.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("the request that ended the program got %s", response.Status)
		}
	}
	eventually.True(t, "the port is closed without a program", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(*r.url.Load(), "http://"))
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, second := r.get(t, "/"); second == first || second == "" {
		t.Errorf("process %q answers after %q has ended", second, first)
	}
	r.stop()
	if err := r.end(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestAProgramThatNeverAcceptsEndsTheFrontWithItsStatus(t *testing.T) {
	r := run(t, []string{"FAIL_UNLESS=/nowhere"}, "SHIM_PROGRAM_PORT=0")
	var ended *Ended
	if err := r.end(); !errors.As(err, &ended) || ended.Exit.Status != 7 || err.Error() != "the program ended with status 7" {
		t.Errorf("it ended with %v", err)
	}
}

func TestARequestInProgressIsAnsweredBeforeTheEnd(t *testing.T) {
	r := run(t, nil)
	r.get(t, "/")
	read, write := io.Pipe()
	response, err := http.Post(*r.url.Load()+"/begin", "", read)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	r.stop()
	go func() {
		io.WriteString(write, " and answered")
		write.Close()
	}()
	if text, err := io.ReadAll(response.Body); string(text) != "begun and answered" || err != nil {
		t.Errorf("it got %q, %v", text, err)
	}
	if err := r.end(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestAServerIsNotWaitedForLongerThanSaid(t *testing.T) {
	r := run(t, nil, "SHIM_TIMEOUT=300ms")
	if status, body, _ := r.get(t, "/wait"); status != 504 || body != "The program did not answer within 300ms.\n" {
		t.Errorf("%d %q", status, body)
	}
}

func TestLimitsHoldForAServer(t *testing.T) {
	r := run(t, nil, "SHIM_MAX_REQUEST=10", "SHIM_MAX_RESPONSE=1000")
	r.get(t, "/")
	for _, body := range []io.Reader{strings.NewReader("eleven chars"), io.MultiReader(strings.NewReader("eleven chars"))} {
		response, err := http.Post(*r.url.Load(), "", body)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 413 {
			t.Errorf("a large request got %s", response.Status)
		}
	}
	request, _ := http.NewRequestWithContext(t.Context(), "GET", *r.url.Load(), nil)
	request.Header.Set("X-Size", "12")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err == nil || len(text) > 1000 {
		t.Errorf("a large response came with %d bytes, %v", len(text), err)
	}
}

func TestTheProxyAnswersForAProgramThatIsNotThere(t *testing.T) {
	c := &config.Config{Mode: config.HTTP}
	w := httptest.NewRecorder()
	newProxy(c, "127.0.0.1:1", slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 503 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
