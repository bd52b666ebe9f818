package chain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/cold"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

// errDue is the cause of the end of a wait that the revision's rules bound. The wait has woken the
// revision, whatever comes after it.
var errDue = errors.New("the request has waited for as long as one may")

// try takes a slot if one is free. A request that has waited goes back to its place in the queue.
func (h *Handler) try(r *forward.Request, x *Exchange) bind.Event {
	if !x.ticket.Waited {
		if slot, ok := x.Revision.Queue().Try(); ok {
			x.slot, x.Bound = slot, r.Started
			return bind.Event{Kind: bind.Slot}
		}
	}
	e := bind.Event{Kind: bind.NoSlot, Cold: x.cold()}
	if x.rules = x.Revision.Info().Cold; x.rules != nil {
		e.Patience = x.patience(r)
	}
	return e
}

// patience is what the revision's rules say of how long the request may wait. A page does not hide
// that no pod can start.
func (x *Exchange) patience(r *forward.Request) bind.Patience {
	c := x.rules
	return bind.Patience{
		Pages:     c.Page.Body != "" && x.Revision.Info().Failure == "" && cold.Browses(r.Method(), r.Header("Accept")),
		PageAfter: c.PageAfter,
		FallsBack: c.Fallback != "", FallbackAfter: c.FallbackAfter,
		MaxWait: c.MaxWait,
	}
}

// wait waits for a slot until the machine's deadline.
func (h *Handler) wait(r *forward.Request, x *Exchange) bind.Event {
	ctx := r.Context()
	if deadline := x.machine.Deadline(); !deadline.IsZero() {
		limited, cancel := context.WithDeadlineCause(ctx, deadline, errDue)
		defer cancel()
		ctx = limited
	}
	slot, err := x.Revision.Queue().Acquire(ctx, &x.ticket)
	if err != nil {
		return x.failed(err)
	}
	x.slot, x.Bound = slot, time.Now()
	h.noteBirth(r, x)
	return bind.Event{Kind: bind.Slot}
}

// failed is the event that an error of holding is.
func (x *Exchange) failed(err error) bind.Event {
	var full *hold.FullError
	var cannot *hold.CannotStartError
	switch {
	case errors.As(err, &full):
		x.refusal = later(full.Error())
		return bind.Event{Kind: bind.Full, Own: full.Own}
	case errors.As(err, &cannot):
		x.refusal = later("revision " + x.Revision.Key.String() + ": " + cannot.Error())
		return bind.Event{Kind: bind.CannotStart, Cold: x.cold()}
	case errors.Is(err, hold.ErrDeleted):
		return bind.Event{Kind: bind.Deleted, Err: err}
	case errors.Is(err, errDue):
		return bind.Event{Kind: bind.Tick, At: time.Now()}
	}
	x.refusal = later(err.Error())
	return bind.Event{Kind: bind.Stopped}
}

// cold reports whether the revision had no pod when the request began to wait, or has none if it
// did not yet.
func (x *Exchange) cold() bool {
	if x.ticket.Waited {
		return x.ticket.Cold
	}
	return len(x.Revision.Snapshot().Pods) == 0
}

// pageCost is the memory of the waiting page, which a client may be slow to take.
func (x *Exchange) pageCost(info *backends.Info) int64 {
	if info.Cold == nil || !x.cold() {
		return 0
	}
	return int64(len(info.Cold.Page.Body))
}

// noteBirth notes how the pod came to be that a request waited for from zero.
func (h *Handler) noteBirth(r *forward.Request, x *Exchange) {
	if !x.ticket.Cold {
		return
	}
	first := x.Birth.Known.IsZero()
	x.Birth, _ = x.Revision.Snapshot().Birth(x.slot.Address())
	if !first || h.ColdStartHeader == nil || !h.ColdStartHeader() {
		return
	}
	steps := wire.ColdStart{Received: r.Started, Announced: x.Birth.Known, Forwarded: x.Bound, Via: "endpoints"}
	if x.Birth.Announced {
		steps.Via = "announcement"
	}
	r.AddResponseHeader(wire.HeaderServerTiming, steps.String())
}

// fallBack makes the request one of the revision of the fallback Service. That is of the same
// namespace, because the key is made of it.
//
// The request's memory stays in the account of the first revision, whose client uses it; in the
// queue and in the load it counts as the second's.
func (h *Handler) fallBack(r *forward.Request, x *Exchange) bind.Event {
	first, rules := x.Revision, x.rules
	next := h.Table.Get(backends.Key{Namespace: first.Key.Namespace, Name: rules.FallbackRevision})
	if next == nil || next == first {
		x.refusal = later(fmt.Sprintf("revision %s has no pod, and its fallback Service %s has no revision that gets requests", first.Key, rules.Fallback))
		return bind.Event{Kind: bind.NoFallback}
	}
	now := time.Now()
	first.Load().Fallbacks.Add(1)
	first.Load().Meter.Leave(now)
	if x.ticket.Waited {
		first.Load().Held.Add(1)
	}
	x.Revision, x.ticket, x.Birth = next, hold.Ticket{}, backends.Birth{}
	empty := x.cold()
	if next.Load().Meter.In(now) || empty {
		h.ReportNow(next.Key)
	}
	if empty {
		x.refusal = later(fmt.Sprintf("revision %s has no pod, and its fallback Service %s has none either", first.Key, rules.Fallback))
		return bind.Event{Kind: bind.NoFallback}
	}
	h.rewrite(r, x, next.Info())
	r.AddResponseHeader(wire.HeaderFallback, rules.Fallback)
	return bind.Event{Kind: bind.FellBack, At: now}
}
