// Package callback sends results to the URLs that callers named.
//
// Owns: the callbacks under way. Reads: callbacks and results from the store. Writes: requests to
// addresses that the rule allows. Never: follows a redirect; shows the caller what a callback
// answered.
package callback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/deliver"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/internal/egress"
	"ebb.dev/ebb/internal/shares"
	"ebb.dev/ebb/wire"
)

const (
	timeout  = 30 * time.Second
	patience = time.Second
	// most is how many callbacks are under way at once, maxOfOne for one namespace.
	most, maxOfOne = 64, 8
	// listed is how often the namespaces that have callbacks are listed, and lingers how long one
	// without is followed.
	listed  = 10 * time.Second
	lingers = 10 * time.Second
)

// Caller calls the callbacks.
type Caller struct {
	Store *store.Store
	// Allowed judges the addresses.
	Allowed egress.Rule
	// Rules returns the number of attempts, the pauses between them, and the most hops.
	Rules  func() (attempts int, pauses call.Backoff, hops int)
	Counts *deliver.Counts
	Log    *slog.Logger

	client *http.Client
	slots  *shares.Pool // callbacks under way
	mu     sync.Mutex
	of     map[string]bool // namespaces that are followed
}

// Client returns the client with which callbacks are called.
func Client(allowed egress.Rule) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second, ControlContext: allowed.Control}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		},
	}
}

// Run calls until ctx is done.
func (c *Caller) Run(ctx context.Context) error {
	c.client, c.slots, c.of = Client(c.Allowed), shares.New(most), map[string]bool{}
	defer c.client.CloseIdleConnections()
	var group sync.WaitGroup
	defer group.Wait()
	start := func(namespace string) {
		if ctx.Err() == nil && c.enter(namespace) {
			group.Go(func() { c.follow(ctx, namespace) })
		}
	}
	added := make(chan string, 1)
	c.Store.Called = func(namespace string) {
		select {
		case added <- namespace:
		default: // it is found when they are listed
		}
	}
	list := time.NewTicker(listed)
	defer list.Stop()
	for {
		namespaces, err := c.Store.Calling(ctx)
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("callbacks were not listed", "error", err)
		}
		for _, one := range namespaces {
			start(one)
		}
		for more := true; more; {
			select {
			case <-ctx.Done():
				return nil
			case one := <-added:
				start(one)
			case <-list.C:
				more = false
			}
		}
	}
}

// enter reports whether nobody follows a namespace yet.
func (c *Caller) enter(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[namespace] {
		return false
	}
	c.of[namespace] = true
	return true
}

// follow calls the callbacks of one namespace until there are none for a while.
func (c *Caller) follow(ctx context.Context, namespace string) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.of, namespace)
	}()
	slots := make(chan struct{}, maxOfOne)
	var group sync.WaitGroup
	defer group.Wait()
	var source *store.Queue
	for idle := time.Duration(0); ctx.Err() == nil && idle < lingers; {
		var got bool
		var err error
		if source == nil {
			source, err = c.Store.Callbacks(ctx, namespace)
		}
		if err == nil {
			got, err = c.next(ctx, namespace, source, slots, &group)
		}
		switch {
		case got:
			idle = 0
		case err == nil:
			idle += patience
		case ctx.Err() == nil:
			c.Log.Warn("callbacks were not fetched", "namespace", namespace, "error", err)
			source = nil
			select {
			case <-ctx.Done():
			case <-time.After(patience):
			}
		}
	}
}

// next begins a callback that comes within a moment.
func (c *Caller) next(ctx context.Context, namespace string, source *store.Queue, slots chan struct{}, group *sync.WaitGroup) (got bool, err error) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return false, nil
	}
	leave := func() {
		c.slots.Give(namespace, 1)
		<-slots
	}
	if err := c.slots.Wait(ctx, namespace, 1); err != nil {
		<-slots
		return false, nil
	}
	messages, err := source.Wait(patience)
	if err != nil {
		leave()
		return false, err
	}
	one, ok := <-messages.Messages()
	if !ok {
		leave()
		return false, nil
	}
	group.Go(func() {
		defer leave()
		c.one(ctx, one)
	})
	return true, nil
}

// one calls one callback.
func (c *Caller) one(ctx context.Context, message store.Message) {
	about, err := message.Metadata()
	if err != nil {
		return
	}
	of, err := store.CallOf(message)
	if err != nil {
		c.giveUp(message, "", err)
		return
	}
	attempts, pauses, hops := c.Rules()
	attempt := int(about.NumDelivered)
	err = errors.New("too many asynchronous calls led to it")
	if of.Hops+1 < hops {
		err = c.send(ctx, of)
	}
	switch {
	case err == nil:
		c.Counts.Called.Add(1)
		_ = c.Store.DoneCallback(message)
	case ctx.Err() != nil:
		_ = message.Nak()
	case attempt >= attempts || errors.Is(err, egress.ErrAddress) || errors.Is(err, store.ErrNone) || of.Hops+1 >= hops:
		c.giveUp(message, of.Service.String(), err)
	default:
		_ = message.NakWithDelay(pauses.After(attempt, 0, rand.Float64()))
	}
}

// giveUp counts a callback that will not be called. The result stays where it is.
func (c *Caller) giveUp(message store.Message, service string, why error) {
	c.Counts.Uncalled.Add(1)
	c.Log.Warn("a callback is given up", "service", service, "error", why)
	_ = c.Store.DoneCallback(message)
}

// send posts the result of a call to its callback.
func (c *Caller) send(ctx context.Context, of *call.Call) error {
	record, small, err := c.Store.Result(ctx, of.Service, of.ID)
	if err != nil {
		return fmt.Errorf("read the result of call %s: %w", of.ID, err)
	}
	var body io.Reader = bytes.NewReader(small)
	if record.Body != "" {
		large, err := c.Store.Body(ctx, record.Body)
		if err != nil {
			return fmt.Errorf("read the result of call %s: %w", of.ID, err)
		}
		defer large.Close()
		body = large
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, of.Callback, body)
	if err != nil {
		return fmt.Errorf("make the callback of call %s: %w", of.ID, err)
	}
	if r.ContentLength = record.Size; record.Size == 0 {
		r.Body = nil
	}
	if kind := record.Header.Get("Content-Type"); kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	r.Header.Set("User-Agent", "ebb-courier")
	r.Header.Set(wire.HeaderCallID, of.ID)
	r.Header.Set(wire.HeaderHops, strconv.Itoa(of.Hops+1))
	r.Header.Set(wire.HeaderResult, Result(record))
	response, err := c.client.Do(r)
	if err != nil {
		return fmt.Errorf("call the callback: %w", err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 4096))
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("the callback answered %d", response.StatusCode)
	}
	return nil
}

// Result says in one header what became of a call: the status of the answer, or none.
func Result(r *call.Record) string {
	if r.State == call.Dead || r.Status == 0 {
		return "none"
	}
	return strconv.Itoa(r.Status)
}
