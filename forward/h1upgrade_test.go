package forward

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const offer = "Connection: Upgrade\r\nUpgrade: "

// A container that changes to what nobody asked for, or does not say to what, is answered for with
// 502; its connection ends, and the client's goes on.
func TestASwitchThatNobodyAskedForIs502(t *testing.T) {
	const lines = "Connection: upgrade\r\nUpgrade: lines\r\n"
	for name, test := range map[string]struct {
		asks, answers string
		reason        string
	}{
		"nothing was asked":                    {"", lines, "switched protocols unasked"},
		"Upgrade without the Connection":       {"Upgrade: lines\r\n", lines, "switched protocols unasked"},
		"Connection without an Upgrade":        {"Connection: upgrade\r\n", lines, "switched protocols unasked"},
		"an empty offer":                       {offer + "\r\n", lines, "switched protocols unasked"},
		"an offer of nothing":                  {offer + " , ,\r\n", lines, "switched protocols unasked"},
		"another protocol":                     {offer + "websocket\r\n", lines, `protocol "lines"`},
		"a part of a name":                     {offer + "line, liness\r\n", lines, `protocol "lines"`},
		"another version":                      {offer + "lines/1\r\n", "Connection: upgrade\r\nUpgrade: lines/2\r\n", `protocol "lines/2"`},
		"a version where none was named":       {offer + "lines\r\n", "Connection: upgrade\r\nUpgrade: lines/2\r\n", `protocol "lines/2"`},
		"one more than asked for":              {offer + "lines\r\n", "Connection: upgrade\r\nUpgrade: lines, other\r\n", `protocol "other"`},
		"one more in a second field":           {offer + "lines\r\n", lines + "Upgrade: other\r\n", `protocol "other"`},
		"HTTP/2, which was asked for":          {offer + "h2c\r\nHTTP2-Settings: AA\r\n", "Connection: upgrade\r\nUpgrade: h2c\r\n", "switched protocols unasked"},
		"HTTP/2, asked for beside another":     {offer + "lines, H2C\r\n", "Connection: upgrade\r\nUpgrade: h2c\r\n", `protocol "h2c"`},
		"to none":                              {offer + "lines\r\n", "Connection: upgrade\r\n", "without naming one"},
		"to an empty one":                      {offer + "lines\r\n", "Connection: upgrade\r\nUpgrade: ,\r\n", "without naming one"},
		"Upgrade that its Connection does not": {offer + "lines\r\n", "Upgrade: lines\r\n", "without naming one"},
	} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan error, 1)
			backend := rawBackend(t, func(i int, c net.Conn, r *bufio.Reader) {
				if _, err := readHeadOf(r); err != nil {
					return
				}
				if i > 0 {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
					return
				}
				io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n"+test.answers+"\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
				_, err := r.ReadByte()
				closed <- err
			})
			done := make(chan Result, 2)
			var server *Server
			addr, _ := proxyTo(t, backend, func(s *Server, p *policy) { server, p.done = s, done })
			c := dialTo(t, addr)
			r := bufio.NewReader(c)
			ask := func(fields string) (int, string) {
				t.Helper()
				fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: h\r\n%s\r\n", fields)
				response, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(response.Body)
				if err != nil {
					t.Fatal(err)
				}
				return response.StatusCode, string(body)
			}
			if status, body := ask(test.asks); status != 502 || !strings.Contains(body, test.reason) {
				t.Errorf("got %d %q, want 502 with %q", status, body, test.reason)
			}
			if res := <-done; res.Cause != UpstreamFailed || res.Status != 502 || res.Upgraded {
				t.Errorf("the result is %+v", res)
			}
			if err := <-closed; err == nil {
				t.Error("the container's connection goes on")
			}
			if n := server.Upgraded(); n != 0 {
				t.Errorf("%d upgraded connections are counted", n)
			}
			if test.asks != "" { // what follows a refused upgrade may be of the other protocol
				c = dialTo(t, addr)
				r.Reset(c)
			}
			if status, body := ask(""); status != 200 || body != "ok" {
				t.Errorf("the next request got %d %q", status, body)
			}
		})
	}
}

// All protocols that the client names are offered, but not HTTP/2: requests inside of it would be
// seen by nobody.
func TestWhatIsOfferedToTheContainer(t *testing.T) {
	for name, test := range map[string]struct{ asks, want, answer string }{
		"one":                {offer + "lines\r\n", "lines", "lines"},
		"several":            {offer + "a/1,b ,\tlines/2.0\r\n", "a/1, b, lines/2.0", "Lines/2.0"},
		"several in fields":  {offer + "a\r\nUpgrade: lines\r\n", "a, lines", "LINES"},
		"layers of them":     {offer + "a, b\r\n", "a, b", "a, b"},
		"not HTTP/2":         {offer + "h2c, lines, H2C\r\n", "lines", "lines"},
		"HTTP/2 only":        {offer + "h2c\r\n", "", ""},
		"without Connection": {"Upgrade: lines\r\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
				request, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				saw := strings.Join(request.Header["Upgrade"], "|")
				if (saw != "") != (request.Header.Get("Connection") == "Upgrade") {
					saw += " with Connection: " + request.Header.Get("Connection")
				}
				if test.answer == "" {
					fmt.Fprintf(c, "HTTP/1.1 204 No Content\r\nX-Saw: %s\r\n\r\n", saw)
					return
				}
				fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nX-Saw: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", saw, test.answer)
			})
			addr, _ := proxyTo(t, backend, nil)
			c := dialTo(t, addr)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n"+test.asks+"\r\n")
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			want := 101
			if test.answer == "" {
				want = 204
			}
			if response.StatusCode != want || response.Header.Get("X-Saw") != test.want || response.Header.Get("Upgrade") != test.answer {
				t.Errorf("got %d, the container saw %q and answered %q; want %d, %q, %q", response.StatusCode, response.Header.Get("X-Saw"),
					response.Header.Get("Upgrade"), want, test.want, test.answer)
			}
		})
	}
}

