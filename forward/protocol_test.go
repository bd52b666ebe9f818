package forward

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// answerOf sends raw bytes and returns everything that comes back until the connection closes.
func answerOf(t *testing.T, addr, raw string) string {
	t.Helper()
	c := dialTo(t, addr)
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Where this forwarder is more faithful than net/http's.
func TestPassesRequestTrailersAndForgivesAnEmptyLine(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "trailer=", r.Trailer.Get("X-T"))
	})
	addr, _ := proxyTo(t, backend, nil)
	got := answerOf(t, addr, "\r\nPOST /p HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n5\r\nhello\r\n0\r\nX-T: v\r\n\r\n")
	if !strings.HasSuffix(got, "trailer=v") {
		t.Errorf("got %q", got)
	}
}

// A field that is removed marks the request whose answer has it, and no other. Trailers of HTTP/1.1
// are passed on.
func TestARemovedFieldMarksItsRequest(t *testing.T) {
	word := func(w http.ResponseWriter, r *http.Request) {
		q, h := r.URL.Query(), w.Header()
		if h["X-Word"] = q["early"]; q.Has("early") {
			w.WriteHeader(http.StatusEarlyHints)
		}
		h["X-Word"] = q["head"]
		io.WriteString(w, "body")
		http.NewResponseController(w).Flush()
		for _, name := range []string{"Word", "Other"} {
			if values := q["trailer"+name]; len(values) > 0 {
				h[http.TrailerPrefix+"X-"+name] = values
			}
		}
	}
	for protocol, via := range map[string]struct {
		backend func(testing.TB, http.HandlerFunc) string
		client  *http.Client
		streams bool
	}{"HTTP/1.1": {httpBackend, http.DefaultClient, false}, "HTTP/2": {h2cBackend, h2cClient(t), true}} {
		addr, p := proxyTo(t, via.backend(t, word), func(s *Server, p *policy) {
			s.StripResponse = []string{"X-Nothing", "x-word"}
			s.Stripped = func(_, value string, _ time.Time) bool { return value == "yes" }
			p.done = make(chan Result, 1)
		})
		for _, row := range []struct {
			behaviour, query string
			marked           bool
		}{
			{"no word", "", false},
			{"another word", "head=no", false},
			{"the word in the head", "head=yes", true},
			{"nothing is left of the request before", "", false},
			{"one word of several", "head=no&head=yes&head=no", true},
			{"before the answer", "early=yes", true},
			{"in trailers", "trailerWord=yes", via.streams},
			{"another word in trailers", "trailerWord=no", false},
			{"in trailers, beside others", "trailerOther=1&trailerWord=yes&trailerOther=2", via.streams},
		} {
			var early []string
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				early = append(early, h["X-Word"]...)
				return nil
			}})
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/?"+row.query, nil)
			resp, err := via.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || string(body) != "body" {
				t.Errorf("%s, %s: got %q, %v", protocol, row.behaviour, body, err)
			}
			if res := <-p.done; res.Marked != row.marked || res.Cause != Completed {
				t.Errorf("%s, %s: %+v", protocol, row.behaviour, res)
			}
			if seen := append(early, resp.Header["X-Word"]...); len(seen) > 0 {
				t.Errorf("%s, %s: the client got %q", protocol, row.behaviour, seen)
			}
			sent := req.URL.Query()
			if via.streams {
				sent.Del("trailerWord")
			}
			if got := resp.Trailer; !slices.Equal(got["X-Word"], sent["trailerWord"]) || !slices.Equal(got["X-Other"], sent["trailerOther"]) {
				t.Errorf("%s, %s: the client got the trailers %v", protocol, row.behaviour, got)
			}
		}
	}
}

func TestHTTP10(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/chunked" {
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, "body")
	})
	addr, _ := proxyTo(t, backend, nil)
	if got := answerOf(t, addr, "GET / HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(got, "\r\n\r\nbody") {
		t.Errorf("without keep-alive: %q", got)
	}
	got := answerOf(t, addr, "GET /chunked HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
	if !strings.HasSuffix(got, "\r\n\r\nbody") || strings.Contains(got, "chunked") {
		t.Errorf("chunks for HTTP/1.0: %q", got)
	}
	got = answerOf(t, addr, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n")
	if strings.Count(got, "HTTP/1.1 200 OK") != 2 || !strings.Contains(got, "Connection: keep-alive") {
		t.Errorf("with keep-alive: %q", got)
	}
}

func TestAResponseThatEndsWithItsConnection(t *testing.T) {
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := readHeadOf(r); err == nil {
			io.WriteString(c, "HTTP/1.0 200 Fine\nX: lenient\n\nuntil the end")
		}
	})
	addr, _ := proxyTo(t, backend, nil)
	for range 2 {
		resp, err := http.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != "until the end" || resp.Header.Get("X") != "lenient" {
			t.Errorf("got %q %v %v", body, err, resp.Header)
		}
	}
}

