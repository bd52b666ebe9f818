// Package accept answers clients: it stores a call and says where its result will be, or refuses it
// before it says anything else.
//
// Owns: the bounds of what is accepted. Reads: requests, as far as the bounds. Writes: calls to the
// store. Never: answers 202 for a call that is not on the disk; trusts a header that a Route does
// not set; holds more of bodies in memory than Bounds.Memory.
package accept

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/internal/shares"
	"ebb.dev/ebb/wire"
)

// Rules are what applies to the calls of one service.
type Rules struct {
	MaxBody  int64
	Queue    int // calls that are not completed
	Hops     int
	Callback string // of calls without one
	// MayCallBack judges the host of a callback that a client names.
	MayCallBack func(host string) bool
}

// Routes knows the Routes.
type Routes interface {
	// Rules returns the rules for a target that the gateway named; ok is false if no Route says so.
	Rules(wire.AsyncTarget) (rules Rules, ok bool)
}

// Queues knows how many calls wait.
type Queues interface {
	// Admit prepares the queue of a service for one more call; depth is how many there are.
	Admit(ctx context.Context, of call.Service) (depth int, err error)
	// Added tells that a call was added.
	Added(of call.Service)
	// Running returns the attempt of a call that is under way, 0 if none is.
	Running(id string) (attempt int, since time.Time)
}

// Bounds of all services together.
const (
	// most is how many requests are read or stored at once; each namespace has a share. Each holds
	// at most store.Inline bytes of its body.
	most = 512
	// maxHead bounds what is stored of a request besides its body.
	maxHead = 64 << 10
	maxKey  = 256
	maxURL  = 2048
	// readTimeout is how long a client may take to send its body.
	readTimeout = 5 * time.Minute
)

// Handler answers the requests that Routes lead to the courier.
type Handler struct {
	Store  *store.Store
	Routes Routes
	Queues Queues
	Log    *slog.Logger
	Now    func() time.Time
	// Patience is how long the reader of a result of so many bytes may take. By default it is 30 s,
	// and a second more for each 64 KiB.
	Patience func(size int64) time.Duration

	// Accepted counts calls that were stored, Repeated those that were already.
	Accepted, Repeated atomic.Int64
	// Refused counts requests that were not stored, by reason.
	Refused struct{ Unknown, Malformed, TooLarge, TooMany, Loop, Key, Store atomic.Int64 }

	slots   *shares.Pool // requests that are read or stored
	readers *shares.Pool // bytes of results that are read
}

// New makes a Handler of its exported fields.
func New(h *Handler) *Handler {
	h.slots, h.readers = shares.New(most), shares.New(reading)
	if h.Patience == nil {
		h.Patience = patience
	}
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(wire.HeaderNetworkProbe) != "" {
		probed(w, r)
		return
	}
	target, ok := wire.ParseAsyncTarget(r.Header.Get(wire.HeaderAsyncTarget))
	var rules Rules
	if ok {
		rules, ok = h.Routes.Rules(target)
	}
	if !ok || len(r.Header.Values(wire.HeaderAsyncTarget)) != 1 {
		refuse(w, &h.Refused.Unknown, http.StatusNotFound, "no Route leads here for this host")
		return
	}
	of := call.Service{Namespace: target.Namespace, Name: target.Route}
	if id, isResult := strings.CutPrefix(r.URL.Path, wire.PathCalls); isResult {
		h.result(w, r, of, id)
		return
	}
	h.accept(w, r, target, rules)
}

// asked returns the host that the client asked. A Route removes the header from what a client
// sends, the one of a DomainMapping sets it.
func asked(r *http.Request) string {
	if original := r.Header.Get(wire.HeaderOriginalHost); original != "" {
		return original
	}
	return r.Host
}

// probed answers the probe of a gateway, as queue-proxy and the activator do.
func probed(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(wire.HeaderNetworkProbe) != wire.ProbeIngress {
		http.Error(w, "this probe is for another component", http.StatusBadRequest)
		return
	}
	w.Header().Set(wire.HeaderNetworkHash, r.Header.Get(wire.HeaderNetworkHash))
}

func refuse(w http.ResponseWriter, counter *atomic.Int64, status int, why string) {
	counter.Add(1)
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	http.Error(w, why, status)
}

