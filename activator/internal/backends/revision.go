package backends

import (
	"sync"
	"sync/atomic"

	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/load"
	"ebb.dev/ebb/activator/internal/relay"
)

// Revision is one revision. Its fields never change; the values they point to do.
type Revision struct {
	Key Key
	// Relay remembers at which activators its requests gather.
	Relay relay.Choice

	info  atomic.Pointer[Info]
	state atomic.Pointer[Snapshot] // nil until there is a pod or somebody asks
	used  atomic.Pointer[used]

	// mutex guards that used is made, told of the Info, and deleted.
	mutex   sync.Mutex
	deleted bool
	make    func(Key, *Info) *hold.Queue
}

// used is what a revision has once a request or a pod came, or if it cannot start: most revisions
// of a large cluster are at zero.
type used struct {
	queue *hold.Queue
	load  *load.Load // apart, because each request writes there
}

func (u *used) tell(info *Info) {
	u.queue.SetMaxWaiting(info.Cold.Waiting())
	u.queue.SetFailure(info.Failure)
}

// Queue has its requests. It is made at the first call, as is Load.
func (r *Revision) Queue() *hold.Queue { return r.use().queue }

// Load is what is counted of its requests.
func (r *Revision) Load() *load.Load { return r.use().load }

// Used returns the queue and the load, or nil if nobody has needed them yet.
func (r *Revision) Used() (*hold.Queue, *load.Load) {
	if u := r.used.Load(); u != nil {
		return u.queue, u.load
	}
	return nil, nil
}

func (r *Revision) use() *used {
	if u := r.used.Load(); u != nil {
		return u
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.useLocked()
}

func (r *Revision) useLocked() *used {
	u := r.used.Load()
	if u == nil {
		info := r.Info()
		u = &used{r.make(r.Key, info), &load.Load{}}
		u.tell(info)
		if r.deleted {
			u.queue.Delete()
		}
		r.used.Store(u)
	}
	return u
}

// set stores the state of the revision's object. A revision that cannot start has a queue, which
// knows for how long that has been so.
func (r *Revision) set(info *Info) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.info.Store(info)
	if r.used.Load() != nil || info.Failure != "" {
		r.useLocked().tell(info)
	}
}

func (r *Revision) delete() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.deleted = true
	if queue, _ := r.Used(); queue != nil {
		queue.Delete()
	}
}

// Queued is how many of its requests wait now.
func (r *Revision) Queued() int64 {
	queue, _ := r.Used()
	if queue == nil {
		return 0
	}
	waiting, _ := queue.Load()
	return waiting
}

// Info returns the current state of the revision's object.
func (r *Revision) Info() *Info { return r.info.Load() }

// Snapshot returns the newest one.
func (r *Revision) Snapshot() *Snapshot {
	if s := r.state.Load(); s != nil {
		return s
	}
	r.state.CompareAndSwap(nil, newSnapshot(nil, nil))
	return r.state.Load()
}