// A 101 may come while the request's body still does. The body goes first, and what follows it is
// the new protocol's.
func TestAnUpgradeAfterABody(t *testing.T) {
	const timer = 10 * time.Second
	const byLength, byChunks = "Content-Length: 10\r\n", "Transfer-Encoding: chunked\r\n"
	for name, test := range map[string]struct {
		fields string
		pieces []string // sent after the head, with pauses; the first goes with the head
		leaves bool     // then the client leaves
		defers bool
		status int
		cause  Cause
		bytes  int64 // of the request's body and of what follows it
	}{
		"by length":                    {fields: byLength, pieces: []string{"01234", "56789", "ping"}, status: 101, bytes: 14},
		"by length, with what follows": {fields: byLength, pieces: []string{"", "0123456789ping"}, status: 101, bytes: 14},
		"it all came with the head":    {fields: byLength, pieces: []string{"0123456789ping"}, status: 101, bytes: 14},
		"by chunks":                    {fields: byChunks, pieces: []string{"a\r\n01234", "56789\r", "\n0\r\n\r\npi", "ng"}, status: 101, bytes: 24},
		"held back":                    {fields: byLength, pieces: []string{"01234", "56789", "ping"}, defers: true, status: 101, bytes: 14},
		"it does not come whole":       {fields: byLength, pieces: []string{"01234"}, status: 504, cause: TimedOut, bytes: 5},
		"it is broken":                 {fields: byChunks, pieces: []string{"a\r\n01234", "5678900"}, status: 400, cause: BadRequest},
		"the client leaves":            {fields: byLength, pieces: []string{"01234"}, leaves: true, cause: ClientGone, bytes: 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all sync.WaitGroup
				defer all.Wait()
				up := NewUpstream("container", UpstreamOptions{Dial: func(context.Context, string) (net.Conn, error) {
					near, far := net.Pipe()
					all.Go(func() {
						defer far.Close()
						r := bufio.NewReader(far)
						request, err := http.ReadRequest(r)
						if err != nil {
							t.Error(err)
							return
						}
						all.Go(func() {
							io.WriteString(far, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: talk\r\n\r\n")
						})
						body, err := io.ReadAll(request.Body)
						if err != nil {
							return
						}
						if string(body) != "0123456789" {
							t.Errorf("the body is %q", body)
						}
						said := make([]byte, 4)
						if _, err := io.ReadFull(r, said); err != nil || string(said) != "ping" {
							t.Errorf("after the body came %q, %v", said, err)
						}
						io.WriteString(far, "pong")
					})
					return near, nil
				}})
				p := &policy{done: make(chan Result, 1), admit: func(r *Request) Decision {
					r.Timeouts = Timeouts{ResponseStart: timer}
					if test.defers {
						r.DeferBody(time.Second)
					}
					return Decision{Upstream: up}
				}}
				s := &Server{Handler: p}
				s.init()
				near, far := net.Pipe()
				c := newConn(s, far, nil)
				s.track(&c.clientConn)
				all.Go(c.serve)
				all.Go(func() {
					first := "POST / HTTP/1.1\r\nHost: h\r\n" + offer + "talk\r\n" + test.fields + "\r\n"
					for _, piece := range test.pieces {
						io.WriteString(near, first+piece)
						first = ""
						<-time.After(time.Second)
					}
					if test.leaves {
						near.Close()
					}
				})
				status, rest := 0, ""
				r := bufio.NewReader(near)
				if response, err := http.ReadResponse(r, nil); err == nil {
					status = response.StatusCode
					data, _ := io.ReadAll(r)
					rest = string(data)
				}
				if status != test.status || status == 101 && rest != "pong" {
					t.Errorf("got %d and %q, want %d", status, rest, test.status)
				}
				if res := <-p.done; res.Status != test.status || res.Cause != test.cause || res.Upgraded != (test.status == 101) || test.bytes > 0 && res.RequestBytes != test.bytes {
					t.Errorf("the result is %+v", res)
				}
				if n := s.Upgraded(); n != 0 {
					t.Errorf("%d upgraded connections are counted", n)
				}
				near.Close()
				s.Close()
				up.Close()
			})
		})
	}
}