func (h *Handler) accept(w http.ResponseWriter, r *http.Request, target wire.AsyncTarget, rules Rules) {
	of, host := call.Service{Namespace: target.Namespace, Name: target.Route}, target.Host
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
	c, key, refusal := h.read(r, of, host, rules)
	if refusal != nil {
		refuse(w, refusal.counter, refusal.status, refusal.why)
		return
	}
	if !h.slots.Take(of.Namespace, 1) {
		// Otherwise the server answers when the body has come.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		refuse(w, &h.Refused.TooMany, http.StatusServiceUnavailable, "the courier reads as many calls of this namespace as it can at the moment")
		return
	}
	defer h.slots.Give(of.Namespace, 1)
	depth, err := h.Queues.Admit(r.Context(), of)
	switch {
	case err != nil:
		h.failed(w, r, of, err)
		return
	case depth >= rules.Queue:
		refuse(w, &h.Refused.TooMany, http.StatusTooManyRequests, fmt.Sprintf("%d calls of this service wait, and no more may", depth))
		return
	case key == "" && !h.Store.HasRoom(of.Namespace, r.ContentLength): // a repetition has room
		refuse(w, &h.Refused.TooMany, http.StatusTooManyRequests, noShare)
		return
	}
	c.ID, c.Route = call.NewID(), target.UID
	from, sum := io.Reader(r.Body), sha256.New()
	if key != "" {
		c.Keyed, c.ID = true, call.KeyedID(h.Store.Secret, of, host, key, c.Header)
		from = io.TeeReader(from, sum)
	}
	body, err := h.body(from, r, c, rules.MaxBody)
	if err != nil {
		h.notRead(w, r, of, err, rules)
		return
	}
	if c.Keyed {
		c.Print = call.Print(c.Method, c.Path, sum)
	}
	fresh, err := h.Store.Add(r.Context(), c, body)
	if !fresh && c.Body != "" && (err == nil || errors.Is(err, store.ErrOther) || errors.Is(err, store.ErrShare)) {
		h.Store.DropBody(r.Context(), of.Namespace, c.Body, c.Size)
	}
	switch {
	case errors.Is(err, store.ErrOther):
		refuse(w, &h.Refused.Key, http.StatusUnprocessableEntity,
			"the Idempotency-Key was sent before with another method, path or body: use a new key for each call")
		return
	case errors.Is(err, store.ErrShare):
		refuse(w, &h.Refused.TooMany, http.StatusTooManyRequests, noShare)
		return
	case err != nil:
		// It may be stored after all, so a large body stays until it is old.
		h.failed(w, r, of, err)
		return
	}
	h.accepted(w, of, c, fresh)
}

// accepted answers a request whose call is stored, or was before.
func (h *Handler) accepted(w http.ResponseWriter, of call.Service, c *call.Call, fresh bool) {
	if fresh {
		h.Accepted.Add(1)
		h.Queues.Added(of)
	} else {
		h.Repeated.Add(1)
	}
	w.Header().Set("Location", wire.PathCalls+call.Ticket(h.Store.Secret, c.ID))
	w.Header().Set("Preference-Applied", wire.PreferAsync)
	w.WriteHeader(http.StatusAccepted)
}

