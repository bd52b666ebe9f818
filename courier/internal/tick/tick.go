// Package tick calls services by their schedules. Those of one namespace follow each other; no
// namespace waits for another's.
//
// Owns: which time of a schedule was handled last. Reads: schedules on Routes. Writes: calls, and
// what it owns, to the store. Never: makes two calls for one time: the ID of a call is that of its
// schedule and time.
package tick

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/api/calls"
	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/routes"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/wire"
)

// Queues prepares the queues for calls.
type Queues interface {
	Admit(ctx context.Context, of call.Service) (depth int, err error)
	Added(of call.Service)
}

// Ticker makes the calls that are due.
type Ticker struct {
	Store    *store.Store
	Queues   Queues
	Routes   func() map[call.Service]*routes.Route
	MaxCalls func() int // calls of one service that may wait
	Log      *slog.Logger

	// Made counts calls, Missed times that passed while no courier ran, LeftOut times at which the
	// call before was not completed, or too many waited.
	Made, Missed, LeftOut atomic.Int64

	mu     sync.Mutex
	known  map[string]last
	rounds map[string]round // by namespace
	group  sync.WaitGroup
	swept  time.Time
}

// round is the last look at the schedules of a namespace.
type round struct {
	began, ended time.Time
	running      bool
}

// last is what was handled last of a schedule.
type last struct {
	At   time.Time `json:"at"`
	ID   string    `json:"id,omitempty"` // of the call
	Spec string    `json:"spec"`         // a change of it begins anew
}

const (
	period = time.Second
	// onTime is how late a call is made that was not missed. What is due while the calls of its
	// namespace are made can be later.
	onTime = 20 * time.Second
	// oldest bounds how far back missed times are looked for.
	oldest = 24 * time.Hour
	// sweeps is how often what is kept of schedules that are gone is removed.
	sweeps = time.Hour
)

// Run makes calls until ctx is done.
func (t *Ticker) Run(ctx context.Context) error {
	defer t.group.Wait()
	return run.Every(ctx, period, func(now time.Time) error {
		t.Tick(ctx, now)
		return nil
	})
}

// Tick begins to make the calls that are due, except of namespaces whose calls are still made.
func (t *Ticker) Tick(ctx context.Context, now time.Time) {
	present, all := map[string]bool{}, map[string][]*routes.Route{}
	for _, route := range t.Routes() {
		for i := range route.Async.Schedules {
			present[key(route, &route.Async.Schedules[i])] = true
		}
		if len(route.Async.Schedules) > 0 {
			all[route.Service.Namespace] = append(all[route.Service.Namespace], route)
		}
	}
	for namespace, list := range all {
		if before, ok := t.enter(namespace, now); ok {
			t.group.Go(func() { t.follow(ctx, namespace, list, now, before) })
		}
	}
	if now.Sub(t.swept) < sweeps {
		return
	}
	t.swept = now
	if err := t.sweep(ctx, present, all); err != nil && ctx.Err() == nil {
		t.Log.Warn("cannot remove the state of deleted schedules", "error", err)
	}
}

// enter begins a round of a namespace and returns the one before, unless that still runs.
func (t *Ticker) enter(namespace string, now time.Time) (before round, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rounds == nil {
		t.known, t.rounds = map[string]last{}, map[string]round{}
	}
	if before = t.rounds[namespace]; before.running {
		return before, false
	}
	t.rounds[namespace] = round{began: now, running: true}
	return before, true
}

