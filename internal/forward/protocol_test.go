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
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
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

// The same request through this forwarder and through net/http's must give the same response.
func TestAgreesWithTheStandardReverseProxy(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		h := w.Header()
		h["Date"] = nil
		h.Set("Content-Type", "text/plain") // net/http's proxy guesses where there is none
		h.Set("X-Saw", fmt.Sprintf("%s %s host=%s len=%d te=%v err=%v body=%q trailer=%v", r.Method, r.RequestURI, r.Host, r.ContentLength, r.TransferEncoding, err, body, r.Trailer))
		names := []string{}
		for name, v := range r.Header {
			if name != "X-Forwarded-For" && name != "Connection" && name != "Accept-Encoding" {
				names = append(names, fmt.Sprint(name, v))
			}
		}
		slices.Sort(names)
		h.Set("X-Fields", strings.Join(names, ";"))
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(204)
		case "/304":
			h.Set("Etag", `"x"`)
			w.WriteHeader(304)
		case "/hop":
			h.Set("Connection", "X-Private")
			h.Set("X-Private", "1")
			h.Set("Keep-Alive", "timeout=5")
			h.Set("Proxy-Authenticate", "x")
			io.WriteString(w, "hop")
		case "/chunked":
			w.(http.Flusher).Flush()
			io.WriteString(w, "one")
			w.(http.Flusher).Flush()
			io.WriteString(w, "two")
		case "/trailer":
			h.Set("Trailer", "X-T")
			io.WriteString(w, "body")
			h.Set("X-T", "t")
		case "/early":
			h.Set("Link", "</x>; rel=preload")
			w.WriteHeader(103)
			w.WriteHeader(200)
			io.WriteString(w, "late")
		case "/close":
			h.Set("Connection", "close")
			io.WriteString(w, "close")
		case "/many":
			h["Set-Cookie"] = []string{"a=1", "b=2"}
			w.WriteHeader(418)
		default:
			io.WriteString(w, strings.Repeat("y", 20000))
		}
	})
	ours, _ := proxyTo(t, backend, nil)
	u, _ := url.Parse("http://" + backend)
	rp := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		r.Out.Host = r.In.Host
		// net/http's client adds these when they are absent.
		if _, ok := r.In.Header["User-Agent"]; !ok {
			r.Out.Header["User-Agent"] = nil
		}
	}, Transport: &http.Transport{DisableCompression: true}}
	standard := httptest.NewServer(rp)
	defer standard.Close()
	theirs := standard.Listener.Addr().String()
	type seen struct {
		interim []int
		status  int
		header  http.Header
		body    string
		trailer http.Header
		length  int64
		coding  string
	}
	ask := func(addr, raw string) seen {
		c := dialTo(t, addr)
		go io.WriteString(c, raw)
		r := bufio.NewReader(c)
		method, _, _ := strings.Cut(raw, " ")
		var out seen
		for {
			resp, err := http.ReadResponse(r, &http.Request{Method: method})
			if err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
			if resp.StatusCode < 200 {
				out.interim = append(out.interim, resp.StatusCode)
				continue
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
			resp.Header.Del("Date")
			resp.Header.Del("Connection")
			out.status, out.header, out.body, out.trailer = resp.StatusCode, resp.Header, string(body), resp.Trailer
			out.length, out.coding = resp.ContentLength, strings.Join(resp.TransferEncoding, ",")
			return out
		}
	}
	const h = "Host: front.example\r\nUser-Agent: t\r\n"
	for name, raw := range map[string]string{
		"a GET":                              "GET / HTTP/1.1\r\n" + h + "\r\n",
		"a query":                            "GET /a%20b?x=1&y=%2F HTTP/1.1\r\n" + h + "\r\n",
		"an absolute target":                 "GET http://other.example/p?q HTTP/1.1\r\n" + h + "\r\n",
		"HEAD":                               "HEAD / HTTP/1.1\r\n" + h + "\r\n",
		"HEAD of chunks":                     "HEAD /204 HTTP/1.1\r\n" + h + "\r\n",
		"204":                                "GET /204 HTTP/1.1\r\n" + h + "\r\n",
		"304":                                "GET /304 HTTP/1.1\r\n" + h + "\r\n",
		"hop-by-hop fields":                  "GET /hop HTTP/1.1\r\n" + h + "Connection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: 3\r\nProxy-Authorization: p\r\nTE: trailers\r\n\r\n",
		"chunks":                             "GET /chunked HTTP/1.1\r\n" + h + "\r\n",
		"trailers":                           "GET /trailer HTTP/1.1\r\n" + h + "\r\n",
		"an interim response":                "GET /early HTTP/1.1\r\n" + h + "\r\n",
		"an upstream that closes":            "GET /close HTTP/1.1\r\n" + h + "\r\n",
		"repeated fields":                    "GET /many HTTP/1.1\r\n" + h + "Cookie: a\r\nX: 1\r\nX: 2\r\n\r\n",
		"a body by length":                   "POST /p HTTP/1.1\r\n" + h + "Content-Length: 5\r\n\r\nhello",
		"an empty body":                      "POST /p HTTP/1.1\r\n" + h + "Content-Length: 0\r\n\r\n",
		"a body by chunks":                   "POST /p HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"capital chunked":                    "POST /p HTTP/1.1\r\n" + h + "Transfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		"an empty value":                     "GET / HTTP/1.1\r\n" + h + "X-Empty:\r\n\r\n",
		"Expect with its body":               "POST /p HTTP/1.1\r\n" + h + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
		"a body without a method's blessing": "GET /p HTTP/1.1\r\n" + h + "Content-Length: 2\r\n\r\nok",
	} {
		t.Run(name, func(t *testing.T) {
			a, b := ask(ours, raw), ask(theirs, raw)
			// Expect is answered by whoever reads the body first; whether 100 is seen twice is no one's promise.
			if name == "Expect with its body" {
				a.interim, b.interim = nil, nil
				strip := func(s *seen) {
					s.header.Set("X-Fields", strings.ReplaceAll(s.header.Get("X-Fields"), "Expect[100-continue];", ""))
				}
				strip(&a)
				strip(&b)
			}
			if got, want := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); got != want {
				t.Errorf("this forwarder: %.600s\nnet/http's:     %.600s", got, want)
			}
		})
	}
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

// A client that leaves frees what its request holds: while it waits for admission, and while the upstream works.
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
		p.admit = func(r *Request) Verdict {
			entered <- true
			if r.Path() == "/held" {
				<-r.Context().Done()
				return Verdict{Reply: Reply{Status: 500}}
			}
			return Verdict{Upstream: up}
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
			s := &Server{Handler: &policy{admit: func(r *Request) Verdict {
				if !r.TLS() {
					t.Error("not seen as TLS")
				}
				return Verdict{Upstream: up}
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
