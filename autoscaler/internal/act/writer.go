// Package act carries the loop's orders out.
//
// Owns: the only writes of a scale and of a PodAutoscaler's status. Reads: the PodAutoscaler whose
// status is to change, and the scale when the number of pods does not fit. Writes: /scale of the
// scale targets, status of PodAutoscalers, the deletion cost of pods about to go, events. Never:
// decides. An order that cannot be carried out is tried again until a later one replaces it.
package act

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	autoscaling "ebb.dev/ebb/api/client/versioned/typed/autoscaling/v1alpha1"
	"ebb.dev/ebb/autoscaler/internal/loop"
)

// workers is how many orders are carried out at once. So many of them as raisers take nothing but
// orders that add pods: somebody waits for those, and an order that removes some may take a second
// to ask pods that do not answer.
const (
	workers = 24
	raisers = workers / 4
)

// rank says which orders go first. Those before other are what raisers take.
type rank int

const (
	urgent rank = iota // nobody is there to serve
	raise
	other
	ranks
)

func rankOf(o loop.Order) rank {
	switch {
	case o.Urgent:
		return urgent
	case o.Scale && o.From >= 0 && o.Replicas > o.From:
		return raise
	}
	return other
}

// Retries of an order that failed begin at firstRetry and double up to lastRetry.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// callTimeout bounds one call of the API server.
const callTimeout = 10 * time.Second

// Writer is the loop's Actor. Its zero value is not usable; call New.
type Writer struct {
	kube   kubernetes.Interface
	client autoscaling.AutoscalingV1alpha1Interface
	get    func(namespace, name string) *v1alpha1.PodAutoscaler
	costs  *Costs
	events record.EventRecorder
	log    *slog.Logger

	// Written counts scale writes, Failed orders that failed at least once more.
	Written, Failed atomic.Int64
	// ObserveWrite, if set, is told the time from the news that led to a scale write to its end.
	ObserveWrite func(time.Duration)
	// raises is when the scale of a revision was last raised.
	raises raises
	// Clock is the loop's.
	Clock func() time.Time

	mutex sync.Mutex
	// wakeAny and wakeRaiser wake a worker that waits.
	wakeAny, wakeRaiser *sync.Cond
	waiting             map[loop.Key]*task
	queues              [ranks][]loop.Key
	stopped             bool
}

// task is the newest order of a revision that has not been begun, or the one under way.
type task struct {
	order loop.Order
	full  bool // order waits
	busy  bool // a worker is at an earlier one
	// paused says that the order failed and waits for its retry.
	paused bool
	retry  time.Duration
}

// New returns a Writer; Run makes it work.
func New(kube kubernetes.Interface, client autoscaling.AutoscalingV1alpha1Interface, get func(namespace, name string) *v1alpha1.PodAutoscaler,
	costs *Costs, events record.EventRecorder, log *slog.Logger) *Writer {
	w := &Writer{kube: kube, client: client, get: get, costs: costs, events: events, log: log, Clock: time.Now, waiting: map[loop.Key]*task{}}
	w.wakeAny, w.wakeRaiser = sync.NewCond(&w.mutex), sync.NewCond(&w.mutex)
	return w
}

// Act implements loop.Actor.
func (w *Writer) Act(o loop.Order) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	t := w.waiting[o.Key]
	if t == nil {
		t = &task{}
		w.waiting[o.Key] = t
	}
	if t.full {
		o = merge(t.order, o)
	}
	t.order = o
	if t.paused && o.Scale {
		// What is to be written changed, so there is news to try at once.
		t.paused = false
		w.queue(o.Key, rankOf(o))
		return
	}
	if !t.full {
		t.full, t.retry = true, 0
		if !t.busy {
			w.queue(o.Key, rankOf(o))
		}
	} else if rankOf(o) < other && !t.busy {
		// Somebody waits now; a second mention in a queue is harmless.
		w.queue(o.Key, rankOf(o))
	}
}

// merge makes one order of two: what the older one was to write is still to be written.
func merge(older, newer loop.Order) loop.Order {
	if older.UID != newer.UID {
		return newer
	}
	if older.Scale {
		newer.From, newer.Since = older.From, older.Since
		newer.Scale = true
	}
	newer.Verify = newer.Verify || older.Verify
	newer.Urgent = newer.Urgent || older.Urgent
	return newer
}

func (w *Writer) queue(key loop.Key, r rank) {
	w.queues[r] = append(w.queues[r], key)
	w.wakeAny.Signal()
	if r < other {
		w.wakeRaiser.Signal() // whoever of the two comes second waits again
	}
}

// Run carries orders out until ctx is done. What waits then is dropped: the next owner decides
// anew.
func (w *Writer) Run(ctx context.Context) error {
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
				key, order, ok := w.next(i < raisers)
				if !ok {
					return
				}
				w.done(ctx, key, order, w.carryOut(ctx, order))
			}
		})
	}
	all.Wait()
	return nil
}

