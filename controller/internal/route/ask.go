package route

import (
	"context"
	"sync"
	"time"

	viewv1alpha1 "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/controller/internal/reconcile"
)

const (
	// askEach is the time from the beginning of one question about a Route to that of the next, and
	// answerWithin how long the autoscaler has. It asks the pods as often, and has heard of them
	// heardWithin in most cases.
	askEach      = time.Second
	answerWithin = 2500 * time.Millisecond
	heardWithin  = 100 * time.Millisecond
	// askAtOnce bounds the questions that are open. While view.ebb.dev hangs, further ones wait;
	// the judges say meanwhile that nobody tells.
	askAtOnce = 32
)

// asks are the questions of judges to the autoscaler. Nobody waits for an answer: the Route is
// reconciled when it comes. So a view.ebb.dev that hangs holds no worker, and no other Route, up.
type asks struct {
	view func(ctx context.Context, namespace, service string) (*viewv1alpha1.ServiceView, error)
	wake func(reconcile.Key)

	mutex sync.Mutex
	ctx   context.Context // of the questions; set while it runs
	slots chan struct{}
	all   map[reconcile.Key]*question
	open  sync.WaitGroup
}

// question is the newest one about a Route.
type question struct {
	open   bool
	next   time.Time // when to ask again, zero before the first
	cancel context.CancelFunc
	answer *answer // nil if there is none that was not taken
}

// answer is what came of a question.
type answer struct {
	view *viewv1alpha1.ServiceView
	err  error
}

// run allows questions until ctx ends, and returns when the last one has ended.
func (a *asks) run(ctx context.Context) {
	a.mutex.Lock()
	a.ctx, a.slots = ctx, make(chan struct{}, askAtOnce)
	a.mutex.Unlock()
	<-ctx.Done()
	a.mutex.Lock()
	a.ctx = nil // a take that found it alive has begun its question
	a.mutex.Unlock()
	a.open.Wait()
}

// take returns the answer that came since the last call, nil if none did, and asks again when there
// may be news.
func (a *asks) take(key reconcile.Key, service string) *answer {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.all == nil {
		a.all = map[reconcile.Key]*question{}
	}
	q := a.all[key]
	if q == nil {
		q = &question{cancel: func() {}}
		a.all[key] = q
	}
	got := q.answer
	q.answer = nil
	if !q.open && a.ctx != nil && a.ctx.Err() == nil {
		q.open = true
		var ctx context.Context
		ctx, q.cancel = context.WithCancel(a.ctx)
		pause := time.Duration(0)
		if !q.next.IsZero() {
			pause = time.Until(q.next)
		}
		a.open.Go(func() { a.ask(ctx, q, key, service, pause) })
	}
	return got
}

// end drops what is asked about a Route, and what was answered.
func (a *asks) end(key reconcile.Key) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if q := a.all[key]; q != nil {
		q.cancel()
		delete(a.all, key)
	}
}

// ask asks once.
func (a *asks) ask(ctx context.Context, q *question, key reconcile.Key, service string, pause time.Duration) {
	wait := time.NewTimer(pause)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return
	}
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return
	}
	began := time.Now()
	within, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	v, err := a.view(within, key.Namespace, service)
	a.mutex.Lock()
	ended := ctx.Err() != nil
	q.open, q.next, q.answer = false, news(v, began), &answer{v, err}
	q.cancel()
	a.mutex.Unlock()
	if !ended {
		a.wake(key)
	}
}

// news is when to ask again after a question that began so: askEach later, or once the autoscaler
// has the next second, where it is known when that ends. A second is judged half of one sooner so,
// in the mean. If the clocks differ it is any time within a second, as without.
func news(v *viewv1alpha1.ServiceView, began time.Time) time.Time {
	newest := time.Time{}
	if v != nil {
		for i := range v.Revisions {
			if j := v.Revisions[i].Judged; j != nil && len(j.Seconds) > 0 && j.Seconds[len(j.Seconds)-1].At.After(newest) {
				newest = j.Seconds[len(j.Seconds)-1].At
			}
		}
	}
	if age := began.Sub(newest); age < 0 || age >= askEach {
		return began.Add(askEach)
	}
	return newest.Add(askEach + heardWithin)
}
