package probe

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// How often the container is asked, and how long one answer may take.
const (
	// While it starts, the container is asked after each startPeriod at first and later less often:
	// a container that took a time to start is noticed within startPeriod or 1/startShare of that
	// time, and within startMax however long it took. Ten pods that start together on a busy node
	// would otherwise take from each other, by asking, what they need to start. An exec probe is
	// not run here: its place takes a look at the port (Spec), which costs next to nothing.
	startPeriod = 10 * time.Millisecond
	startShare  = 20
	startMax    = 20 * time.Millisecond
	laterPeriod = 50 * time.Millisecond // for the kubelet (contract section 5.4)
	tryTimeout  = 100 * time.Millisecond
	overall     = 10 * time.Second
)

// Prober runs the probes of all containers. Simultaneous questions share one run.
type Prober struct {
	specs, startup []Spec
	started        chan struct{} // closed when the container passed for the first time
	once           func(context.Context, *Spec, time.Duration) error

	mu   sync.Mutex
	run  chan struct{} // closed at the end of the run in progress, nil for none
	last error         // its outcome
}

// New makes a Prober; nothing runs before Start.
func New(startup, specs []Spec) *Prober {
	return &Prober{specs: specs, startup: startup, started: make(chan struct{}),
		once: func(ctx context.Context, s *Spec, timeout time.Duration) error { return s.Once(ctx, timeout) }}
}

// Start polls, from the process's own start and much faster than any kubelet, until the container
// passes or ctx ends.
func (p *Prober) Start(ctx context.Context) error {
	begin := time.Now()
	pending := append(append([]Spec(nil), p.startup...), p.specs...)
	for len(pending) > 0 {
		if p.passes(ctx, &pending[0]) {
			pending = pending[1:]
			continue
		}
		t := time.NewTimer(min(max(startPeriod, time.Since(begin)/startShare), startMax))
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
	close(p.started)
	return nil
}

// passes asks until the threshold of successes is met or one try fails.
func (p *Prober) passes(ctx context.Context, s *Spec) bool {
	timeout := tryTimeout
	if !s.aggressive() {
		timeout = s.Timeout()
	}
	for range s.SuccessThreshold {
		if p.once(ctx, s, timeout) != nil {
			return false
		}
	}
	return true
}

// Ready answers the kubelet. Before the first success it waits for it, for as long as one probe may
// take: the kubelet asks seldom, and a "no" would cost a period.
func (p *Prober) Ready(ctx context.Context) error {
	select {
	case <-p.started:
	default:
		wait := overall
		for i := range p.specs {
			if s := &p.specs[i]; !s.aggressive() {
				wait = min(wait, s.Timeout())
			}
		}
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-p.started:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
			return fmt.Errorf("the container did not pass its readiness probe within %s", wait)
		}
	}
	p.mu.Lock()
	run := p.run
	if run == nil {
		run = make(chan struct{})
		p.run = run
		go p.ask(run)
	}
	p.mu.Unlock()
	select {
	case <-run:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.last
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ask runs all probes once, for everybody who waits.
func (p *Prober) ask(run chan struct{}) {
	results := make(chan error, len(p.specs))
	for i := range p.specs {
		go func() { results <- p.askOne(&p.specs[i]) }()
	}
	var err error
	for range p.specs {
		if e := <-results; e != nil {
			err = e
		}
	}
	p.mu.Lock()
	p.last, p.run = err, nil
	p.mu.Unlock()
	close(run)
}

func (p *Prober) askOne(s *Spec) error {
	if !s.aggressive() {
		return s.Once(context.Background(), s.Timeout())
	}
	ctx, cancel := context.WithTimeout(context.Background(), overall)
	defer cancel()
	good := 0
	for {
		err := s.Once(ctx, tryTimeout)
		if err == nil {
			if good++; good >= s.SuccessThreshold {
				return nil
			}
			continue
		}
		good = 0
		t := time.NewTimer(laterPeriod)
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
	}
}
