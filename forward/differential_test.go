package forward

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// pair is this forwarder and net/http's in front of the same backend.
type pair struct{ ours, theirs string }

// told answers by what it is asked, and tells in its header what it saw.
func told(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if len(body) > 1000 {
		body = fmt.Appendf(nil, "%d bytes, %d of them x", len(body), bytes.Count(body, []byte("x")))
	}
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
	case "/large":
		for range 100 {
			io.WriteString(w, strings.Repeat("z", 5000))
		}
	case "/trailer":
		h.Set("Trailer", "X-T")
		io.WriteString(w, "body")
		h.Set("X-T", "t")
	case "/only-trailers":
		h.Set("Grpc-Status", "5")
		w.WriteHeader(200)
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
	case "/cut":
		h.Set("Content-Length", "1000")
		io.WriteString(w, "a part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case "/die":
		panic(http.ErrAbortHandler)
	default:
		io.WriteString(w, strings.Repeat("y", 20000))
	}
}

// proxies starts both in front of a backend of HTTP/1.1 and HTTP/2; they pass on what they get, in
// the protocol in which they get it.
func proxies(t *testing.T, handler http.HandlerFunc) pair {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	quiet := log.New(io.Discard, "", 0)
	backend := httptest.NewUnstartedServer(handler)
	backend.Config.Protocols, backend.Config.ErrorLog = protocols, quiet
	backend.Start()
	t.Cleanup(backend.Close)
	address := backend.Listener.Addr().String()
	ours, _ := proxyTo(t, address, nil)

	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	transports := map[int]*http.Transport{1: {DisableCompression: true}, 2: {DisableCompression: true, Protocols: h2}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: address})
			r.Out.Host = r.In.Host
			// net/http's client adds these when they are absent.
			if _, ok := r.In.Header["User-Agent"]; !ok {
				r.Out.Header["User-Agent"] = nil
			}
		},
		Transport:     roundTrip(func(r *http.Request) (*http.Response, error) { return transports[r.ProtoMajor].RoundTrip(r) }),
		FlushInterval: -1,
		ErrorLog:      quiet,
	}
	standard := httptest.NewUnstartedServer(proxy)
	standard.Config.Protocols, standard.Config.ErrorLog = protocols, quiet
	standard.Start()
	t.Cleanup(func() {
		standard.Close()
		for _, transport := range transports {
			transport.CloseIdleConnections()
		}
	})
	return pair{ours, standard.Listener.Addr().String()}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// seen is one response as its client sees it.
type seen struct {
	interim []int
	status  int
	header  http.Header
	body    string
	trailer http.Header
	length  int64
	coding  string
	cut     bool // the body ended too early
	last    bool // the connection ends
}

// see reads a response. What a proxy says itself is only compared by its status.
func see(r *bufio.Reader, method string) (out seen, err error) {
	for {
		response, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return out, err
		}
		if response.StatusCode < 200 {
			out.interim = append(out.interim, response.StatusCode)
			continue
		}
		body, err := io.ReadAll(response.Body)
		out.status, out.last, out.cut = response.StatusCode, response.Close, err != nil
		if response.StatusCode == 502 || response.StatusCode == 400 {
			return out, nil
		}
		response.Header.Del("Date")
		response.Header.Del("Connection")
		out.header, out.body, out.trailer = response.Header, string(body), response.Trailer
		out.length, out.coding = response.ContentLength, strings.Join(response.TransferEncoding, ",")
		return out, nil
	}
}

const fieldsOf = "Host: front.example\r\nUser-Agent: t\r\n"

// messages are requests that both forwarders understand in the same way.
var messages = map[string]string{
	"a GET":                              "GET / HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"a query":                            "GET /a%20b?x=1&y=%2F HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"an absolute target":                 "GET http://other.example/p?q HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"HEAD":                               "HEAD / HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"HEAD of chunks":                     "HEAD /204 HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"204":                                "GET /204 HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"304":                                "GET /304 HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"hop-by-hop fields":                  "GET /hop HTTP/1.1\r\n" + fieldsOf + "Connection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: 3\r\nProxy-Authorization: p\r\nTE: trailers\r\n\r\n",
	"chunks":                             "GET /chunked HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"much":                               "GET /large HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"trailers":                           "GET /trailer HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"an interim response":                "GET /early HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"an upstream that closes":            "GET /close HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"repeated fields":                    "GET /many HTTP/1.1\r\n" + fieldsOf + "Cookie: a\r\nX: 1\r\nX: 2\r\n\r\n",
	"a body by length":                   "POST /p HTTP/1.1\r\n" + fieldsOf + "Content-Length: 5\r\n\r\nhello",
	"an empty body":                      "POST /p HTTP/1.1\r\n" + fieldsOf + "Content-Length: 0\r\n\r\n",
	"a body by chunks":                   "POST /p HTTP/1.1\r\n" + fieldsOf + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	"a large body by length":             "PUT /p HTTP/1.1\r\n" + fieldsOf + "Content-Length: 200000\r\n\r\n" + strings.Repeat("x", 200000),
	"a large body by chunks":             "POST /chunked HTTP/1.1\r\n" + fieldsOf + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1388\r\n"+strings.Repeat("x", 5000)+"\r\n", 40) + "0\r\n\r\n",
	"capital chunked":                    "POST /p HTTP/1.1\r\n" + fieldsOf + "Transfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
	"an empty value":                     "GET / HTTP/1.1\r\n" + fieldsOf + "X-Empty:\r\n\r\n",
	"a body without a method's blessing": "GET /p HTTP/1.1\r\n" + fieldsOf + "Content-Length: 2\r\n\r\nok",
	"an unknown method":                  "BREW /pot HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"DELETE":                             "DELETE /204 HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"an upstream that dies, GET":         "GET /die HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"an upstream that dies, POST":        "POST /die HTTP/1.1\r\n" + fieldsOf + "Content-Length: 2\r\n\r\nno",
}

