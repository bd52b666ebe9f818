package deliver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/wire"
)

// answer is what came of one attempt.
type answer struct {
	status int
	header http.Header
	body   []byte
	size   int64
	stored string // the name of a large body
	cold   bool
	reason string // why the body was not kept
	takes  int64  // of the memory for answers
}

// deliver makes one attempt, if the call is not under way already.
func (m *Manager) deliver(of call.Service, message store.Message, rules Rules) {
	ctx := m.attempt
	c, attempt, ok := m.read(ctx, of, message)
	if !ok {
		return
	}
	began := time.Now()
	if !m.begin(c.ID, running{message, attempt, began, of}) {
		return // JetStream took the attempt that is under way for lost
	}
	m.end(c.ID, of, m.try(ctx, c, message, attempt, began, rules))
}

// try makes one attempt and does what follows from it. off is whether the call left its queue.
func (m *Manager) try(ctx context.Context, c *call.Call, message store.Message, attempt int, began time.Time, rules Rules) (off bool) {
	if attempt > 1 || c.Keyed {
		if over, off := m.over(ctx, c, message, rules); over {
			return off
		}
	}
	record := c.Record()
	record.Attempts, record.Started, record.Waited = attempt, &began, began.Sub(c.Accepted).Milliseconds()
	counted := attempt - m.Store.Cut(c.Accepted) // what the courier's own end cut off was no attempt
	if reason := hopeless(c, counted, began, rules); reason != "" {
		record.Attempts--
		return m.bury(ctx, c, message, record, reason)
	}
	got, err := m.send(ctx, c, message.Data(), attempt, rules)
	if got != nil {
		defer m.budget.answering.Give(c.Namespace, got.takes)
	}
	ended := time.Now()
	record.Ended, record.Ran = &ended, ended.Sub(began).Milliseconds()
	if err != nil && ctx.Err() != nil { // the courier stops
		_ = message.Nak()
		return false
	}
	if err == nil {
		record.Status, record.Cold = got.status, got.cold
	}
	switch next := after(c, got, err, attempt, counted, ended, rules, rand.Float64()); {
	case next.again:
		m.Counts.Retried.Add(1)
		_ = message.NakWithDelay(next.pause)
		return false
	case next.dead != "":
		return m.bury(ctx, c, message, record, next.dead)
	}
	record.State, record.Header, record.Size, record.Body, record.Reason = call.Completed, got.header, got.size, got.stored, got.reason
	if err := m.Store.Finish(ctx, record, got.body); err != nil {
		m.again(message, rules.Backoff.First, err)
		return false
	}
	m.Counts.Delivered.Add(1)
	return m.done(ctx, c, message)
}

// next is what follows from an attempt: another one after a pause, none because the call is dead,
// or a result.
type next struct {
	again bool
	pause time.Duration
	dead  string // why
}

// after decides what follows from an attempt, the counted-th of those that count. random is below
// 1.
//
//	no answer, or one that asks for another try
//	  attempts are left, and time after the pause   again
//	  otherwise                                     dead
//	any other answer                                a result
func after(c *call.Call, got *answer, err error, attempt, counted int, now time.Time, rules Rules, random float64) next {
	var why string
	var asked time.Duration
	switch {
	case err != nil:
		why = err.Error()
	case call.MayRepeat(got.status):
		why, asked = fmt.Sprintf("the service answered %d", got.status), call.RetryAfter(got.header, now)
	default:
		return next{}
	}
	pause := rules.Backoff.After(attempt, asked, random)
	if counted < rules.Attempts && now.Add(pause).Sub(c.Accepted) <= rules.Queue {
		return next{again: true, pause: pause}
	}
	return next{dead: fmt.Sprintf("after %d attempts %s", attempt, why)}
}

