// Package lease divides work among the replicas of a component: the work lies in buckets, each bucket has a Lease, and the
// replica that holds it works on what is in the bucket.
//
// Owns: the competition for the Leases, also while the number of buckets, the names of the Leases or the timings change.
// Reads: the Leases of one namespace, and, where asked to, whether the pod that holds one still exists.
// Writes: the Leases; it deletes those of a number of buckets that is no more. Never: knows what the work is.
package lease

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
)

// Label tells which component's work a Lease is about.
const Label = "serving.ebb.dev/leases-of"

// Scheme is how the work is divided, and how patient the replicas are with each other.
type Scheme struct {
	// Prefix begins the names of the Leases: "controller." of controller.00-of-01.
	Prefix string
	// Buckets is their number; 0 means 1.
	Buckets                                   int
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Names are the names of the Leases, which are those of the buckets.
func (s Scheme) Names() []string {
	n := max(s.Buckets, 1)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s%02d-of-%02d", s.Prefix, i, n)
	}
	return names
}

// legal reports timings with which nobody can be sure of holding a Lease.
func (s Scheme) legal() error {
	switch {
	case s.LeaseDuration < time.Second:
		return fmt.Errorf("a lease duration of %v is too short: the API counts whole seconds", s.LeaseDuration)
	case s.RenewDeadline >= s.LeaseDuration:
		return fmt.Errorf("the renew deadline of %v must be less than the lease duration of %v", s.RenewDeadline, s.LeaseDuration)
	case s.RetryPeriod <= 0 || float64(s.RetryPeriod)*leaderelection.JitterFactor >= float64(s.RenewDeadline):
		return fmt.Errorf("the retry period of %v must be less than the renew deadline of %v divided by %v", s.RetryPeriod, s.RenewDeadline, leaderelection.JitterFactor)
	}
	return nil
}

// patience is for how long after the beginning of its last successful renewal a replica may still believe to hold a Lease:
// less than the Lease lasts for the others, and no less than it tries to renew.
func (s Scheme) patience() time.Duration {
	return min(s.RenewDeadline+(s.LeaseDuration-s.RenewDeadline)/2, s.LeaseDuration.Truncate(time.Second))
}

// Election is one replica's part in it. Fields are set before Run and not changed after.
type Election struct {
	Client kubernetes.Interface
	// Namespace holds the Leases; Component says whose they are; Identity names this replica in them.
	Namespace, Component, Identity string
	// Scheme returns how it is to be done now, and a channel that is closed once that may have changed.
	Scheme func() (Scheme, <-chan struct{})
	Log    *slog.Logger

	// Began is called with the buckets before any is competed for: at the start, and when there are others, after all of the old
	// ones are lost and before anybody else can hold one.
	Began func(buckets []string)
	// Won is called when this replica holds a bucket, with a context that ends when it does not any more; then Lost, which
	// returns when nothing is being done for the bucket any more: only then may others have it.
	Won  func(bucket string, held context.Context)
	Lost func(bucket string)
	// Holder, if set, is told which other replica holds a bucket, "" when none does.
	Holder func(bucket, identity string)
	// Gone, if set, is asked once a second whether a replica that holds a Lease does not exist any more; its Leases are freed.
	Gone func(ctx context.Context, identity string) bool

	mutex sync.Mutex
	// seen says since when each Lease is as it is, to tell when one was not renewed for too long.
	seen map[string]sighting
	term *term
}

type sighting struct {
	version string
	since   time.Time
}

// term is the time of one number of buckets and one prefix.
type term struct {
	scheme Scheme
	names  []string
	seats  map[string]*seat
	cancel context.CancelFunc
	group  sync.WaitGroup
}

