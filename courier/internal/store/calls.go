package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/call"
)

// Add keeps a call. fresh is false if the same one, by its ID, is kept already; the error is
// ErrOther if that one asks for something else.
func (s *Store) Add(ctx context.Context, c *call.Call, body []byte) (fresh bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var options []jetstream.PublishOpt
	if c.Keyed {
		// While the call runs, its message is there; before that is removed, there is a result.
		if r, _, err := s.Result(ctx, c.Service, c.ID); err == nil {
			return false, same(r.Print, c)
		} else if !errors.Is(err, ErrNone) {
			return false, err
		}
		options = append(options, jetstream.WithExpectLastSequencePerSubject(0))
	}
	m := &nats.Msg{Subject: subject(calls, c.Service, c.ID), Header: nats.Header{headerOf: {call.Encode(c)}}, Data: body}
	takes := cost(m.Header, len(m.Data))
	if !s.held.take(c.Namespace, takes) {
		return false, ErrShare
	}
	defer func() {
		if !fresh {
			s.held.give(c.Namespace, takes)
		}
	}()
	if _, err := s.js.PublishMsg(ctx, m, options...); err != nil {
		if !c.Keyed || !exists(err) {
			return false, fmt.Errorf("store call %s of %s: %w", c.ID, c.Service, err)
		}
		if err := s.repeated(ctx, c); err != nil {
			return false, err
		}
	} else {
		fresh = true
		if s.Stored != nil {
			s.Stored(c.Service)
		}
	}
	if s.disk != nil { // for a repeated one, too: the first may not be on the disk yet
		if err := s.disk.sync(ctx); err != nil {
			return fresh, fmt.Errorf("store call %s of %s: %w", c.ID, c.Service, err)
		}
	}
	return fresh, nil
}

// repeated compares a call with the one that has its ID, which may end meanwhile.
func (s *Store) repeated(ctx context.Context, c *call.Call) error {
	before, err := s.Call(ctx, c.Service, c.ID)
	if err == nil {
		return same(before.Print, c)
	}
	if errors.Is(err, ErrNone) {
		var r *call.Record
		if r, _, err = s.Result(ctx, c.Service, c.ID); err == nil {
			return same(r.Print, c)
		}
	}
	return fmt.Errorf("read call %s of %s, which is repeated: %w", c.ID, c.Service, err)
}

func same(print string, c *call.Call) error {
	if print != c.Print {
		return ErrOther
	}
	return nil
}

// Call returns a call that is not completed.
func (s *Store) Call(ctx context.Context, of call.Service, id string) (*call.Call, error) {
	m, err := lastOf(ctx, s.calls, subject(calls, of, id))
	if err != nil {
		return nil, err
	}
	return call.Decode(m.Header.Get(headerOf))
}

// Finish keeps a record with the body of the result.
func (s *Store) Finish(ctx context.Context, r *call.Record, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m := &nats.Msg{Subject: subject(results, r.Service, r.ID), Header: nats.Header{headerOf: {call.Encode(r)}}, Data: body}
	e := entry{cost: cost(m.Header, len(m.Data)), body: r.Body, size: r.Size}
	if err := s.add(ctx, s.results, r.Namespace, m, e); err != nil {
		return fmt.Errorf("store the result of call %s of %s: %w", r.ID, r.Service, err)
	}
	return nil
}

// Result returns the record of a call that ended, and its body unless that is a large one.
func (s *Store) Result(ctx context.Context, of call.Service, id string) (*call.Record, []byte, error) {
	m, err := lastOf(ctx, s.found, subject(results, of, id))
	if err != nil {
		return nil, nil, err
	}
	r, err := call.DecodeRecord(m.Header.Get(headerOf))
	return r, m.Data, err
}

// Bury keeps the message of a call that nobody will try again, with the reason.
func (s *Store) Bury(ctx context.Context, m jetstream.Msg, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, rest, _ := strings.Cut(m.Subject(), ".")
	_, rest, _ = strings.Cut(rest, ".")
	letter := &nats.Msg{Subject: subjects[dead] + "." + rest, Header: nats.Header{headerOf: {m.Headers().Get(headerOf)}, "Ebb-Reason": {reason}}, Data: m.Data()}
	e := entry{cost: cost(letter.Header, len(letter.Data))}
	if c, err := CallOf(m); err == nil {
		e.body, e.size = c.Body, c.Size
	}
	if err := s.add(ctx, s.dead, namespaceOf(m.Subject()), letter, e); err != nil {
		return fmt.Errorf("store the dead letter of %s: %w", m.Subject(), err)
	}
	return nil
}
