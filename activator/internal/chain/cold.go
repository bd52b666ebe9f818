package chain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/cold"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

// The causes of the end of a wait that the revision's rules bound. The wait has woken the revision,
// whatever comes after it.
var (
	errPageDue     = errors.New("the browser gets the waiting page")
	errFallbackDue = errors.New("the fallback Service gets the request")
	errMaxWait     = errors.New("the request has waited for as long as one may")
)

// wait waits for a slot, for as long as the revision's rules allow.
func (h *Handler) wait(r *forward.Request, x *Exchange) (hold.Slot, error) {
	if x.rules = x.Revision.Info().Cold; x.rules == nil {
		return x.Revision.Queue.Acquire(r.Context(), &x.Ticket)
	}
	after, then := x.patience(r)
	if then == nil {
		return x.Revision.Queue.Acquire(r.Context(), &x.Ticket)
	}
	since := r.Started
	if !x.fellBack.IsZero() {
		since = x.fellBack
	}
	ctx, cancel := context.WithDeadlineCause(r.Context(), since.Add(after), then)
	defer cancel()
	return x.Revision.Queue.Acquire(ctx, &x.Ticket)
}

// patience is how long the request may wait after it came, or after it went to the fallback
// Service, and what comes then; nil is nothing. Of two that are due at once the page comes first,
// and the rejection last.
func (x *Exchange) patience(r *forward.Request) (after time.Duration, then error) {
	rules := x.rules
	sooner := func(wait time.Duration, what error) {
		if then == nil || wait < after {
			after, then = wait, what
		}
	}
	if x.cold() && x.fellBack.IsZero() {
		if rules.Page.Body != "" && x.Revision.Info().Failure == "" && cold.Browses(r.Method(), r.Header("Accept")) {
			sooner(rules.PageAfter, errPageDue)
		}
		if rules.Fallback != "" {
			sooner(rules.FallbackAfter, errFallbackDue)
		}
	}
	if rules.MaxWait > 0 {
		sooner(rules.MaxWait, errMaxWait)
	}
	return after, then
}

// pageCost is the memory of the waiting page, which a client may be slow to take.
func (x *Exchange) pageCost(info *backends.Info) int64 {
	if info.Cold == nil || !x.cold() {
		return 0
	}
	return int64(len(info.Cold.Page.Body))
}

// cold reports whether the request has seen no pod of its revision.
func (x *Exchange) cold() bool {
	if x.Ticket.Waited {
		return x.Ticket.Cold && !x.met
	}
	return !x.met && len(x.Revision.Snapshot().Pods) == 0
}

// fallsBack reports whether the request may go to the fallback Service.
func (x *Exchange) fallsBack() bool {
	return x.rules != nil && x.rules.Fallback != "" && x.cold() && x.fellBack.IsZero()
}

// fallBack sends a request of which nothing was sent to a pod of the fallback Service. It goes one
// step: a fallback Service has no pages and no fallback for such a request, so there is no loop. It
// is of the same namespace, because the key is made of that.
//
// The request's memory stays in the account of the first revision, whose client uses it; in the
// queue and in the load it counts as the second's.
func (h *Handler) fallBack(r *forward.Request, x *Exchange) forward.Decision {
	first, rules := x.Revision.Key, x.rules
	next := h.Table.Get(backends.Key{Namespace: first.Namespace, Name: rules.FallbackRevision})
	if next == nil || next == x.Revision {
		return x.reject(noFallback, fmt.Sprintf("revision %s has no pod, and its fallback Service %s has no revision that gets requests", first, rules.Fallback), 5)
	}
	now := time.Now()
	x.Load.Fallbacks.Add(1)
	x.Load.Meter.Leave(now)
	if x.Ticket.Waited {
		x.Load.Held.Add(1)
	}
	x.Revision, x.Load, x.Ticket, x.Birth, x.fellBack = next, next.Data.(*Load), hold.Ticket{}, backends.Birth{}, now
	empty := len(next.Snapshot().Pods) == 0
	if x.Load.Meter.In(now) || empty {
		h.ReportNow(next.Key)
	}
	if empty {
		return x.reject(noFallback, fmt.Sprintf("revision %s has no pod, and its fallback Service %s has none either", first, rules.Fallback), 5)
	}
	x.Why = ""
	h.rewrite(r, x, next.Info())
	r.AddResponseHeader(wire.HeaderFallback, rules.Fallback)
	return h.bind(r, x)
}