// Run competes for every bucket until ctx ends, then gives up what it holds so that nobody need wait for a Lease to run out.
// A change of the timings keeps what is held; a change of the number of buckets, or of the prefix, begins anew: whoever takes
// the first Lease of the new ones has seen that nobody holds one of the old ones, see take.
func (e *Election) Run(ctx context.Context) error {
	scheme, replaced := e.Scheme()
	if err := scheme.legal(); err != nil {
		return fmt.Errorf("compete for leases: %w", err)
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	if e.Began != nil {
		e.Began(scheme.Names())
	}
	e.begin(ctx, scheme)
	leases := e.follow(watching, &watch)
	watch.Go(func() { e.sweep(ctx, leases) })
	for {
		select {
		case <-ctx.Done():
			e.end()
			return nil
		case <-replaced:
		}
		var next Scheme
		next, replaced = e.Scheme()
		if next == scheme {
			continue
		}
		if err := next.legal(); err != nil {
			e.Log.Error("the leases stay as they are", "error", err.Error())
			continue
		}
		e.Log.Info("leases change", "from", fmt.Sprintf("%+v", scheme), "to", fmt.Sprintf("%+v", next))
		if slices.Equal(scheme.Names(), next.Names()) {
			for _, s := range e.present().seats {
				s.retime(next)
			}
		} else {
			for _, s := range e.present().seats {
				s.close()
			}
			if e.Began != nil {
				e.Began(next.Names())
			}
			e.end()
			e.begin(ctx, next)
			for _, l := range leases.list() {
				e.look(l)
			}
		}
		scheme = next
	}
}

func (e *Election) present() *term {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.term
}

func (e *Election) begin(ctx context.Context, scheme Scheme) {
	t := &term{scheme: scheme, names: scheme.Names(), seats: map[string]*seat{}}
	ctx, t.cancel = context.WithCancel(ctx)
	for _, name := range t.names {
		t.seats[name] = &seat{election: e, name: name, scheme: scheme}
	}
	e.mutex.Lock()
	e.term = t
	e.mutex.Unlock()
	for _, s := range t.seats {
		t.group.Go(func() { s.run(ctx) })
	}
}

// end returns when everything is given up.
func (e *Election) end() {
	t := e.present()
	t.cancel()
	t.group.Wait()
}

var bucketName = regexp.MustCompile(`^\d\d-of-\d\d$`)

// theirs reports that a Lease is of this component, but not of the scheme of now.
func (e *Election) theirs(t *term, l *coordinationv1.Lease) bool {
	if _, now := t.seats[l.Name]; now {
		return false
	}
	if l.Labels[Label] == e.Component {
		return true
	}
	rest := l.Name[min(len(t.scheme.Prefix), len(l.Name)):]
	return l.Name == t.scheme.Prefix+rest && bucketName.MatchString(rest)
}

// take makes sure that nobody works by another scheme, just before a Lease is taken: it deletes the other schemes' Leases, and
// fails if somebody holds one. Replicas learn of a change at different moments; that none of them can hold a Lease of the one scheme
// while another holds one of the other follows from the order of calls. Say A takes a and B takes b. A reads a (or makes it, free),
// then lists and deletes b, then writes a on the condition that it is as A read it; B does the same the other way round. If
// both writes were to succeed, b was deleted before B read it and a before A read it; so A read, deleted, and after that B read,
// deleted, and after that A read: a contradiction.
func (e *Election) take(ctx context.Context) error {
	leases := e.Client.CoordinationV1().Leases(e.Namespace)
	all, err := leases.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list leases of namespace %s: %w", e.Namespace, err)
	}
	t := e.present()
	for i := range all.Items {
		l := &all.Items[i]
		if !e.theirs(t, l) {
			continue
		}
		if holder := holderOf(l); holder != "" && holder != e.Identity && !e.expired(l) {
			// It is freed when it has run out, see sweep.
			return fmt.Errorf("%s still works by lease %s/%s", holder, l.Namespace, l.Name)
		}
		err := leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete lease %s/%s: %w", l.Namespace, l.Name, err)
		}
		e.Log.Info("a lease of another number of buckets, or another prefix, is deleted", "lease", l.Name)
	}
	return nil
}

// expired reports that a Lease has been left as it is for longer than it lasts. Its own times are of another's clock; what counts is
// when this replica saw it first.
func (e *Election) expired(l *coordinationv1.Lease) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	before := e.note(l)
	var seconds int32
	if l.Spec.LeaseDurationSeconds != nil {
		seconds = *l.Spec.LeaseDurationSeconds
	}
	return time.Since(before.since) > time.Duration(seconds)*time.Second
}

// note is called with the mutex held.
func (e *Election) note(l *coordinationv1.Lease) sighting {
	if e.seen == nil {
		e.seen = map[string]sighting{}
	}
	if s, known := e.seen[l.Name]; known && s.version == l.ResourceVersion {
		return s
	}
	e.seen[l.Name] = sighting{l.ResourceVersion, time.Now()}
	return e.seen[l.Name]
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// look takes in what a Lease says.
func (e *Election) look(l *coordinationv1.Lease) {
	e.mutex.Lock()
	e.note(l)
	t := e.term
	e.mutex.Unlock()
	holder := holderOf(l)
	if s := t.seats[l.Name]; s != nil {
		s.sees(holder)
	} else if holder == "" && e.theirs(t, l) {
		t.poke()
	}
}

// vanished is look for a Lease that is deleted.
func (e *Election) vanished(l *coordinationv1.Lease) {
	e.mutex.Lock()
	delete(e.seen, l.Name)
	t := e.term
	e.mutex.Unlock()
	if s := t.seats[l.Name]; s != nil {
		s.sees("")
	} else if e.theirs(t, l) {
		t.poke()
	}
}

// poke tries for every bucket that is not held here.
func (t *term) poke() {
	for _, name := range t.names {
		t.seats[name].poke()
	}
}
