// Package act carries the loop's orders out.
//
// Owns: the only writes of a scale and of a PodAutoscaler's status. Reads: the PodAutoscaler whose
// status is to change, and the scale when the number of pods does not fit. Writes: /scale of the
// scale targets, status of PodAutoscalers, the deletion cost of pods about to go, events. Never:
// decides. An order that cannot be carried out is tried again until a later one replaces it, or
// this replica loses the revision: then nothing is written any more. A scale is written only over
// the number of replicas that it was decided on. If there is no Deployment, the status is written
// first: the controller makes one with the scale that it says.
package act

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	autoscaling "ebb.dev/ebb/api/client/versioned/typed/autoscaling/v1alpha1"
	"ebb.dev/ebb/autoscaler/internal/loop"
)

// workers is how many orders are carried out at once. A quarter of them, the raisers, is reserved
// for orders that add pods: requests may wait for those, and a scale-down may take a second to ask
// pods that do not answer.
const (
	workers = 24
	raisers = workers / 4
)

// callTimeout bounds one call of the API server.
const callTimeout = 10 * time.Second

// Writer is the loop's Actor. Its zero value is not usable; call New.
type Writer struct {
	kube   kubernetes.Interface
	client autoscaling.AutoscalingV1alpha1Interface
	get    func(namespace, name string) *v1alpha1.PodAutoscaler
	owners Owners
	costs  *Costs
	events record.EventRecorder
	log    *slog.Logger

	// Written counts scale writes, Failed orders that failed at least once more, Stale scale writes
	// that came after a write of somebody else.
	Written, Failed, Stale atomic.Int64
	// found is called with the scale if it differs from the one that an order was decided on.
	found func(loop.Key, types.UID, int32)
	// ObserveWrite, if set, is called with the time from the event that led to a scale write to the
	// end of the write.
	ObserveWrite func(time.Duration)
	// When the scale of a revision was last raised, and when an event last told that it left zero,
	// and that it reached it.
	raises, left, reached moments
	// Clock is the loop's.
	Clock func() time.Time

	mutex sync.Mutex
	// wakeAny and wakeRaiser wake a worker that waits, idle those that wait for a worker to end.
	wakeAny, wakeRaiser, idle *sync.Cond
	orders                    queue
	versions                  versions
	stopped                   bool
}

// Owners says which revisions are this replica's.
type Owners interface {
	Owns(loop.Key) bool
	// MayWrite also looks at the clock. A lease that was not renewed in time can belong to another
	// replica before the election notices.
	MayWrite(loop.Key) bool
}

// New returns a Writer; Run makes it work.
func New(kube kubernetes.Interface, client autoscaling.AutoscalingV1alpha1Interface, get func(namespace, name string) *v1alpha1.PodAutoscaler,
	owners Owners, costs *Costs, events record.EventRecorder, log *slog.Logger) *Writer {
	w := &Writer{kube: kube, client: client, get: get, owners: owners, costs: costs, events: events, log: log, Clock: time.Now}
	w.orders = queue{tasks: map[loop.Key]*task{}, owns: owners.Owns, queued: func(r rank) {
		w.wakeAny.Signal()
		if r < other {
			w.wakeRaiser.Signal() // the second of the two finds nothing and waits again
		}
	}}
	w.wakeAny, w.wakeRaiser, w.idle = sync.NewCond(&w.mutex), sync.NewCond(&w.mutex), sync.NewCond(&w.mutex)
	return w
}

// Act implements loop.Actor.
func (w *Writer) Act(o loop.Order) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.orders.put(o)
}

// Dropped counts the orders of revisions that this replica lost.
func (w *Writer) Dropped() int64 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.orders.dropped
}

// Release drops the orders of revisions that this replica does not own any more and stops those
// that are under way. It returns when no worker is at one, or after patience.
func (w *Writer) Release(patience time.Duration) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	over := false
	end := time.AfterFunc(patience, func() {
		w.mutex.Lock()
		over = true
		w.mutex.Unlock()
		w.idle.Broadcast()
	})
	defer end.Stop()
	for w.orders.release() && !over {
		w.idle.Wait()
	}
}

