package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/wire"
)

func spec(t *testing.T, text string, port int) Spec {
	t.Helper()
	probes, err := wire.ReadProbes(text, port)
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Probe: probes[0]}
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func TestEveryKindOfProbe(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/header" && (r.Header.Get("X-A") != "1" || r.Host != "named"):
			w.WriteHeader(400)
		case r.URL.Path == "/redirect":
			http.Redirect(w, r, "/gone", http.StatusFound)
		case r.URL.Path == "/gone":
			w.WriteHeader(404)
		case r.UserAgent()[:11] != "kube-probe/":
			w.WriteHeader(500)
		}
	}))
	defer web.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer secure.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, status := grpc.NewServer(), health.NewServer()
	status.SetServingStatus("good", healthpb.HealthCheckResponse_SERVING)
	status.SetServingStatus("bad", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(server, status)
	go server.Serve(l)
	defer server.Stop()
	nobody := int(reserve.Port(t).Port())
	for name, test := range map[string]struct {
		spec  string
		port  int
		ready bool
	}{
		"HTTP 200":                   {`{"httpGet":{"path":"/"}}`, port(web.Listener), true},
		"HTTP without a slash":       {`{"httpGet":{"path":"x"}}`, port(web.Listener), true},
		"HTTP 302 is good":           {`{"httpGet":{"path":"/redirect"}}`, port(web.Listener), true},
		"HTTP 404":                   {`{"httpGet":{"path":"/gone"}}`, port(web.Listener), false},
		"HTTP headers and host":      {`{"httpGet":{"path":"/header","httpHeaders":[{"name":"host","value":"named"},{"name":"X-A","value":"1"}]}}`, port(web.Listener), true},
		"HTTPS with any certificate": {`{"httpGet":{"scheme":"HTTPS"}}`, port(secure.Listener), true},
		"HTTP to nobody":             {`{"httpGet":{}}`, nobody, false},
		"TCP":                        {`{"tcpSocket":{"port":"0"}}`, port(web.Listener), true},
		"TCP to nobody":              {`{"tcpSocket":{}}`, nobody, false},
		"exec becomes TCP":           {`{"exec":{"command":["false"]}}`, port(web.Listener), true},
		"gRPC, the whole server":     {`{"grpc":{}}`, port(l), true},
		"gRPC, a service":            {`{"grpc":{"service":"good"}}`, port(l), true},
		"gRPC, not serving":          {`{"grpc":{"service":"bad"}}`, port(l), false},
		"gRPC, unknown service":      {`{"grpc":{"service":"nobody"}}`, port(l), false},
		"gRPC to an HTTP server":     {`{"grpc":{}}`, port(web.Listener), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(t, test.spec, test.port)
			if err := s.Once(context.Background(), 10*time.Second); (err == nil) != test.ready {
				t.Errorf("got %v, want ready %v", err, test.ready)
			}
		})
	}
}

// A startup probe that the sidecar runs itself costs little: it is asked every few milliseconds,
// not every seconds of its period.
func TestStartIsNoticedFastWhateverThePeriod(t *testing.T) {
	var up atomic.Bool
	var asked atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := asked.Add(1); n >= 20 {
			up.Store(true)
		}
		if !up.Load() {
			w.WriteHeader(503)
		}
	}))
	defer web.Close()
	port := web.Listener.Addr().(*net.TCPAddr).Port
	slow := spec(t, `{"httpGet":{"path":"/"},"periodSeconds":10,"timeoutSeconds":5}`, port)
	p := New([]Spec{slow}, []Spec{slow})
	begin := time.Now()
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	// Twenty questions at the period that was set would take 200 s;
	// TestPausesWhileTheContainerStarts has the pauses.
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	select {
	case <-p.started:
	default:
		t.Error("it does not say that the container has started")
	}
	if err := p.Ready(context.Background()); err != nil {
		t.Error(err)
	}
	up.Store(false)
	asked.Store(-1000)
	if p.Ready(context.Background()) == nil {
		t.Error("a container that fails later is still called ready")
	}
}

// However long a container starts, it is asked again no later than 20 ms after it said no, whatever
// the kind and period of the probe.
func TestPausesWhileTheContainerStarts(t *testing.T) {
	for name, text := range map[string]string{
		"HTTP":              `{"httpGet":{"path":"/"},"periodSeconds":10,"timeoutSeconds":5}`,
		"TCP":               `{"tcpSocket":{}}`,
		"exec, by the port": `{"exec":{"command":["ready"]},"periodSeconds":3}`,
	} {
		for _, starts := range []time.Duration{0, 100 * time.Millisecond, time.Second, 4 * time.Second, 10 * time.Minute} {
			t.Run(fmt.Sprintf("%s, %s", name, starts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := New([]Spec{spec(t, text, 8080)}, nil)
					begin := time.Now()
					last, most := time.Time{}, time.Duration(0)
					p.once = func(context.Context, *Spec, time.Duration) error {
						now := time.Now()
						if !last.IsZero() {
							pause := now.Sub(last)
							most = max(most, pause)
							if pause < 10*time.Millisecond {
								t.Fatalf("asked again after %s", pause)
							}
						}
						last = now
						if now.Sub(begin) < starts {
							return errors.New("it starts")
						}
						return nil
					}
					if err := p.Start(t.Context()); err != nil {
						t.Fatal(err)
					}
					if late := time.Since(begin) - starts; late > 20*time.Millisecond || most > 20*time.Millisecond {
						t.Errorf("it was noticed %s after it had started, the longest pause was %s", late, most)
					}
				})
			})
		}
	}
}

