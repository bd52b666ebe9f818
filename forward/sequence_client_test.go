package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// sequenceClient is one client, which keeps its connection.
type sequenceClient interface {
	ask(v *turn) answer
	close()
}

func (s *sequence) newClient(random *rand.Rand) sequenceClient {
	if s.http2 {
		return &client2{s: s, http: h2cClient(s.t)}
	}
	return &client1{s: s}
}

// client1 speaks HTTP/1.1.
type client1 struct {
	s    *sequence
	conn net.Conn
	r    *bufio.Reader
	used bool
}

func (c *client1) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// ask makes the exchange. A client may send a request again if the connection ended before an
// answer began.
func (c *client1) ask(v *turn) answer {
	if got := c.once(v); got.status != 0 || got.broken != "" || !c.used || v.method == "POST" || v.ends == endsLeft {
		return got
	}
	c.close()
	return c.once(v)
}

func (c *client1) once(v *turn) (got answer) {
	if c.used = c.conn != nil; !c.used {
		conn, err := net.Dial("tcp", c.s.front)
		if err != nil {
			return answer{broken: err.Error()}
		}
		conn.SetDeadline(time.Now().Add(2 * time.Minute))
		c.conn, c.r = conn, bufio.NewReader(conn)
	}
	conn := c.conn
	keep := false
	defer func() {
		if !keep {
			c.close()
		}
	}()
	body := tagged(v.number, v.sends)
	switch v.ends {
	case endsHalf:
		conn.Write(append(v.head(), body[:len(body)/2]...))
		return answer{cut: true}
	case endsLeft:
		conn.Write(append(v.head(), body...))
		conn.SetReadDeadline(time.Now().Add(v.after / 2))
		c.r.Peek(1)
		return answer{cut: true}
	}
	sent := make(chan error, 1)
	if v.ends == endsAsked || v.ends == endsUnasked {
		conn.Write(v.head())
	} else {
		go func() {
			_, err := conn.Write(append(v.head(), body...))
			sent <- err
		}()
	}
	var response *http.Response
	for response == nil || response.StatusCode == 100 || response.StatusCode == 103 {
		if response != nil && response.StatusCode == 100 && (v.ends == endsAsked || v.ends == endsUnasked) {
			go func() {
				_, err := conn.Write(body)
				sent <- err
			}()
		}
		if _, err := c.r.Peek(1); err != nil {
			return answer{cut: true}
		}
		var err error
		if response, err = http.ReadResponse(c.r, &http.Request{Method: v.method}); err != nil {
			rest, _ := c.r.Peek(c.r.Buffered())
			if got = (answer{cut: true}); !cutShort(err) {
				got.broken = fmt.Sprintf("%v, then %.200q", err, rest)
			}
			return got
		}
	}
	got.status, got.mark = response.StatusCode, response.Header.Get("Number")
	if got.status == 101 {
		got.body, _ = io.ReadAll(c.r)
		return got
	}
	var err error
	got.body, err = io.ReadAll(response.Body)
	got.timer = response.Trailer.Get(TimeoutTrailer)
	if got.cut = err != nil; got.cut {
		if !cutShort(err) {
			got.broken = err.Error()
		}
		return got
	}
	if v.early {
		return got // the next answer is to the bytes that came too early
	}
	if c.r.Buffered() > 0 {
		rest, _ := c.r.Peek(c.r.Buffered())
		got.broken = fmt.Sprintf("%.200q follows the answer", rest)
		return got
	}
	select {
	case err := <-sent:
		keep = err == nil && !response.Close
	default: // the answer came first
	}
	return got
}

// cutShort says that an error of reading is about the connection.
func cutShort(err error) bool {
	var netError net.Error
	return ended(err) || errors.As(err, &netError)
}

// head is the request's.
func (v *turn) head() []byte {
	out := fmt.Appendf(nil, "%s /%d HTTP/1.1\r\nHost: h\r\nNumber: %d\r\n", v.method, v.number, v.number)
	for _, f := range v.fields() {
		out = fmt.Appendf(out, "%s: %s\r\n", f.Name, f.Value)
	}
	if v.method == "POST" {
		out = fmt.Appendf(out, "Content-Length: %d\r\n", v.sends)
	}
	out = append(out, "\r\n"...)
	if v.early {
		out = fmt.Appendf(out, "early %d\r\n\r\n", v.number)
	}
	return out
}

// fields are those that a turn needs.
func (v *turn) fields() []Header {
	switch v.ends {
	case endsStalled, endsSilent:
		return []Header{{"Total", (stallsFor / 3).String()}}
	case endsRefused, endsSwitch:
		return []Header{{"Connection", "Upgrade"}, {"Upgrade", "tagged"}}
	case endsAsked, endsUnasked:
		return []Header{{"Expect", "100-continue"}}
	}
	return nil
}

// client2 is net/http's, for HTTP/2.
type client2 struct {
	s    *sequence
	http *http.Client
}

func (c *client2) close() { c.http.CloseIdleConnections() }

func (c *client2) ask(v *turn) (got answer) {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var body io.Reader
	if v.method == "POST" {
		body = bytes.NewReader(tagged(v.number, v.sends))
		if v.ends == endsHalf {
			body = io.MultiReader(io.LimitReader(body, int64(v.sends/2)), leaver(leave))
		}
	}
	request, err := http.NewRequestWithContext(ctx, v.method, "http://"+c.s.front+"/"+strconv.Itoa(v.number), body)
	if err != nil {
		return answer{broken: err.Error()}
	}
	request.Header.Set("Number", strconv.Itoa(v.number))
	for _, f := range v.fields() {
		request.Header.Set(f.Name, f.Value)
	}
	if v.ends == endsLeft {
		time.AfterFunc(v.after/2, leave)
	}
	response, err := c.http.Do(request)
	if err != nil {
		if got.cut = true; strings.Contains(err.Error(), "malformed") {
			got.broken = err.Error()
		}
		return got
	}
	defer response.Body.Close()
	got.status, got.mark = response.StatusCode, response.Header.Get("Number")
	got.body, err = io.ReadAll(response.Body)
	got.cut, got.timer = err != nil, response.Trailer.Get(TimeoutTrailer)
	return got
}

// leaver is a body at whose turn the client leaves.
type leaver func()

func (l leaver) Read([]byte) (int, error) {
	l()
	return 0, context.Canceled
}