// read returns a call and the number of its attempt. A message that is no call is buried: it would
// fail each time.
func (m *Manager) read(ctx context.Context, of call.Service, message store.Message) (c *call.Call, attempt int, ok bool) {
	about, err := message.Metadata()
	if err != nil {
		m.Log.Error("a message is not from JetStream", "error", err)
		return nil, 0, false
	}
	c, err = store.CallOf(message)
	if err == nil {
		return c, int(about.NumDelivered), true
	}
	m.Counts.Dead.Add(1)
	m.Log.Error("a call cannot be read", "service", of.String(), "error", err)
	if err := m.Store.Bury(ctx, message, err.Error()); err != nil {
		m.again(message, rest(message), err)
	} else {
		_ = m.Store.Done(message)
	}
	return nil, 0, false
}

// over reports whether a call has a result, because an earlier attempt was cut off after it was
// kept, or none can be looked for now; off is whether the call left its queue.
func (m *Manager) over(ctx context.Context, c *call.Call, message store.Message, rules Rules) (over, off bool) {
	switch _, _, err := m.Store.Result(ctx, c.Service, c.ID); {
	case err == nil:
		m.Counts.Repeated.Add(1)
		return true, m.done(ctx, c, message)
	case errors.Is(err, store.ErrNone):
		return false, false
	default:
		m.again(message, rules.Backoff.First, err)
		return true, false
	}
}

// hopeless says why there is to be no further attempt.
func hopeless(c *call.Call, attempt int, now time.Time, rules Rules) string {
	switch {
	case rules.UID == "":
		return "there is no such service any more"
	case c.Route != "" && c.Route != rules.UID:
		return "its service was deleted, and another one has its name now"
	case attempt > rules.Attempts:
		return fmt.Sprintf("after %d attempts that did not end", attempt-1)
	case now.Sub(c.Accepted) > rules.Queue:
		return fmt.Sprintf("it waited for more than %v", rules.Queue)
	}
	return ""
}

// rest is how long a call waits that the store refused: more each time, because its namespace may
// have many such.
func rest(message store.Message) time.Duration {
	attempt := 1
	if about, err := message.Metadata(); err == nil {
		attempt = int(about.NumDelivered)
	}
	return call.Backoff{First: patience, Max: time.Minute}.After(attempt, 0, 1)
}

// again leaves a call to a later attempt, because something of Ebb failed, or its namespace has no
// room. The latter is no news for who runs Ebb, and a tenant can make it happen without end.
func (m *Manager) again(message store.Message, pause time.Duration, why error) {
	m.Counts.Failed.Add(1)
	if !errors.Is(why, store.ErrShare) {
		m.Log.Warn("an attempt to deliver a call failed", "error", why)
	}
	_ = message.NakWithDelay(pause)
}

// bury gives a call up: its message goes to the dead letters, its record says why.
func (m *Manager) bury(ctx context.Context, c *call.Call, message store.Message, record *call.Record, reason string) (off bool) {
	record.State, record.Reason = call.Dead, reason
	err := m.Store.Bury(ctx, message, reason)
	if err == nil {
		err = m.Store.Finish(ctx, record, nil)
	}
	if err != nil {
		m.again(message, patience, err)
		return false
	}
	m.Counts.Dead.Add(1)
	m.Log.Warn("a call is dead", "service", c.Service.String(), "attempts", record.Attempts, "reason", reason)
	// Its large body stays with the dead letter until it is old.
	c.Body = ""
	return m.done(ctx, c, message)
}

// done takes a call off its queue. Its result is kept.
func (m *Manager) done(ctx context.Context, c *call.Call, message store.Message) (off bool) {
	if c.Callback != "" {
		if err := m.Store.AddCallback(ctx, c); err != nil {
			m.again(message, rest(message), err)
			return false
		}
	}
	if err := m.Store.Done(message); err != nil {
		return false // it comes again, and its result is found
	}
	if c.Body != "" {
		m.Store.DropBody(ctx, c.Namespace, c.Body, c.Size)
	}
	return true
}