func TestAllContainersMustPass(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(500)
		}
	}))
	defer web.Close()
	port := web.Listener.Addr().(*net.TCPAddr).Port
	good := spec(t, fmt.Sprintf(`{"httpGet":{"path":"/good","port":%d},"periodSeconds":1}`, port), 1)
	bad := spec(t, fmt.Sprintf(`{"httpGet":{"path":"/bad","port":%d},"periodSeconds":1}`, port), 1)
	p := New(nil, []Spec{good, bad})
	close(p.started)
	if p.Ready(context.Background()) == nil {
		t.Error("one failing container was overlooked")
	}
}

// upgrades makes of a handler one that goes on in HTTP/2 when it is asked to; the probe leaves it
// there.
func upgrades(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, settings := r.Header["Http2-Settings"]
		if r.ProtoMajor != 1 || r.Header.Get("Upgrade") != "h2c" || r.Header.Get("Connection") != "Upgrade, HTTP2-Settings" || !settings {
			handler.ServeHTTP(w, r)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
	})
}

// Servers that speak HTTP/1.1 only, HTTP/2 only, or either with and without an upgrade between
// them.
func TestWhatTheContainerSpeaksIsFoundOut(t *testing.T) {
	var proto, seen atomic.Value
	var questions, fail atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			questions.Add(1)
			return
		}
		proto.Store(r.Proto)
		seen.Store(r.UserAgent() + " " + r.Host + " " + r.Header.Get("X-A"))
		if fail.Load() > 0 {
			w.WriteHeader(503)
		}
	})
	serve := func(handler http.Handler, http1, http2 bool) int {
		server := httptest.NewUnstartedServer(handler)
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetHTTP1(http1)
		server.Config.Protocols.SetUnencryptedHTTP2(http2)
		server.Start()
		t.Cleanup(server.Close)
		return port(server.Listener)
	}
	for name, test := range map[string]struct {
		port int
		want string
	}{
		"HTTP/1.1 only":         {serve(handler, true, false), "HTTP/1.1"},
		"both, and no upgrade":  {serve(handler, true, true), "HTTP/1.1"},
		"both, and the upgrade": {serve(upgrades(handler), true, true), "HTTP/2.0"},
		"HTTP/2 only":           {serve(handler, false, true), "HTTP/2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			questions.Store(0)
			s := spec(t, `{"httpGet":{"path":"/ready","httpHeaders":[{"name":"Host","value":"named"},{"name":"X-A","value":"1"}]}}`, test.port)
			s.detect = new(detection)
			ask := s // copies share what was found out
			fail.Store(1)
			if s.Once(t.Context(), 30*time.Second) == nil {
				t.Error("503 was taken for ready")
			}
			fail.Store(0)
			for range 3 {
				if err := ask.Once(t.Context(), 30*time.Second); err != nil {
					t.Fatal(err)
				}
				if got := proto.Load(); got != test.want {
					t.Errorf("it was asked in %v, want %s", got, test.want)
				}
			}
			if seen.Load() != userAgent+" named 1" {
				t.Errorf("the container saw %q", seen.Load())
			}
			if n := questions.Load(); n > 1 {
				t.Errorf("it was asked %d times what it speaks", n)
			}
		})
	}
	t.Run("nobody yet", func(t *testing.T) {
		there := reserve.Port(t)
		s := spec(t, `{"httpGet":{}}`, int(there.Port()))
		s.detect = new(detection)
		if s.Once(t.Context(), 30*time.Second) == nil {
			t.Error("nobody was taken for ready")
		}
		server := &http.Server{Handler: handler}
		l, err := net.Listen("tcp", there.String())
		if err != nil {
			t.Fatal(err)
		}
		go server.Serve(l)
		defer server.Close()
		if err := s.Once(t.Context(), 30*time.Second); err != nil || proto.Load() != "HTTP/1.1" {
			t.Errorf("once it is there: %v, in %v", err, proto.Load())
		}
	})
	t.Run("one that says nothing to the question", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
		server.Protocols.SetUnencryptedHTTP2(true)
		served := make(chan error, 1)
		go func() {
			silent, err := l.Accept()
			if err == nil {
				defer silent.Close()
			}
			served <- server.Serve(l)
		}()
		defer func() {
			server.Close()
			l.Close()
			<-served
		}()
		s := spec(t, `{"httpGet":{}}`, port(l))
		s.detect = new(detection)
		if err := s.Once(t.Context(), 2*time.Second); err != nil || proto.Load() != "HTTP/2.0" {
			t.Errorf("%v, in %v", err, proto.Load())
		}
	})
}

// Without the setting nobody is asked anything but the probe.
func TestHTTPProbesAreHTTP1UnlessDetectionIsOn(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	s := spec(t, `{"httpGet":{}}`, port(server.Listener))
	if s.Once(t.Context(), 30*time.Second) == nil {
		t.Error("a server that speaks HTTP/2 only answered in HTTP/1.1")
	}
}

func TestHTTP2IsDetectedIfThatIsSet(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	for _, want := range []bool{true, false} {
		probes, err := wire.ReadProbes(`{"httpGet":{"path":"/"}}`, server.Listener.Addr().(*net.TCPAddr).Port)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range Specs(probes, want) {
			if err := s.Once(t.Context(), 30*time.Second); (err == nil) != want {
				t.Errorf("%v: a container that speaks HTTP/2 only: %v", want, err)
			}
		}
	}
}
