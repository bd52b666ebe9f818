package sleep

import (
	"context"
	"sync"
	"time"

	"ebb.dev/ebb/standby"
)

// lostTime is how long a guard, or the next agent, has to thaw a pod that lost its agent.
const lostTime = time.Minute

// look is how often a resting pod looks whether it is idle, and a lost one whether its container
// answers.
const look = 50 * time.Millisecond

// stepLocked tells the pod's machine what happened and does what it says.
func (s *Sleeper) stepLocked(e standby.Event) {
	e.At = s.o.Clock()
	was := s.pod.State
	do := s.pod.Step(e)
	if s.pod.State == standby.Lost && was != standby.Lost {
		s.lostAt.Store(int64(e.At))
	}
	s.state.Store(uint32(s.pod.State))
	if was != s.pod.State {
		s.o.Log.Debug("sleep", "from", was.String(), "to", s.pod.State.String(), "because", e.Kind.String())
	}
	if do.Has(standby.Send) {
		s.sendLocked(s.pod.Order)
	}
	if s.pod.State <= standby.Resting {
		s.o.Gate.Open()
	}
	if do.Has(standby.Release|standby.Refuse) || was > standby.Resting && s.pod.State <= standby.Resting {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.performLocked(do, e.At)
}

// performLocked does the rest of what a step says: timers, calls of the program, announcements.
func (s *Sleeper) performLocked(do standby.Do, now time.Duration) {
	if do.Has(standby.Arm) {
		s.called = now
		s.armLocked()
	}
	if do.Has(standby.Release) && s.o.Woke != nil && s.called != 0 {
		s.o.Woke(s.pod.Depth, now-s.called)
		s.called = 0
	}
	if do.Has(standby.CallSleep) {
		go s.call("the hook before sleep", s.o.SleepHook)
	}
	if do.Has(standby.CallWake) {
		go s.call("the hook after the wake", s.o.WakeHook)
	}
	if do.Has(standby.Settle) {
		s.settles = now + standby.SettleTime
		time.AfterFunc(standby.SettleTime, func() { s.tell(standby.Event{Kind: standby.Settled}) })
	}
	if s.pod.State == standby.Awake {
		s.failure = ""
	}
	if do.Has(standby.Retry) {
		s.failure = s.pod.Reason
		s.o.Log.Warn("the pod was not frozen; it is tried again", "after", standby.AgainTime.String(), "error", s.pod.Reason)
		if s.again != nil {
			s.again.Stop() // it may be of an earlier sleep
		}
		s.again = time.AfterFunc(standby.AgainTime, func() { s.tell(standby.Event{Kind: standby.Again}) })
	}
	if do.Has(standby.Probe) {
		s.losses++
		go s.probe(s.losses, s.pod.Risk)
	}
	if s.pod.State == standby.Resting && !s.ticking {
		s.ticking = true
		go s.rest()
	}
	switch {
	case do.Has(standby.SayAwake):
		s.sayLocked(Awake)
	case do.Has(standby.SayAsleep):
		s.sayLocked(Asleep)
	case do.Has(standby.SayGone):
		s.sayLocked(Gone)
	}
}

// call calls the program. One call ends before another begins: the pod's machine waits for it.
func (s *Sleeper) call(what string, hook func(context.Context) error) {
	err := hook(s.ctx)
	e := standby.Event{Kind: standby.Called}
	if err != nil && s.ctx.Err() == nil {
		e.Kind, e.Message.Text = standby.Balked, what+" failed: "+err.Error()
		s.o.Log.Warn(what+" failed; the pod stays awake", "for", standby.HookPause.String(), "error", err)
	}
	s.tell(e)
}

func (s *Sleeper) armLocked() {
	if s.overdue != nil {
		s.overdue.Stop()
	}
	order := s.pod.Order.Number
	s.overdue = time.AfterFunc(standby.WakeTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pod.Order.Number == order {
			s.stepLocked(standby.Event{Kind: standby.Overdue})
		}
	})
}

// rest waits until a pod that was told to sleep is idle.
func (s *Sleeper) rest() {
	tick := time.NewTicker(look)
	defer tick.Stop()
	quiet := time.Now()
	for {
		var now time.Time
		select {
		case <-s.ctx.Done():
			return
		case now = <-tick.C:
		}
		s.mu.Lock()
		if s.pod.State != standby.Resting {
			s.ticking = false
			s.mu.Unlock()
			return
		}
		switch {
		case !s.o.Gate.Shut():
			quiet = now
		case now.Sub(quiet) < s.o.Quiet:
			s.o.Gate.Open()
		default:
			s.stepLocked(standby.Event{Kind: standby.Idle})
		}
		s.mu.Unlock()
	}
}

// probe asks the user container until it answers, from the time at which no order of the lost
// connection can be carried out any more.
func (s *Sleeper) probe(loss int, risk time.Duration) {
	wait := time.NewTimer(risk - s.o.Clock())
	defer wait.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-wait.C:
		}
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		err := s.o.Probe(ctx)
		cancel()
		s.mu.Lock()
		over := s.pod.State != standby.Lost || s.losses != loss
		if err == nil && !over {
			s.stepLocked(standby.Event{Kind: standby.Answered})
			over = true
		}
		s.mu.Unlock()
		if over {
			return
		}
		wait.Reset(look)
	}
}

func (s *Sleeper) sayLocked(w Word) {
	select {
	case <-s.words: // overtaken
	default:
	}
	s.words <- w
}

// speak announces one word at a time. A newer one ends the attempts of the one before, which go on
// for seconds if an activator cannot be reached.
func (s *Sleeper) speak() {
	var speaking sync.WaitGroup
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-s.ctx.Done():
			return
		case w := <-s.words:
			stop()
			speaking.Wait()
			ctx, cancel := context.WithCancel(s.ctx)
			stop = cancel
			speaking.Go(func() { s.o.Announce(ctx, w) })
		}
	}
}