// Run carries out orders until ctx is done. It drops the orders that still wait: the next owner
// decides again. It calls found, which must not block, with the scale if somebody else wrote it
// after an order was decided.
func (w *Writer) Run(ctx context.Context, found func(loop.Key, types.UID, int32)) error {
	w.found = found
	stop := context.AfterFunc(ctx, func() {
		w.mutex.Lock()
		w.stopped = true
		w.mutex.Unlock()
		w.wakeAny.Broadcast()
		w.wakeRaiser.Broadcast()
	})
	defer stop()
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for {
				t, order, limited := w.next(ctx, i < raisers)
				if t == nil {
					return
				}
				w.done(ctx, t, order, w.carryOut(limited, order))
			}
		})
	}
	all.Wait()
	return nil
}

// next waits for an order that may begin, and returns nil when Run ends. The context bounds it.
func (w *Writer) next(ctx context.Context, raiser bool) (*task, loop.Order, context.Context) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for !w.stopped {
		if t := w.orders.next(raiser); t != nil {
			limited, cancel := context.WithTimeout(ctx, callTimeout)
			t.stop = cancel
			return t, t.order, limited
		}
		if raiser {
			w.wakeRaiser.Wait()
		} else {
			w.wakeAny.Wait()
		}
	}
	return nil, loop.Order{}, nil
}

func (w *Writer) done(ctx context.Context, t *task, order loop.Order, err error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	t.stop()
	w.idle.Broadcast()
	retry := w.orders.done(t, order, err != nil)
	if retry == 0 || ctx.Err() != nil {
		return
	}
	if !errors.Is(err, errMissing) || retry >= lastRaise { // a Deployment takes a moment
		w.Failed.Add(1)
		w.log.Warn("order failed and is tried again", "revision", order.Key.String(), "in", retry, "error", err)
	}
	time.AfterFunc(retry, func() {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.orders.resume(t)
	})
}

func (w *Writer) carryOut(ctx context.Context, o loop.Order) error {
	pa := w.get(o.Key.Namespace, o.Key.Name)
	if pa == nil || pa.UID != o.UID {
		return nil // deleted since
	}
	if o.Verify && !o.Scale || o.Scale && o.From < 0 { // unknown after a restart
		replicas, err := w.replicas(ctx, o)
		if err != nil {
			return err
		}
		o.Scale, o.From = replicas != o.Replicas, replicas
	}
	// Only now: what was read above is then from before the next owner's first write.
	if err := w.check(ctx, o); err != nil {
		return err
	}
	if o.Scale {
		if o.Replicas > 0 && o.Replicas < o.From && w.costs != nil {
			if err := w.costs.Mark(ctx, o.Key, int(o.From-o.Replicas)); err != nil {
				// The scale-down is right without it, but it may end requests that another choice
				// would not.
				w.log.Warn("cannot mark the pods that are removed first", "revision", o.Key.String(), "error", err)
			}
		}
		switch err := w.writeScale(ctx, o); {
		case errors.Is(err, errStale):
			w.Stale.Add(1)
			return w.writeStatus(ctx, pa, o)
		case errors.Is(err, errMissing):
			o.Held = false // the controller waits for it
			if failed := w.writeStatus(ctx, pa, o); failed != nil || o.Replicas == 0 {
				return failed
			}
			return err
		case err != nil:
			return err
		}
		w.Written.Add(1)
		if o.Replicas > o.From {
			w.raises.note(o.Key, time.Now()) // for another process to compare, so not the loop's clock
		}
		if w.ObserveWrite != nil {
			w.ObserveWrite(w.Clock().Sub(o.Since))
		}
		w.log.Info("scaled", "revision", o.Key.String(), "from", o.From, "to", o.Replicas, "rule", o.Rule(), "reason", o.Reason())
		w.tell(pa, o)
	}
	return w.writeStatus(ctx, pa, o)
}

// tellAgain is how often the events tell that a revision goes to zero, and that it comes back: one
// that does so with each request would write an event each time.
const tellAgain = 10 * time.Minute

func (w *Writer) tell(pa *v1alpha1.PodAutoscaler, o loop.Order) {
	if w.events == nil || o.From == o.Replicas {
		return
	}
	reason, told := "ScaledUp", &w.left
	if o.Replicas < o.From {
		reason, told = "ScaledDown", &w.reached
	}
	if o.From == 0 || o.Replicas == 0 {
		now := w.Clock()
		if last := told.last(o.Key); !last.IsZero() && now.Sub(last) < tellAgain {
			return
		}
		told.note(o.Key, now)
	}
	w.events.Eventf(pa, corev1.EventTypeNormal, reason, "from %d to %d pods by rule %s: %s", o.From, o.Replicas, o.Rule(), o.Reason())
}