// next waits for an order that may begin; one that adds pods, for a raiser.
func (w *Writer) next(raiser bool) (loop.Key, loop.Order, bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for {
		if w.stopped {
			return loop.Key{}, loop.Order{}, false
		}
		key, r := w.first(raiser)
		if r == ranks {
			if raiser {
				w.wakeRaiser.Wait()
			} else {
				w.wakeAny.Wait()
			}
			continue
		}
		t := w.waiting[key]
		if t == nil || !t.full || t.busy || t.paused {
			continue // carried out under another mention
		}
		if raiser && rankOf(t.order) == other {
			w.queue(key, other) // it was to add pods when it was queued
			continue
		}
		t.full, t.busy = false, true
		return key, t.order, true
	}
}

// first takes the first key out of the queues, ranks with none.
func (w *Writer) first(raiser bool) (loop.Key, rank) {
	end := ranks
	if raiser {
		end = other
	}
	for r := range end {
		if len(w.queues[r]) > 0 {
			key := w.queues[r][0]
			w.queues[r] = w.queues[r][1:]
			return key, r
		}
	}
	return loop.Key{}, ranks
}

func (w *Writer) done(ctx context.Context, key loop.Key, order loop.Order, err error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	t := w.waiting[key]
	t.busy = false
	switch {
	case err == nil && !t.full:
		delete(w.waiting, key)
	case err == nil:
		t.retry = 0
		w.queue(key, rankOf(t.order))
	case ctx.Err() != nil:
	default:
		w.Failed.Add(1)
		if !t.full {
			t.order, t.full = order, true
		} else {
			t.order = merge(order, t.order)
		}
		t.retry = min(max(2*t.retry, firstRetry), lastRetry)
		w.log.Warn("order failed and is tried again", "revision", key.String(), "in", t.retry, "error", err)
		t.paused = true
		time.AfterFunc(t.retry, func() {
			w.mutex.Lock()
			defer w.mutex.Unlock()
			if t.paused {
				t.paused = false
				w.queue(key, rankOf(t.order))
			}
		})
	}
}

func (w *Writer) carryOut(ctx context.Context, o loop.Order) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pa := w.get(o.Key.Namespace, o.Key.Name)
	if pa == nil || pa.UID != o.UID {
		return nil // deleted since
	}
	if o.Verify && !o.Scale || o.Scale && o.From < 0 { // unknown after a restart: an event of a change needs one
		found, err := w.scale(ctx, o)
		if err != nil {
			return err
		}
		o.Scale, o.From = found != o.Replicas, found
	}
	if o.Scale {
		if o.Replicas > 0 && o.Replicas < o.From && w.costs != nil {
			if err := w.costs.Mark(ctx, o.Key, int(o.From-o.Replicas)); err != nil {
				// The scale-down is right without it; it may end requests that another choice would
				// not.
				w.log.Warn("pods to go first were not marked", "revision", o.Key.String(), "error", err)
			}
		}
		if err := w.writeScale(ctx, o); err != nil {
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

var errTarget = errors.New("only Deployments of apps/v1 can be scaled")

func (w *Writer) check(o loop.Order) error {
	if o.Target.APIVersion != "apps/v1" || o.Target.Kind != "Deployment" {
		return fmt.Errorf("scale %s %s of %s: %w", o.Target.APIVersion, o.Target.Kind, o.Key, errTarget)
	}
	return nil
}

func (w *Writer) scale(ctx context.Context, o loop.Order) (int32, error) {
	if err := w.check(o); err != nil {
		return 0, err
	}
	scale, err := w.kube.AppsV1().Deployments(o.Key.Namespace).GetScale(ctx, o.Target.Name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("get scale of %s/%s: %w", o.Key.Namespace, o.Target.Name, err)
	}
	return scale.Spec.Replicas, nil
}

func (w *Writer) writeScale(ctx context.Context, o loop.Order) error {
	if err := w.check(o); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `[{"op":"add","path":"/spec/replicas","value":%d}]`, o.Replicas)
	_, err := w.kube.AppsV1().Deployments(o.Key.Namespace).Patch(ctx, o.Target.Name, types.JSONPatchType, patch, metav1.PatchOptions{}, "scale")
	if err != nil {
		return fmt.Errorf("patch scale of %s/%s to %d: %w", o.Key.Namespace, o.Target.Name, o.Replicas, err)
	}
	return nil
}

func (w *Writer) tell(pa *v1alpha1.PodAutoscaler, o loop.Order) {
	if w.events == nil || o.From == o.Replicas {
		return
	}
	reason := "ScaledUp"
	if o.Replicas < o.From {
		reason = "ScaledDown"
	}
	w.events.Eventf(pa, corev1.EventTypeNormal, reason, "from %d to %d pods by rule %s: %s", o.From, o.Replicas, o.Rule(), o.Reason())
}

func (w *Writer) writeStatus(ctx context.Context, pa *v1alpha1.PodAutoscaler, o loop.Order) error {
	status, changed := nextStatus(pa, o)
	if !changed {
		return nil
	}
	// Only this process writes the status, so nothing is merged; the uid keeps the patch from an
	// object that was made anew under the same name.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pa.UID},
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encode status of %s: %w", o.Key, err)
	}
	_, err = w.client.PodAutoscalers(o.Key.Namespace).Patch(ctx, o.Key.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("patch status of PodAutoscaler %s: %w", o.Key, err)
	}
	return nil
}