// send makes the request of a call.
func (m *Manager) send(ctx context.Context, c *call.Call, small []byte, attempt int, rules Rules) (*answer, error) {
	var body io.Reader = bytes.NewReader(small)
	if takes := min(c.Size, maxOfBody); c.Body != "" {
		if err := m.budget.sending.Wait(ctx, c.Namespace, takes); err != nil {
			return nil, fmt.Errorf("wait for memory: %w", err)
		}
		defer m.budget.sending.Give(c.Namespace, takes)
	}
	ctx, cancel := context.WithTimeout(ctx, rules.Timeout)
	defer cancel()
	if c.Body != "" {
		large, err := m.Store.Body(ctx, c.Body)
		if err != nil {
			return nil, fmt.Errorf("read the body of the call: %w", err)
		}
		defer large.Close()
		body = large
	}
	r, err := http.NewRequestWithContext(ctx, c.Method, "http://"+c.Host+c.Path, body)
	if err != nil {
		return nil, fmt.Errorf("make the request of the call: %w", err)
	}
	if r.ContentLength = c.Size; c.Size == 0 {
		r.Body = nil
	}
	r.Header = c.Header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if r.Header.Get("User-Agent") == "" {
		r.Header.Set("User-Agent", "") // none of Go's
	}
	for name, value := range map[string]string{wire.HeaderCallID: c.ID, wire.HeaderAttempt: strconv.Itoa(attempt),
		wire.HeaderAccepted: c.Accepted.UTC().Format(time.RFC3339Nano),
		wire.HeaderHops:     strconv.Itoa(c.Hops + 1), wire.HeaderAsyncDelivery: rules.UID} {
		r.Header.Set(name, value)
	}
	response, err := m.Client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", c.Host, err)
	}
	defer response.Body.Close()
	defer m.budget.answered(c.Namespace, response.Header)()
	got := &answer{status: response.StatusCode, header: call.KeptResponse(response.Header), cold: waited(response.Header)}
	if call.MayRepeat(got.status) {
		return got, nil
	}
	takes := int64(store.Inline)
	if response.ContentLength >= 0 {
		takes = min(takes, response.ContentLength)
	}
	if err := m.budget.answering.Wait(ctx, c.Namespace, takes); err != nil {
		return nil, fmt.Errorf("wait for memory for the answer: %w", err)
	}
	got.takes = takes
	return got, m.keep(ctx, c.Namespace, response.Body, rules.MaxResult, got)
}

// waited reports whether the response says that its request waited for a pod.
func waited(h http.Header) bool {
	start, err := wire.ParseColdStart(h.Values(wire.HeaderServerTiming))
	return err == nil && !start.Received.IsZero()
}

var errOversized = errors.New("the result is too large")

// limited fails after most bytes.
type limited struct {
	from io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return n, errOversized
	}
	return n, err
}

// keep reads the body of an answer: a small one to memory, a large one to the store, one that is
// too large to nowhere. The service has answered, so the call is not repeated because of that.
func (m *Manager) keep(ctx context.Context, namespace string, from io.Reader, most int64, got *answer) error {
	from = &limited{from, most}
	var small bytes.Buffer
	n, err := small.ReadFrom(io.LimitReader(from, store.Inline+1))
	if err == nil && n <= store.Inline {
		got.body, got.size = small.Bytes(), n
		return nil
	}
	if err == nil {
		for m.Store.Crowded(namespace, most) && m.Store.MakeRoom(ctx, namespace) {
		}
		got.stored = namespace + "." + call.NewID()
		got.size, err = m.Store.PutBody(ctx, namespace, got.stored, io.MultiReader(&small, from))
	}
	if errors.Is(err, store.ErrShare) {
		m.Counts.Oversized.Add(1)
		got.stored, got.size, got.reason = "", 0, "its namespace has no share left of the room for large results"
		return nil
	}
	if errors.Is(err, errOversized) {
		m.Counts.Oversized.Add(1)
		got.stored, got.size, got.reason = "", 0, fmt.Sprintf("the result has more than %d bytes", most)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the result: %w", err)
	}
	return nil
}