// follow is one round of a namespace.
func (t *Ticker) follow(ctx context.Context, namespace string, list []*routes.Route, now time.Time, before round) {
	began := time.Now()
	known := now.Add(-onTime)
	if before.ended.After(known) && before.began.Before(known) { // it took that long
		known = before.began
	}
	for _, route := range list {
		for i := range route.Async.Schedules {
			s := &route.Async.Schedules[i]
			if err := t.one(ctx, route, s, now, known); err != nil && ctx.Err() == nil {
				t.Log.Warn("a schedule failed; trying again", "service", route.Service.String(), "schedule", s.Name, "error", err)
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds[namespace] = round{began: now, ended: now.Add(time.Since(began))}
}

// sweep forgets the schedules that are not present, and the namespaces.
func (t *Ticker) sweep(ctx context.Context, present map[string]bool, namespaces map[string][]*routes.Route) error {
	t.mu.Lock()
	maps.DeleteFunc(t.rounds, func(namespace string, r round) bool { return namespaces[namespace] == nil && !r.running })
	t.mu.Unlock()
	kept, err := t.Store.Remembered(ctx, prefix)
	if err != nil {
		return err
	}
	for _, one := range kept {
		if present[one] {
			continue
		}
		if err := t.Store.Forget(ctx, one); err != nil {
			return err
		}
		t.mu.Lock()
		delete(t.known, one)
		t.mu.Unlock()
	}
	return nil
}

const prefix = "schedules."

// key is that under which the store keeps what was handled last.
func key(route *routes.Route, s *calls.Schedule) string {
	return prefix + route.Service.Namespace + "." + route.Service.Name + "." + s.Name
}

// one makes the call of a schedule that is due. Times since known are not missed.
func (t *Ticker) one(ctx context.Context, route *routes.Route, s *calls.Schedule, now, known time.Time) error {
	key := key(route, s)
	spec := fmt.Sprintf("%s %s %s %v", route.UID, s.Cron, s.TimeZone, s.Suspend)
	before, err := t.recall(ctx, key)
	if err != nil {
		return err
	}
	if before.Spec != spec {
		return t.remember(ctx, key, last{At: now, Spec: spec})
	}
	if before.At.After(now) { // the clock was ahead
		return t.remember(ctx, key, last{At: now, ID: before.ID, Spec: spec})
	}
	if s.Suspend {
		return nil
	}
	due, missed := Due(s, before.At, now, known)
	if due.IsZero() && missed == 0 {
		return nil
	}
	next := last{At: now, ID: before.ID, Spec: spec}
	if !due.IsZero() {
		next.At = due
		made, id, err := t.call(ctx, route, s, due, before.ID)
		if err != nil {
			return err
		}
		if made {
			next.ID = id
			t.Made.Add(1)
		} else {
			t.LeftOut.Add(1)
		}
	}
	if err := t.remember(ctx, key, next); err != nil {
		return err
	}
	t.Missed.Add(int64(missed))
	return nil
}

// Due returns the time for which a call is to be made now, zero for none, and how many times were
// missed. One since known is not.
func Due(s *calls.Schedule, after, now, known time.Time) (due time.Time, missed int) {
	if earliest := now.Add(-oldest); after.Before(earliest) {
		after = earliest
	}
	passed := 0
	for at := s.Next(after); !at.IsZero() && !at.After(now); at = s.Next(at) {
		due = at
		passed++
	}
	switch {
	case passed == 0:
		return time.Time{}, 0
	case !due.Before(known) || s.Missed == calls.MissedOnce:
		return due, passed - 1
	}
	return time.Time{}, passed
}

func (t *Ticker) recall(ctx context.Context, key string) (last, error) {
	t.mu.Lock()
	l, ok := t.known[key]
	t.mu.Unlock()
	if ok {
		return l, nil
	}
	data, err := t.Store.Recall(ctx, key)
	if errors.Is(err, store.ErrNone) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return last{}, nil // begins anew
	}
	t.set(key, l)
	return l, nil
}

func (t *Ticker) remember(ctx context.Context, key string, l last) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	if err := t.Store.Remember(ctx, key, data); err != nil {
		return err
	}
	t.set(key, l)
	return nil
}

func (t *Ticker) set(key string, l last) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[key] = l
}

// call makes the call for a time; made is false if it is left out.
func (t *Ticker) call(ctx context.Context, route *routes.Route, s *calls.Schedule, at time.Time, before string) (made bool, id string, err error) {
	c := &call.Call{Service: route.Service, Host: route.Host, Asked: route.Asked, Method: s.Method, Path: s.Path, Header: http.Header{},
		Size: int64(len(s.Body)), Accepted: time.Now(), Keyed: true, Callback: route.Async.Callback, Schedule: s.Name, Route: route.UID}
	c.ID = call.KeyedID(t.Store.Secret, route.Service, "schedule "+s.Name, strconv.FormatInt(at.Unix(), 10), nil)
	if s.Concurrency == calls.ConcurrencyForbid && before != "" && before != c.ID {
		if _, err := t.Store.Call(ctx, route.Service, before); !errors.Is(err, store.ErrNone) {
			return false, "", err
		}
	}
	for name, value := range s.Headers {
		c.Header.Set(name, value)
	}
	c.Header = call.KeptRequest(c.Header)
	c.Header.Set(wire.HeaderSchedule, s.Name)
	c.Header.Set(wire.HeaderScheduledAt, at.UTC().Format(time.RFC3339))
	depth, err := t.Queues.Admit(ctx, route.Service)
	if err != nil {
		return false, "", err
	}
	if depth >= t.MaxCalls() {
		return false, "", nil
	}
	fresh, err := t.Store.Add(ctx, c, []byte(s.Body))
	if err != nil {
		return false, "", err
	}
	if fresh {
		t.Queues.Added(route.Service)
		t.Log.Info("a schedule made a call", "service", route.Service.String(), "schedule", s.Name, "due", at, "call", c.ID)
	}
	return true, c.ID, nil
}
