package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// pokePeriod is the least time between two attempts out of turn.
const pokePeriod = time.Second

// goodbye bounds the call that gives a Lease back.
const goodbye = 5 * time.Second

// seat is this replica's part in one bucket. client-go's elector does the competing; the seat decides what it means: a bucket is
// held from the moment its Lease was written, through a change of the timings, until the Lease is given back, somebody else
// is seen to have it, or it was not renewed for too long.
type seat struct {
	election *Election
	name     string

	mutex  sync.Mutex
	scheme Scheme
	// again ends the present elector; stay says that what is held stays held meanwhile.
	again context.CancelFunc
	stay  bool
	// closed: nothing is won any more.
	closed bool
	// asking: a call is under way that may win; missed: there was news meanwhile. poked is when it was last tried out of turn.
	asking, missed bool
	poked          time.Time
	later          *time.Timer

	drop   context.CancelFunc // nil while the bucket is not held
	until  time.Time          // it is held if nothing is heard
	silent *time.Timer
	holder string // who else holds it
}

func (s *seat) run(ctx context.Context) {
	for ctx.Err() == nil {
		once, again := context.WithCancel(ctx)
		s.mutex.Lock()
		s.again, s.stay, s.asking, s.missed = again, false, false, false
		scheme := s.scheme
		s.mutex.Unlock()
		elector, err := s.elector(scheme)
		if err != nil { // the scheme is legal, so this is a fault of the program
			s.election.Log.Error("no competition for a lease", "lease", s.name, "error", err.Error())
			again()
			return
		}
		elector.Run(once)
		again()
		s.mutex.Lock()
		stay := s.stay && ctx.Err() == nil
		if !stay {
			s.lose()
		}
		s.mutex.Unlock()
		if !stay {
			s.release()
		}
	}
	s.close()
}

func (s *seat) elector(scheme Scheme) (*leaderelection.LeaderElector, error) {
	e := s.election
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &lock{seat: s, patience: scheme.patience(), LeaseLock: resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: s.name},
			Client:     e.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
			Labels:     map[string]string{Label: e.Component},
		}},
		LeaseDuration: scheme.LeaseDuration, RenewDeadline: scheme.RenewDeadline, RetryPeriod: scheme.RetryPeriod,
		Name: s.name,
		// Called on goroutines of their own, they may come in any order; the seat goes by the lock's calls.
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
}

// retime goes on with other timings.
func (s *seat) retime(scheme Scheme) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.scheme, s.stay = scheme, true
	if s.again != nil {
		s.again()
	}
}

// close gives up what is held and wins nothing more; the Lease itself is given back when run ends.
func (s *seat) close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.closed = true
	s.lose()
	if s.later != nil {
		s.later.Stop()
	}
}

// sees takes in who holds the Lease.
func (s *seat) sees(holder string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if holder == "" {
		defer s.pokeLocked()
	}
	if holder == s.election.Identity {
		holder = ""
	}
	s.tell(holder)
}

// tell passes on who else holds the Lease. While it is held here that may be old news; if it is not, the elector finds out.
func (s *seat) tell(holder string) {
	if holder != s.holder && !s.closed && s.drop == nil {
		s.holder = holder
		if s.election.Holder != nil {
			s.election.Holder(s.name, holder)
		}
	}
}

// poke tries at once, if the Lease is not held here: it may be free. Without it a retry period may pass.
func (s *seat) poke() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.pokeLocked()
}

func (s *seat) pokeLocked() {
	switch {
	case s.drop != nil || s.closed || s.again == nil:
	case s.asking:
		s.missed = true
	case time.Since(s.poked) < pokePeriod:
		// Replicas that work by different numbers of buckets free each other's Leases until one of them has won.
		if s.later == nil {
			s.later = time.AfterFunc(pokePeriod/2+rand.N(pokePeriod), func() {
				s.mutex.Lock()
				defer s.mutex.Unlock()
				s.later = nil
				s.pokeLocked()
			})
		}
	default:
		s.poked, s.stay = time.Now(), true
		s.again()
	}
}

// asks marks a call that may win, answered its end.
func (s *seat) asks() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.asking = true
}

