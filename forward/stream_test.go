package forward

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestEventsArriveAtOnce(t *testing.T) {
	next := make(chan string)
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for s := range next {
			fmt.Fprintf(w, "data: %s\n\n", s)
			w.(http.Flusher).Flush()
		}
	})
	addr, _ := proxyTo(t, backend, nil)
	resp, err := http.Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for i := range 5 {
		// The next event exists only after this one was read: buffering anywhere would stop the
		// test.
		next <- fmt.Sprint(i)
		line, err := r.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("got %q %v", line, err)
		}
		r.ReadString('\n')
	}
	close(next)
}

func TestFullDuplexEcho(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			w.Write(buf[:n])
			w.(http.Flusher).Flush()
			if err != nil {
				return
			}
		}
	})
	addr, _ := proxyTo(t, backend, nil)
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", "http://"+addr, pr)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 4)
	for i := range 10 {
		fmt.Fprintf(pw, "%04d", i)
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != fmt.Sprintf("%04d", i) {
			t.Fatalf("got %q %v", buf, err)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("at the end %q %v", rest, err)
	}
}

// The upstream answers without reading the body; the client gets the answer although it still
// sends.
func TestAnEarlyResponse(t *testing.T) {
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := readHeadOf(r); err == nil {
			io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
			io.CopyN(io.Discard, r, 100)
		}
	})
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) { p.done = make(chan Result, 1) })
	pr, pw := io.Pipe()
	defer pw.Close()
	req, _ := http.NewRequest("POST", "http://"+addr, pr)
	go pw.Write([]byte("begun"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 413 || string(body) != "big" {
		t.Errorf("got %d %q", resp.StatusCode, body)
	}
	if res := <-p.done; res.Cause != Completed || res.Status != 413 {
		t.Errorf("result %+v", res)
	}
}

func TestWebSocket(t *testing.T) {
	upgrader := websocket.Upgrader{}
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		for {
			kind, message, err := c.ReadMessage()
			if err != nil {
				return
			}
			c.WriteMessage(kind, append([]byte("echo "), message...))
		}
	})
	var server *Server
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
		server = s
		p.done = make(chan Result, 2)
		inner := p.admit
		p.admit = func(r *Request) Decision {
			if strings.HasSuffix(r.Path(), "/idle") {
				r.Timeouts.Idle = time.Second
			}
			if !r.head.upgrades() {
				t.Error("not seen as an upgrade")
			}
			return inner(r)
		}
	})
	c, _, err := websocket.DefaultDialer.Dial("ws://"+addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 1000, 100000} {
		want := strings.Repeat("x", size)
		c.WriteMessage(websocket.TextMessage, []byte(want))
		_, got, err := c.ReadMessage()
		if err != nil || string(got) != "echo "+want {
			t.Fatalf("%d bytes: %.20q %v", size, got, err)
		}
	}
	if n := server.Upgraded(); n != 1 {
		t.Errorf("%d upgraded connections", n)
	}
	c.Close()
	if res := <-p.done; res.Status != 101 || !res.Upgraded || res.RequestBytes < 100000 || res.ResponseBytes < 100000 {
		t.Errorf("result %+v", res)
	}
	c, _, err = websocket.DefaultDialer.Dial("ws://"+addr+"/idle", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.ReadMessage(); err == nil {
		t.Error("an idle connection was not cut")
	}
	if res := <-p.done; res.Cause != TimedOut || res.Timer != IdleTimer {
		t.Errorf("result %+v", res)
	}
}
