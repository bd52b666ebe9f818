package main

import (
	"context"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/step"
)

// task is work that goes on in the background while steps run. A later step waits for it.
type task struct {
	ended       chan struct{}
	err         error // once ended
	made        int   // programs built, once ended
	done, total atomic.Int64
}

// begin runs f in the background. It ends with ctx, and up waits for that.
func (c *control) begin(ctx context.Context, f func(context.Context, *task) error) *task {
	t := &task{ended: make(chan struct{})}
	c.background.Go(func() {
		defer close(t.ended)
		t.err = f(ctx, t)
	})
	return t
}

func (t *task) progress(done, total int) {
	t.done.Store(int64(done))
	t.total.Store(int64(total))
}

// wait shows the task's progress until the task has ended.
func (t *task) wait(r *step.Report) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-t.ended:
			return t.err
		case <-tick.C:
			if done := t.done.Load(); done > 0 {
				r.Progress(int(done), int(t.total.Load()), "packages")
			}
		}
	}
}
