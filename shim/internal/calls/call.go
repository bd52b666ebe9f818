package calls

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"ebb.dev/ebb/shim/internal/cgi"
	"ebb.dev/ebb/shim/internal/child"
	"ebb.dev/ebb/shim/internal/reply"
)

// leftover is how much of a body that the program did not read is read for it, and how long that
// may take, so that the connection can be used again.
const (
	leftoverBytes = 256 << 10
	leftoverTime  = time.Second
)

// call is one request with its process.
type call struct {
	h       *Handler
	w       http.ResponseWriter
	process *child.Child
	out     *bufio.Reader
	ctx     context.Context // ends with the client, the time, or a fault
	end     context.CancelCauseFunc
	working sync.WaitGroup // goroutines, except for the one that feeds
	fed     chan struct{}  // closed when the body is not read any more
}

var buffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 32<<10) }}

func newCall(h *Handler, w http.ResponseWriter, r *http.Request, process *child.Child) *call {
	c := &call{h: h, w: w, process: process, out: buffers.Get().(*bufio.Reader), fed: make(chan struct{})}
	c.out.Reset(process.Stdout)
	c.ctx, c.end = context.WithCancelCause(r.Context())
	if t := h.config.Timeout; t > 0 {
		timer := time.AfterFunc(t, func() { c.end(errTime) })
		context.AfterFunc(c.ctx, func() { timer.Stop() })
	}
	c.working.Add(1)
	context.AfterFunc(c.ctx, func() {
		defer c.working.Done()
		process.Stdout.Close() // ends a Read
		process.End(h.config.Grace)
	})
	c.working.Go(c.log)
	if process.Stdin == nil {
		close(c.fed)
	} else {
		go c.feed(r)
	}
	return c
}

// feed passes the body to the process.
func (c *call) feed(r *http.Request) {
	defer close(c.fed)
	body := r.Body
	if most := c.h.config.MaxRequest; most > 0 {
		body = http.MaxBytesReader(c.w, body, most)
	}
	_, err := io.Copy(c.process.Stdin, body)
	c.process.Stdin.Close()
	var large *http.MaxBytesError
	switch {
	case err == nil:
	case errors.As(err, &large):
		c.end(errTooLarge)
	case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed): // the process reads no more
		_, _ = io.CopyN(io.Discard, body, leftoverBytes)
	default:
		c.end(errLeft)
	}
}

// log passes what the process writes to its standard error to the log.
func (c *call) log() {
	child.Lines(c.process.Stderr, func(line string) {
		c.h.tell(slog.LevelInfo, "the program wrote to its standard error", "line", line, "pid", c.process.Pid())
	})
}

// clean returns when nothing of the call is left.
func (c *call) clean() {
	c.end(nil)
	c.working.Wait()
	c.process.Stderr.Close()
	c.out.Reset(nil)
	buffers.Put(c.out)
	if c.process.Stdin == nil {
		return
	}
	c.process.Stdin.Close()
	timer := time.NewTimer(leftoverTime)
	defer timer.Stop()
	select {
	case <-c.fed:
	case <-timer.C:
		_ = http.NewResponseController(c.w).SetReadDeadline(time.Now()) // ends the Read of the body
		<-c.fed
	}
}

// exit waits until the process has ended. fault is set if it did not end well.
func (c *call) exit() (exit, fault string) {
	select {
	case <-c.process.Done():
	case <-c.ctx.Done():
	}
	if cause := c.cause(); cause != nil { // the process may have ended because of it
		return "", cause.Error()
	}
	e := c.process.Exit()
	if !e.OK() {
		fault = "the program " + e.String()
	}
	return e.String(), fault
}

// cause says why the call was ended; nil if it was not.
func (c *call) cause() error {
	switch cause := context.Cause(c.ctx); cause {
	case nil, errTime, errTooLarge, errTooMuch:
		return cause
	default:
		return errLeft
	}
}