// endings are requests after which there is no other on the connection.
var endings = map[string]string{
	"a response that is cut":    "GET /cut HTTP/1.1\r\n" + fieldsOf + "\r\n",
	"the client's last":         "GET / HTTP/1.1\r\n" + fieldsOf + "Connection: close\r\n\r\n",
	"HTTP/1.0":                  "GET /204 HTTP/1.0\r\n" + fieldsOf + "\r\n",
	"two hosts":                 "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"no host":                   "GET / HTTP/1.1\r\n\r\n",
	"two lengths":               "POST / HTTP/1.1\r\n" + fieldsOf + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
	"a length that is none":     "POST / HTTP/1.1\r\n" + fieldsOf + "Content-Length: +1\r\n\r\na",
	"a field with a space":      "GET / HTTP/1.1\r\n" + fieldsOf + "X : 1\r\n\r\n",
	"a line that is no request": "hello there\r\n\r\n",
}

func methodOf(message string) string {
	method, _, _ := strings.Cut(message, " ")
	return method
}

// compare reports where the two differ.
func compare(t *testing.T, what string, ours, theirs any) {
	t.Helper()
	if got, want := fmt.Sprintf("%+v", ours), fmt.Sprintf("%+v", theirs); got != want {
		t.Errorf("%s\nthis forwarder: %.900s\nnet/http's:     %.900s", what, got, want)
	}
}

// The same request through this forwarder and through net/http's must give the same response.
func TestAgreesWithTheStandardReverseProxy(t *testing.T) {
	p := proxies(t, told)
	for name, message := range messages {
		t.Run(name, func(t *testing.T) {
			var answers [2]seen
			for i, address := range []string{p.ours, p.theirs} {
				c := dialTo(t, address)
				go io.WriteString(c, message)
				var err error
				if answers[i], err = see(bufio.NewReader(c), methodOf(message)); err != nil {
					t.Fatalf("%s: %v", address, err)
				}
			}
			compare(t, "", answers[0], answers[1])
		})
	}
	t.Run("Expect with its body", func(t *testing.T) {
		var answers [2]seen
		for i, address := range []string{p.ours, p.theirs} {
			c := dialTo(t, address)
			io.WriteString(c, "POST /p HTTP/1.1\r\n"+fieldsOf+"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok")
			a, err := see(bufio.NewReader(c), "POST")
			if err != nil {
				t.Fatalf("%s: %v", address, err)
			}
			// Expect is answered by whoever reads the body first; whether 100 is seen twice is no
			// one's promise.
			a.interim = nil
			a.header.Set("X-Fields", strings.ReplaceAll(a.header.Get("X-Fields"), "Expect[100-continue];", ""))
			answers[i] = a
		}
		compare(t, "", answers[0], answers[1])
	})
}

// Many requests on one connection, one after the other or all at once, give the same responses in
// the same order, and the connection ends at the same one.
func TestAgreesWithTheStandardReverseProxyOnKeptConnections(t *testing.T) {
	p := proxies(t, told)
	names, ends := make([]string, 0, len(messages)), make([]string, 0, len(endings))
	for name := range messages {
		names = append(names, name)
	}
	for name := range endings {
		ends = append(ends, name)
	}
	slices.Sort(names)
	slices.Sort(ends)
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		var sequence, order []string
		for range 1 + random.IntN(8) {
			name := names[random.IntN(len(names))]
			sequence, order = append(sequence, messages[name]), append(order, name)
		}
		// Each ending once or more, and connections that the client ends.
		if n := int(seed) % (len(ends) + 2); n < len(ends) {
			sequence, order = append(sequence, endings[ends[n]]), append(order, ends[n])
		}
		pipelined := seed%3 == 0
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var answers [2][]seen
			reset := false // net/http's ended the connection with requests unread, and that took a response with it
			for i, address := range []string{p.ours, p.theirs} {
				c := dialTo(t, address)
				r := bufio.NewReader(c)
				if pipelined {
					go io.WriteString(c, strings.Join(sequence, ""))
				}
				for _, message := range sequence {
					if !pipelined {
						go io.WriteString(c, message)
					}
					a, err := see(r, methodOf(message))
					if reset = i == 1 && pipelined && errors.Is(err, syscall.ECONNRESET); reset {
						break
					}
					if err != nil {
						t.Errorf("%s, after %d responses of %q: %v", address, len(answers[i]), order, err)
						break
					}
					answers[i] = append(answers[i], a)
					if a.last || a.cut {
						break
					}
				}
				c.Close()
			}
			for n := range min(len(answers[0]), len(answers[1])) {
				what := fmt.Sprintf("response %d of %q", n, order)
				if _, end := endings[order[n]]; !end && answers[1][n].last && !answers[0][n].last {
					// net/http's may end a connection after a body without need; what follows has
					// no counterpart. Nor has what the client did not get to read: what it sent
					// after that request is answered by a reset.
					if answers[1][n].cut && pipelined {
						return
					}
					answers[1][n].last = false
					compare(t, what, answers[0][n], answers[1][n])
					return
				}
				compare(t, what, answers[0][n], answers[1][n])
			}
			if len(answers[0]) != len(answers[1]) && !reset {
				t.Errorf("of %q %d were answered here, %d by net/http's", order, len(answers[0]), len(answers[1]))
			}
		})
	}
}
