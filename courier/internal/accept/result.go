package accept

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/wire"
)

// retryAfter is when a client may ask again for a result, in seconds.
const retryAfter = 1

const (
	// reading is the memory for results that are read, of which each namespace has a share: each
	// small one takes maxSmall, the reader of a large one maxLarge if it is as long.
	reading  = 64 << 20
	maxSmall = store.Inline + 64<<10
	maxLarge = 4 << 20
	// maxAnswer is how long a reader may take for a result, and slowest how many bytes it has
	// to read in each further second: see patience.
	maxAnswer = 30 * time.Second
	slowest   = 64 << 10
)

// patience is how long the reader of a result of so many bytes may take.
func patience(size int64) time.Duration {
	return maxAnswer + time.Duration(size/slowest)*time.Second
}

// result answers a request for what became of a call: what the service answered, or with "Accept:
// application/json" or the suffix /record, the record.
func (h *Handler) result(w http.ResponseWriter, r *http.Request, of call.Service, ticket string) {
	ticket, wantsRecord := strings.CutSuffix(ticket, "/record")
	wantsRecord = wantsRecord || r.Header.Get("Accept") == "application/json"
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	}
	if !h.readers.Take(of.Namespace, maxSmall) {
		refuse(w, &h.Refused.TooMany, http.StatusServiceUnavailable, "as many results of this namespace are read as it has a share for: ask again")
		return
	}
	defer h.readers.Give(of.Namespace, maxSmall)
	record, body, err := h.find(r.Context(), of, ticket)
	if err == nil && record.Asked != asked(r) {
		err = store.ErrNone // of another host
	}
	switch {
	case errors.Is(err, store.ErrNone):
		http.Error(w, "there is no such call, or its result is no longer kept", http.StatusNotFound)
		return
	case err != nil:
		h.Log.Error("a result was not read", "service", of.String(), "error", err)
		refuse(w, &h.Refused.Store, http.StatusServiceUnavailable, "the result could not be read")
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	unfinished := record.State == call.Queued || record.State == call.Running
	switch {
	case unfinished:
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	case !wantsRecord:
		h.replay(w, r, record, body)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if unfinished && !strings.HasSuffix(r.URL.Path, "/record") {
		w.WriteHeader(http.StatusAccepted)
	}
	_, _ = io.WriteString(w, call.Encode(shown{record})+"\n")
}

// shown is a Record as its readers see it.
type shown struct{ *call.Record }

func (h *Handler) find(ctx context.Context, of call.Service, ticket string) (*call.Record, []byte, error) {
	id, ok := call.OfTicket(h.Store.Secret, ticket)
	if !ok {
		return nil, nil, store.ErrNone
	}
	record, body, err := h.Store.Result(ctx, of, id)
	if !errors.Is(err, store.ErrNone) {
		return record, body, err
	}
	c, err := h.Store.Call(ctx, of, id)
	if errors.Is(err, store.ErrNone) { // it may have ended in between
		return h.Store.Result(ctx, of, id)
	}
	if err != nil {
		return nil, nil, err
	}
	record = c.Record()
	record.Size = c.Size
	if attempt, since := h.Queues.Running(id); attempt > 0 {
		record.State, record.Attempts, record.Started = call.Running, attempt, &since
		record.Waited = since.Sub(c.Accepted).Milliseconds()
	}
	return record, nil, nil
}

// replay answers what the service answered.
func (h *Handler) replay(w http.ResponseWriter, r *http.Request, record *call.Record, body []byte) {
	if record.State == call.Dead || record.Reason != "" {
		w.Header().Set(wire.HeaderResult, "none")
		http.Error(w, "there is no result: "+record.Reason, http.StatusBadGateway)
		return
	}
	var from io.Reader = bytes.NewReader(body)
	// Who does not read is cut off: the answer takes memory until then.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.Patience(record.Size)))
	if record.Body != "" {
		takes := min(record.Size, maxLarge)
		if !h.readers.Take(record.Namespace, takes) {
			refuse(w, &h.Refused.TooMany, http.StatusServiceUnavailable, "as many results of this namespace are read as it has a share for: ask again")
			return
		}
		defer h.readers.Give(record.Namespace, takes)
		large, err := h.Store.Body(r.Context(), record.Body)
		if err != nil {
			h.Log.Error("a result was not read", "service", record.Service.String(), "error", err)
			refuse(w, &h.Refused.Store, http.StatusServiceUnavailable, "the result could not be read")
			return
		}
		defer large.Close()
		from = large
	}
	for name, values := range record.Header {
		w.Header()[name] = values
	}
	if record.Status != http.StatusNoContent && record.Status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.FormatInt(record.Size, 10))
	}
	w.WriteHeader(record.Status)
	if r.Method != http.MethodHead {
		_, _ = io.Copy(w, from)
	}
}
