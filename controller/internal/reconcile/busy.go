package reconcile

import (
	"context"
	"runtime"
	"time"
)

// With busyAt keys for each CPU that wait or are being reconciled because something changed, a
// Manager is busy. New objects of a controller with NewWait then wait their turn, each for at most
// admitWithin, so that objects which were begun are finished first: of 200 Services at once, the
// first are Ready after a second, and half of them after half of the time.
const (
	busyAt      = 4
	admitWithin = 250 * time.Millisecond
	admitStep   = 5 * time.Millisecond
)

func (mgr *Manager) busy() bool {
	n := mgr.running.Load()
	for _, c := range mgr.controllers {
		c.q()
		n += int64(c.lanes.waiting())
	}
	return n >= int64(busyAt*runtime.GOMAXPROCS(0))
}

// admit moves the keys of new objects into the queue, one after the other, until ctx ends.
func (c *Controller) admit(ctx context.Context, busy func() bool) {
	defer context.AfterFunc(ctx, c.arrivals().ShutDown)()
	for {
		key, down := c.arrivals().Get()
		if down {
			return
		}
		for waited := time.Duration(0); busy() && waited < admitWithin && ctx.Err() == nil; waited += admitStep {
			time.Sleep(admitStep)
		}
		c.Enqueue(key)
		c.arrivals().Done(key)
	}
}