// A client that leaves frees what its request holds: while it waits for admission, and while the
// upstream works.
func TestAClientThatLeavesIsNoticed(t *testing.T) {
	left := make(chan error, 1)
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		left <- r.Context().Err()
	})
	up := NewUpstream(backend, UpstreamOptions{})
	entered := make(chan bool, 1)
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
		p.done = make(chan Result, 1)
		p.admit = func(r *Request) Decision {
			entered <- true
			if r.Path() == "/held" {
				<-r.Context().Done()
				return Decision{Reply: Reply{Status: 500}}
			}
			return Decision{Upstream: up}
		}
	})
	for _, test := range []struct{ name, request string }{
		{"held", "GET /held HTTP/1.1\r\nHost: h\r\n\r\n"},
		{"held, with more of the body here than is kept", "POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 20000)},
		{"forwarded", "GET /f HTTP/1.1\r\nHost: h\r\n\r\n"},
		{"forwarded, body unfinished", "POST /f HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := dialTo(t, addr)
			io.WriteString(c, test.request)
			<-entered
			c.Close()
			if res := <-p.done; res.Cause != ClientGone || res.Status != 0 {
				t.Errorf("result %+v", res)
			}
			if strings.HasPrefix(test.request, "GET /f") {
				<-left
			}
		})
	}
}

func TestASlowHeadIsBounded(t *testing.T) {
	addr, _ := proxyTo(t, "127.0.0.1:1", func(s *Server, _ *policy) {
		s.HeaderTimeout, s.FirstRequestTimeout = 50*time.Millisecond, 50*time.Millisecond
	})
	if got := answerOf(t, addr, "GET / HTTP/1.1\r\nHost:"); !strings.HasPrefix(got, "HTTP/1.1 408 ") {
		t.Errorf("half a head got %q", got)
	}
	if got := answerOf(t, addr, ""); got != "" {
		t.Errorf("silence got %q", got)
	}
}

func TestATLSConnectionSpeaksBothVersions(t *testing.T) {
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
			donor := httptest.NewUnstartedServer(nil)
			donor.StartTLS() // only for its certificate
			defer donor.Close()
			up := NewUpstream(backend, UpstreamOptions{})
			defer up.Close()
			s := &Server{Handler: &policy{admit: func(r *Request) Decision {
				if !r.TLS() {
					t.Error("not seen as TLS")
				}
				return Decision{Upstream: up}
			}}, TLS: donor.TLS}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go s.ServeTLS(l)
			defer s.Close()
			tr := donor.Client().Transport.(*http.Transport).Clone()
			tr.ForceAttemptHTTP2 = version == "HTTP/2.0"
			if version == "HTTP/1.1" {
				tr.TLSClientConfig.NextProtos = []string{"http/1.1"}
			}
			tr.Protocols = nil
			defer tr.CloseIdleConnections()
			client := &http.Client{Transport: tr, Timeout: 30 * time.Second}
			for range 3 {
				resp, err := client.Post("https://"+l.Addr().String(), "text/plain", bytes.NewReader(make([]byte, 100000)))
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if string(body) != version || resp.Proto != version {
					t.Errorf("the client spoke %s, the upstream heard %s", resp.Proto, body)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			tr.CloseIdleConnections()
			if err := s.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// RFC 9112 sections 6.1 and 6.3: chunks are believed where something speaks against them, but the
// connection is not used again.
func TestAConnectionOfDoubtfulChunksIsNotUsedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		head string
		used int // connections for two requests
	}{
		"good chunks":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 1},
		"a length beside":       {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 2},
		"chunks in HTTP/1.0":    {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n", 2},
		"a length and HTTP/1.0": {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 14\r\n\r\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			var used atomic.Int64
			backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
				used.Add(1)
				for {
					if _, err := readHeadOf(r); err != nil {
						return
					}
					io.WriteString(c, test.head+"4\r\nbody\r\n0\r\n\r\n")
				}
			})
			addr, _ := proxyTo(t, backend, nil)
			for range 2 {
				resp, err := http.Get("http://" + addr)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || !strings.Contains(string(body), "body") {
					t.Errorf("got %q, %v", body, err)
				}
			}
			if n := used.Load(); n != int64(test.used) {
				t.Errorf("%d connections were used, want %d", n, test.used)
			}
		})
	}
}
