// Package calls runs a process for each request: its standard input is the request's body, its
// standard output the response's.
//
// Owns: the processes of the requests in progress. Reads: their output and exit status. Writes:
// responses, and the log. Never: runs more processes than there are workers, keeps one longer than
// its client or its time, or shows a client what a process wrote to its standard error.
package calls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"ebb.dev/ebb/shim/internal/cgi"
	"ebb.dev/ebb/shim/internal/child"
	"ebb.dev/ebb/shim/internal/config"
	"ebb.dev/ebb/shim/internal/reply"
	"ebb.dev/ebb/shim/internal/slots"
)

// software is the value of SERVER_SOFTWARE.
const software = "ebb-shim"

// answerWithin is how long a client may take to read an answer when the program's time is over.
const answerWithin = 10 * time.Second

// Why a call ends before its process.
var (
	errLeft     = errors.New("the client has left")
	errTime     = errors.New("its time is over")
	errTooLarge = errors.New("the request is too large")
	errTooMuch  = errors.New("the response is too large")
)

// Handler answers requests by processes.
type Handler struct {
	config *config.Config
	path   string
	env    []string
	family *child.Family
	slots  *slots.Slots
	log    *slog.Logger
	rate   *child.Rate
	failed atomic.Int64 // calls that did not end well
}

// New returns a Handler for the program at path, whose processes have the variables env.
func New(c *config.Config, path string, env []string, family *child.Family, log *slog.Logger) *Handler {
	return &Handler{config: c, path: path, env: env, family: family, log: log, rate: child.NewRate(c.LogRate),
		slots: slots.New(c.Workers, c.Queue, c.Timeout)}
}

// result is how a call went, for the log.
type result struct {
	status int   // 0: nobody was there to answer
	sent   int64 // bytes of the body
	cut    bool  // the response has begun and is not whole
	exit   string
	fault  string // what went wrong
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	result := h.serve(w, r)
	fields := []any{"method", r.Method, "path", r.URL.Path, "status", result.status, "ms", time.Since(began).Milliseconds(),
		"requestBytes", r.ContentLength, "responseBytes", result.sent, "exit", result.exit}
	if result.fault == "" {
		h.log.Debug("a request was answered", fields...)
	} else {
		h.tell(slog.LevelWarn, "a request failed", append(fields, "fault", result.fault, "cut", result.cut, "failedSoFar", h.failed.Add(1))...)
	}
	if result.cut {
		panic(http.ErrAbortHandler) // the client must not take it for a whole one
	}
}

// tell logs what a client or a program can cause at any rate.
func (h *Handler) tell(level slog.Level, message string, fields ...any) {
	pass, missed := h.rate.Pass(time.Now())
	if missed > 0 {
		h.log.Warn("lines were left out of the log", "lines", missed, "limit", fmt.Sprintf("SHIM_LOG_RATE=%d", h.config.LogRate))
	}
	if pass {
		h.log.Log(context.Background(), level, message, fields...)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) result {
	refuse := func(status int, sentence, fault string) result {
		reply.Plain(w, status, sentence)
		return result{status: status, fault: fault}
	}
	control := http.NewResponseController(w)
	if t := h.config.Timeout; t > 0 {
		// Waiting and working may each take the time, and the answer a while after them. A client
		// that does not read takes no longer.
		_ = control.SetWriteDeadline(time.Now().Add(2*t + h.config.Grace + answerWithin))
	}
	if most := h.config.MaxRequest; most > 0 && r.ContentLength > most {
		return refuse(http.StatusRequestEntityTooLarge, tooLarge(most), errTooLarge.Error())
	}
	env, err := cgi.Environment(h.env, r, software)
	if err != nil {
		return refuse(http.StatusBadRequest, "The path or the query has a NUL character.", err.Error())
	}
	release, err := h.slots.Take(r.Context())
	switch {
	case errors.Is(err, slots.ErrFull), errors.Is(err, slots.ErrLong):
		return refuse(http.StatusServiceUnavailable, "The program is busy. Try again.", err.Error())
	case err != nil:
		return result{fault: errLeft.Error()}
	}
	defer release()
	_ = control.EnableFullDuplex() // the program may answer before it has read; HTTP/2 always can
	body := r.Body != http.NoBody && r.ContentLength != 0
	process, err := h.family.Start(child.Command{Path: h.path, Args: slices.Clone(h.config.Command), Env: env, Feed: body})
	switch {
	case errors.Is(err, syscall.E2BIG):
		return refuse(http.StatusRequestHeaderFieldsTooLarge, "The path, the query or the headers are too long for the program.", err.Error())
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return refuse(http.StatusServiceUnavailable, "The program could not be started for lack of resources. Try again.", err.Error())
	case err != nil:
		return refuse(http.StatusInternalServerError, "The program could not be started.", err.Error())
	}
	c := newCall(h, w, r, process)
	defer c.clean()
	if h.config.Mode == config.Serializing {
		return c.serialize()
	}
	return c.stream()
}

func tooLarge(most int64) string {
	return fmt.Sprintf("The request is larger than %d bytes.", most)
}
