package lease

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
)

const (
	// releaseTimeout bounds the calls that release a Lease.
	releaseTimeout = 5 * time.Second
	// readAgain is when a Lease is read again if that failed and no other replica is known to hold
	// it still. Requests may wait for an owner, and the elector waits for a retry period, 10 s.
	readAgain = 500 * time.Millisecond
)

// seat is this replica's part in one bucket. The elector competes; the seat decides when the bucket
// is held: from the moment the Lease was written until it is released, another replica is seen to
// hold it, or it was not renewed for too long.
type seat struct {
	*Election
	name string

	mutex  sync.Mutex
	scheme Scheme
	again  context.CancelFunc // starts a new elector; what is held stays held
	drop   context.CancelFunc // nil while the bucket is not held
	until  time.Time          // when the bucket is lost if no renewal succeeds
	may    time.Time          // until when this replica may write
	lasts  time.Duration      // of the Lease as it was written last
	late   bool               // the answer to the last renewal was
	expire *time.Timer        // fires at until
	holder string             // the other replica that holds it
	theirs theirs
	after  *time.Timer // fires when theirs is over
}

// theirs is another replica's Lease as it was last seen to change, and when. By its own clock that
// replica stops before the Lease is over by this one, because it counts from an earlier time.
type theirs struct {
	holder  string
	renewed time.Time // as the holder's clock says
	lasts   time.Duration
	seen    time.Time
}

// run runs one elector after another until ctx ends, then gives up the bucket.
func (s *seat) run(ctx context.Context) error {
	for ctx.Err() == nil {
		once, again := context.WithCancel(ctx)
		s.mutex.Lock()
		s.again = again
		elector, err := leaderelection.NewLeaderElector(s.config())
		s.mutex.Unlock()
		if err != nil {
			again()
			return err
		}
		elector.Run(once)
		if once.Err() == nil { // the elector could not renew in time
			s.lose()
		}
		again()
	}
	s.lose()
	s.mutex.Lock()
	s.watchLocked(theirs{})
	s.mutex.Unlock()
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if _, err := s.free(release, s.name, func(*coordinationv1.LeaseSpec) bool { return true }, s.Identity); err != nil {
		s.Log.Warn("cannot release a lease; it will expire", "lease", s.name, "error", err.Error())
	}
	return nil
}

// config is called with the mutex held.
func (s *seat) config() leaderelection.LeaderElectionConfig {
	t := s.scheme
	// A replica must stop before its Lease expires for the others. The elector counts from the end
	// of a renewal and adds a retry period, so it could stop too late. The API stores whole
	// seconds.
	lasts := t.LeaseDuration.Truncate(time.Second)
	patience := min(t.RenewDeadline+(t.LeaseDuration-t.RenewDeadline)/2, lasts)
	retry := t.RetryPeriod
	if float64(retry)*leaderelection.JitterFactor < float64(t.RenewDeadline) { // else it is refused
		retry = min(retry, mayWrite(lasts)/2) // it renews twice while it may write
	}
	return leaderelection.LeaderElectionConfig{
		Lock: lock{seat: s, patience: patience, lasts: lasts, LeaseLock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: s.Namespace, Name: s.name},
			Client:     s.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: s.Identity},
		}},
		LeaseDuration: t.LeaseDuration, RenewDeadline: t.RenewDeadline, RetryPeriod: retry,
		Name: s.name,
		// The callbacks run in goroutines of their own, in any order. The seat follows the calls of
		// the lock instead.
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	}
}

// retime continues with other timings.
func (s *seat) retime(scheme Scheme) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if scheme != s.scheme {
		s.scheme = scheme
		if s.again != nil {
			s.again()
		}
	}
}

// sees is called with the Lease. It tries at once to take a free one, and another's as soon as that
// is over: the elector looks once a retry period or two, and counts from when it looked. The event
// can be older than this replica's own write.
func (s *seat) sees(l coordinationv1.LeaseSpec) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.drop != nil {
		return
	}
	holder := ptr.Deref(l.HolderIdentity, "")
	if holder == "" && s.again != nil {
		s.again()
	}
	s.overLocked(resourcelock.LeaseSpecToLeaderElectionRecord(&l), time.Now())
	if holder == s.Identity {
		holder = ""
	}
	if holder != s.holder {
		s.holder = holder
		if s.Holder != nil {
			s.Holder(s.name, holder)
		}
	}
}

// over takes the Lease as it was read from began on, and reports whether it is another's and has
// not been renewed for as long as it lasts.
func (s *seat) over(l *resourcelock.LeaderElectionRecord, began time.Time) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.drop == nil && s.overLocked(l, began)
}