// notRead answers a request whose body could not be taken.
func (h *Handler) notRead(w http.ResponseWriter, r *http.Request, of call.Service, err error, rules Rules) {
	switch {
	case errors.Is(err, errTooLarge):
		w.Header().Set("Connection", "close")
		refuse(w, &h.Refused.TooLarge, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", rules.MaxBody))
	case errors.Is(err, errRead):
		refuse(w, &h.Refused.Malformed, http.StatusBadRequest, "the body could not be read")
	case errors.Is(err, store.ErrShare):
		w.Header().Set("Connection", "close")
		refuse(w, &h.Refused.TooMany, http.StatusTooManyRequests, noShare)
	default:
		h.failed(w, r, of, err)
	}
}

const noShare = "the calls of this namespace that wait take its share of the store: call again when some are delivered"

// failed answers a request that could not be stored.
func (h *Handler) failed(w http.ResponseWriter, r *http.Request, of call.Service, err error) {
	if r.Context().Err() == nil {
		h.Log.Error("a call was not accepted", "service", of.String(), "error", err)
	}
	refuse(w, &h.Refused.Store, http.StatusServiceUnavailable, "the call could not be stored")
}

type refusal struct {
	counter *atomic.Int64
	status  int
	why     string
}

// read judges the head of a request.
func (h *Handler) read(r *http.Request, of call.Service, host string, rules Rules) (c *call.Call, key string, no *refusal) {
	malformed := func(why string) (*call.Call, string, *refusal) {
		return nil, "", &refusal{&h.Refused.Malformed, http.StatusBadRequest, why}
	}
	switch {
	case !call.ValidMethod(r.Method):
		return malformed("a request with this method cannot be made later")
	case r.Header.Get("Upgrade") != "":
		return malformed("a connection cannot be upgraded later")
	case !strings.HasPrefix(r.RequestURI, "/"):
		return malformed("the target of the request is no path")
	}
	hops, ok := call.Hops(r.Header)
	if !ok {
		return malformed("the header " + wire.HeaderHops + " is no number")
	}
	if hops >= rules.Hops {
		return nil, "", &refusal{&h.Refused.Loop, http.StatusLoopDetected, fmt.Sprintf("%d asynchronous calls led to this one", hops)}
	}
	callback := rules.Callback
	if given := r.Header.Values(wire.HeaderCallback); len(given) > 1 {
		return malformed("there is more than one header " + wire.HeaderCallback)
	} else if len(given) == 1 {
		callback = given[0]
	}
	if callback != "" {
		if err := ValidCallback(callback); err != nil {
			return malformed("the callback " + err.Error())
		}
	}
	if callback != rules.Callback {
		if u, err := url.Parse(callback); err != nil || !rules.MayCallBack(u.Hostname()) {
			return nil, "", &refusal{&h.Refused.Malformed, http.StatusForbidden,
				"the service allows no callbacks at this host: its annotation serving.ebb.dev/async-callback-hosts has to name it"}
		}
	}
	keys := r.Header.Values("Idempotency-Key")
	switch {
	case len(keys) > 1:
		return malformed("there is more than one header Idempotency-Key")
	case len(keys) == 1 && (keys[0] == "" || len(keys[0]) > maxKey):
		return malformed(fmt.Sprintf("the header Idempotency-Key must have 1 to %d characters", maxKey))
	case len(keys) == 1:
		key = keys[0]
	}
	if r.ContentLength > rules.MaxBody {
		return nil, "", &refusal{&h.Refused.TooLarge, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", rules.MaxBody)}
	}
	c = &call.Call{Service: of, Host: host, Asked: asked(r), Method: r.Method, Path: r.RequestURI, Header: call.KeptRequest(r.Header),
		Accepted: h.Now(), Callback: callback, Hops: hops}
	if len(call.Encode(c)) > maxHead {
		return nil, "", &refusal{&h.Refused.TooLarge, http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the headers have more than %d bytes", maxHead)}
	}
	return c, key, nil
}

// ValidCallback says what is wrong with the URL of a callback. Where it leads is judged when it is
// called.
func ValidCallback(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxURL:
		return fmt.Errorf("has more than %d characters", maxURL)
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("must be a URL with http or https")
	case u.User != nil || u.Fragment != "":
		return errors.New("must have neither a user nor a fragment")
	}
	return nil
}

var (
	errTooLarge = errors.New("the body is too large")
	errRead     = errors.New("read the body")
)

// bounded fails after most bytes, and marks errors that are the client's.
type bounded struct {
	from io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.from.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, errTooLarge
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errRead, err)
	}
	return n, err
}

// body reads a body: a small one to memory, a large one to the store while it is read.
func (h *Handler) body(read io.Reader, r *http.Request, c *call.Call, most int64) ([]byte, error) {
	from := &bounded{read, most}
	var small bytes.Buffer
	if r.ContentLength > 0 && r.ContentLength <= store.Inline {
		small.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	n, err := small.ReadFrom(io.LimitReader(from, store.Inline+1))
	if err != nil || n <= store.Inline {
		c.Size = n
		return small.Bytes(), err
	}
	c.Body = c.Namespace + "." + call.NewID() // not the ID of the call, which a repetition has too
	if c.Size, err = h.Store.PutBody(r.Context(), c.Namespace, c.Body, io.MultiReader(&small, from)); err != nil {
		return nil, err
	}
	return nil, nil
}
