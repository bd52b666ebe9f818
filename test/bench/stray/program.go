package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// kinds are the answers after which the program sends bytes that nobody asked for.
var kinds = []string{"head", "204", "304", "length", "chunked"}

// program answers /number with "answer number". For /number/kind, a whole response follows the
// answer after the delay.
type program struct {
	address  string
	listener net.Listener
	delay    time.Duration
}

func startProgram(delay time.Duration) (*program, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the program: %w", err)
	}
	p := &program{address: l.Addr().String(), listener: l, delay: delay}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p, nil
}

func (p *program) close() { p.listener.Close() }

// serve answers on one connection. A program goes on to the next request while late bytes are still
// to come, for example from another thread.
func (p *program) serve(c net.Conn) {
	defer c.Close()
	var mu sync.Mutex
	write := func(text string) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := io.WriteString(c, text)
		return err
	}
	r := bufio.NewReader(c)
	for {
		request, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, request.Body); err != nil {
			return
		}
		number, kind, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
		if write(answer(number, kind)) != nil {
			return
		}
		if kind == "" {
			continue
		}
		unasked := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nunasked answer %s", len("unasked answer ")+len(number), number)
		if p.delay > 0 {
			time.AfterFunc(p.delay, func() { write(unasked) })
		} else if write(unasked) != nil {
			return
		}
	}
}

func answer(number, kind string) string {
	body := "answer " + number
	switch kind {
	case "204":
		return "HTTP/1.1 204 No Content\r\n\r\n"
	case "304":
		return "HTTP/1.1 304 Not Modified\r\n\r\n"
	case "chunked":
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	}
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", len(body))
	if kind == "head" {
		return head
	}
	return head + body
}