func (s *seat) overLocked(l *resourcelock.LeaderElectionRecord, began time.Time) bool {
	if began.Before(s.theirs.seen) { // an event may have overtaken the answer
		return s.theirs.over()
	}
	if l.HolderIdentity == "" || l.HolderIdentity == s.Identity {
		s.watchLocked(theirs{})
		return false
	}
	now, was := theirs{l.HolderIdentity, l.RenewTime.Time, time.Duration(l.LeaseDurationSeconds) * time.Second, time.Now()}, s.theirs
	if !now.renewed.Equal(was.renewed) || now.holder != was.holder || now.lasts != was.lasts {
		s.watchLocked(now)
	}
	return s.theirs.over()
}

func (t theirs) over() bool { return t.holder != "" && time.Since(t.seen) >= t.lasts }

// watchLocked tries again when the Lease of another is over.
func (s *seat) watchLocked(l theirs) {
	if s.theirs = l; s.after != nil {
		s.after.Stop()
		s.after = nil
	}
	if l.holder != "" {
		s.after = time.AfterFunc(l.lasts, s.try)
	}
}

func (s *seat) try() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.drop == nil && s.again != nil {
		s.again()
	}
}

// unread is called when the Lease could not be read.
func (s *seat) unread() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.drop == nil && (s.holder == "" || s.theirs.over()) {
		time.AfterFunc(readAgain, s.again)
	}
}

// other returns the Lease of another replica that holds it, as it was last seen to change.
func (s *seat) other() theirs {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.holder == "" || s.holder != s.theirs.holder {
		return theirs{}
	}
	return s.theirs
}

// renewing is called before each write of the Lease. One whose answer is lost can have taken
// effect, with a shorter duration than before: then others count by that.
func (s *seat) renewing(began time.Time, l lock) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.drop != nil && l.lasts < s.lasts {
		s.lasts = l.lasts
		s.boundLocked(earlier(s.until, began.Add(l.patience)), earlier(s.may, began.Add(mayWrite(l.lasts))))
		s.expire.Reset(time.Until(s.until))
	}
}

// boundLocked says until when the bucket is held, and until when this replica may write.
func (s *seat) boundLocked(until, may time.Time) {
	s.until, s.may = until, earlier(may, until)
	if s.Renewed != nil {
		s.Renewed(s.name, s.may)
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// renewed is called after each successful write of the Lease. began is the time in it.
func (s *seat) renewed(began time.Time, l lock) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	may := began.Add(mayWrite(l.lasts))
	// Behind a slow API server it is to write now and then, too. But one answer alone can be late
	// because this replica was cut off or paused, and then another may have the Lease already.
	least := time.Now().Add(l.lasts / 5)
	late := least.After(may)
	if late && s.late {
		may = least
	}
	s.lasts, s.late = l.lasts, late
	s.boundLocked(began.Add(l.patience), may)
	left := time.Until(s.until)
	if s.drop != nil {
		s.expire.Reset(left)
		return
	}
	if left <= 0 {
		return
	}
	s.holder = ""
	s.watchLocked(theirs{})
	var held context.Context
	held, s.drop = context.WithCancel(context.Background())
	s.expire = time.AfterFunc(left, s.expired)
	s.Log.Info("lease won", "lease", s.name)
	s.Won(s.name, held)
}

func (s *seat) expired() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !time.Now().Before(s.until) {
		s.loseLocked()
	}
}

func (s *seat) lose() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.loseLocked()
}

func (s *seat) loseLocked() {
	if s.drop == nil {
		return
	}
	s.expire.Stop()
	s.drop()
	s.drop, s.late = nil, false
	s.Log.Info("lease lost", "lease", s.name)
	s.Lost(s.name)
}

// lock is client-go's lock on a Lease. It also tells the seat about it.
type lock struct {
	*resourcelock.LeaseLock
	seat *seat
	// patience is for how long the bucket is held after a renewal, lasts is the Lease's duration.
	patience, lasts time.Duration
}

// Get implements resourcelock.Interface.
func (l lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	began := time.Now()
	record, raw, err := l.LeaseLock.Get(ctx)
	switch {
	case err == nil && record.HolderIdentity != l.Identity():
		l.seat.lose()
		if l.seat.over(record, began) {
			free := *record
			free.HolderIdentity = ""
			record = &free
		}
	case err != nil && !apierrors.IsNotFound(err):
		l.seat.unread()
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.LeaseLock.Create(ctx, record) })
}

// Update implements resourcelock.Interface.
func (l lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.LeaseLock.Update(ctx, record) })
}

// write counts from the time in the record. If the answer to a renewal is lost, the elector writes
// the same record again: then nothing changes, and others count from the first time.
func (l lock) write(record resourcelock.LeaderElectionRecord, write func() error) error {
	began := record.RenewTime.Time
	l.seat.renewing(began, l)
	err := write()
	if err == nil {
		l.seat.renewed(began, l)
	}
	return err
}