func (s *seat) answered() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.asking = false
	if s.missed {
		s.missed = false
		s.pokeLocked()
	}
}

func (s *seat) state() (held, closed bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.drop != nil, s.closed
}

var errClosed = errors.New("the lease is being given up")

// win is called after each successful write of the Lease; began is when the write was begun.
func (s *seat) win(began time.Time, patience time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return
	}
	s.until = began.Add(patience)
	if s.silent == nil {
		s.silent = time.AfterFunc(time.Until(s.until), s.unheard)
	} else {
		s.silent.Reset(time.Until(s.until))
	}
	if s.drop != nil {
		return
	}
	s.holder = ""
	var held context.Context
	held, s.drop = context.WithCancel(context.Background())
	s.election.Log.Info("lease won", "lease", s.name)
	if s.election.Won != nil {
		s.election.Won(s.name, held)
	}
}

// unheard ends the holding of a Lease that could not be renewed in time.
func (s *seat) unheard() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !time.Now().Before(s.until) {
		s.lose()
	}
}

// lose is called with the mutex held.
func (s *seat) lose() {
	if s.silent != nil {
		s.silent.Stop()
		s.silent = nil
	}
	if s.drop == nil {
		return
	}
	s.drop()
	s.drop = nil
	s.election.Log.Info("lease given up", "lease", s.name)
	if s.election.Lost != nil {
		s.election.Lost(s.name)
	}
}

// release gives the Lease back, if it says that this replica has it. client-go's own would also clear another's.
func (s *seat) release() {
	e := s.election
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	err := free(ctx, e, s.name, e.Identity, "")
	for range 3 { // a renewal that was broken off may have arrived all the same
		if !apierrors.IsConflict(err) {
			break
		}
		err = free(ctx, e, s.name, e.Identity, "")
	}
	if err != nil {
		e.Log.Warn("a lease could not be given back and will run out", "lease", s.name, "error", err.Error())
	}
}

// lock is client-go's Lease lock, which also tells the seat what it found.
type lock struct {
	resourcelock.LeaseLock
	seat     *seat
	patience time.Duration
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.seat.asks()
	record, raw, err := l.LeaseLock.Get(ctx)
	if err != nil {
		if !apierrors.IsNotFound(err) { // else Create comes next
			l.seat.answered()
		}
		return record, raw, err
	}
	if holder := record.HolderIdentity; holder != l.Identity() {
		l.seat.mutex.Lock()
		l.seat.lose()
		l.seat.tell(holder)
		l.seat.mutex.Unlock()
		if holder != "" {
			l.seat.answered()
		}
	}
	return record, raw, nil
}

// Create implements resourcelock.Interface. The Lease is made free and then taken, as Election.take wants it.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.seat.asks()
	free := record
	free.HolderIdentity = ""
	if err := l.LeaseLock.Create(ctx, free); err != nil {
		l.seat.answered()
		return err
	}
	return l.Update(ctx, record)
}

// Update implements resourcelock.Interface.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.seat.asks()
	defer l.seat.answered()
	began := time.Now()
	if held, closed := l.seat.state(); closed {
		return errClosed
	} else if !held {
		if err := l.seat.election.take(ctx); err != nil {
			return err
		}
	}
	if err := l.LeaseLock.Update(ctx, record); err != nil {
		return err
	}
	l.seat.win(began, l.patience)
	return nil
}

// free clears the holder of a Lease if it is still the one given, and the Lease, unless version is empty, still that version.
func free(ctx context.Context, e *Election, name, holder, version string) error {
	leases := e.Client.CoordinationV1().Leases(e.Namespace)
	l, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get lease %s/%s: %w", e.Namespace, name, err)
	}
	if holderOf(l) != holder || version != "" && version != l.ResourceVersion {
		return nil
	}
	nobody, now := "", metav1.NowMicro()
	l.Spec.HolderIdentity, l.Spec.RenewTime = &nobody, &now
	// The resource version read above makes this fail if anybody wrote in between.
	if _, err := leases.Update(ctx, l, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update lease %s/%s: %w", e.Namespace, name, err)
	}
	return nil
}