// fail answers a request of which no byte was answered yet.
func (c *call) fail(exit, fault string) result {
	r := result{status: http.StatusInternalServerError, exit: exit, fault: fault}
	sentence := fault
	switch c.cause() {
	case errTime:
		r.status, sentence = http.StatusGatewayTimeout, fmt.Sprintf("the program did not answer within %s", c.h.config.Timeout)
	case errTooLarge:
		r.status, sentence = http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes", c.h.config.MaxRequest)
	case errTooMuch:
		r.status, sentence = http.StatusBadGateway, fmt.Sprintf("the program's answer is larger than %d bytes", c.h.config.MaxResponse)
	case errLeft:
		return result{fault: errLeft.Error()}
	default:
		if exit == "" { // the output, not the process
			r.status, sentence = http.StatusBadGateway, "the program's answer has no proper header"
		}
	}
	reply.Plain(c.w, r.status, strings.ToUpper(sentence[:1])+sentence[1:]+".")
	return r
}

// head writes the head of a response. A negative length is not known.
func (c *call) head(status int, header http.Header, length int) {
	h := c.w.Header()
	for name, values := range header {
		h[name] = values
	}
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", c.h.config.ContentType)
	}
	if length >= 0 && status != http.StatusNoContent && status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(length))
	}
	c.w.WriteHeader(status)
}

// write writes a part of the body. Those of HEAD, 204 and 304 go nowhere.
func (c *call) write(part []byte) error {
	_, err := c.w.Write(part)
	if errors.Is(err, http.ErrBodyNotAllowed) {
		return nil
	}
	return err
}

// serialize answers when the process has ended.
func (c *call) serialize() result {
	var kept bytes.Buffer
	most := c.h.config.MaxResponse
	if most <= 0 {
		most = 1<<63 - 2
	}
	_, err := kept.ReadFrom(io.LimitReader(c.out, most+1))
	if int64(kept.Len()) > most {
		c.end(errTooMuch)
	}
	exit, fault := c.exit()
	if fault == "" && err != nil {
		c.h.tell(slog.LevelWarn, "the output was not read to its end", "error", err, "pid", c.process.Pid())
	}
	if fault != "" {
		return c.fail(exit, fault)
	}
	status, header := http.StatusOK, http.Header(nil)
	body := bufio.NewReader(&kept)
	if c.h.config.ResponseHeaders {
		if status, header, err = cgi.ReadHeader(body); err != nil {
			return c.fail("", err.Error())
		}
	}
	c.head(status, header, kept.Len()+body.Buffered())
	r := result{status: status, sent: int64(kept.Len() + body.Buffered()), exit: exit}
	if _, err := body.WriteTo(writer(c.write)); err != nil {
		r.fault = errLeft.Error()
	}
	return r
}

type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

// stream passes the output on as it comes.
func (c *call) stream() result {
	status, header := http.StatusOK, http.Header(nil)
	if c.h.config.ResponseHeaders {
		var err error
		if status, header, err = cgi.ReadHeader(c.out); err != nil {
			if exit, fault := c.exit(); fault != "" { // that is why
				return c.fail(exit, fault)
			}
			return c.fail("", err.Error())
		}
	} else if _, err := c.out.Peek(1); err != nil { // no output: only the exit tells what that means
		exit, fault := c.exit()
		if fault != "" {
			return c.fail(exit, fault)
		}
		c.head(status, nil, 0)
		return result{status: status, exit: exit}
	}
	c.head(status, header, -1)
	r := result{status: status}
	r.sent = c.pass()
	r.exit, r.fault = c.exit()
	r.cut = r.fault != ""
	return r
}

// pass passes the output on until its end, and returns how much it was.
func (c *call) pass() (sent int64) {
	control := http.NewResponseController(c.w)
	for {
		_, err := c.out.Peek(1)
		part, _ := c.out.Peek(c.out.Buffered())
		sent += int64(len(part))
		if most := c.h.config.MaxResponse; most > 0 && sent > most {
			c.end(errTooMuch)
			return most
		}
		if len(part) > 0 {
			if c.write(part) != nil || control.Flush() != nil {
				c.end(errLeft)
				return sent
			}
			_, _ = c.out.Discard(len(part))
		}
		if err != nil {
			if errors.Is(err, child.ErrHeld) {
				c.h.tell(slog.LevelWarn, "the output was not read to its end", "error", err, "pid", c.process.Pid())
			}
			return sent
		}
	}
}
