package loop

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/zero"
)

// Handed is what a process knows of a revision, for the one that decides for it next.
type Handed struct {
	Key    Key
	UID    types.UID
	Memory decide.Memory
	// Zero is what the status does not say: since when.
	ActiveSince, ProxiedSince, LastShort time.Time
	Active                               zero.Condition
	Proxied                              bool
	// Written is the scale that was ordered last, -1 when not known.
	Written int32
}

// keepLeft is how long a revision that this process no longer decides for is remembered for its next owner.
const keepLeft = 10 * time.Second

// left are the revisions that were given up a moment ago.
type left struct {
	mutex sync.Mutex
	all   map[Key]given
	sweep *time.Timer
}

type given struct {
	handed Handed
	at     time.Time
}

func (l *left) put(h Handed, now time.Time) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.all == nil {
		l.all = map[Key]given{}
	}
	l.all[h.Key] = given{h, now}
	if l.sweep == nil {
		l.sweep = time.AfterFunc(2*keepLeft, func() {
			l.mutex.Lock()
			defer l.mutex.Unlock()
			l.all, l.sweep = nil, nil // nobody asked
		})
	}
}

// take returns and forgets what was given up of the chosen revisions, and forgets what is too old.
func (l *left) take(chosen func(Key) bool, now time.Time) []Handed {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var out []Handed
	for key, g := range l.all {
		if old := now.Sub(g.at) > keepLeft; old || chosen(key) {
			delete(l.all, key)
			if !old {
				out = append(out, g.handed)
			}
		}
	}
	return out
}

// HandOver returns what is known of the chosen revisions among those that this process decided for until a moment ago,
// once: who asks is their next owner.
func (e *Engine) HandOver(chosen func(Key) bool) []Handed {
	now := e.options.Clock()
	var all []Handed
	for _, s := range e.shards {
		all = append(all, s.left.take(chosen, now)...)
	}
	return all
}

// Left is of how many revisions HandOver could still tell something.
func (e *Engine) Left() int {
	n := 0
	for _, s := range e.shards {
		s.left.mutex.Lock()
		n += len(s.left.all)
		s.left.mutex.Unlock()
	}
	return n
}

// TakeOver takes in what the process before this one knew. behind is by how much its clock was behind. It waits for room, and
// returns when the shards have it in their inboxes or Run has ended.
func (e *Engine) TakeOver(handed []Handed, behind time.Duration) {
	for i := range handed {
		h := &handed[i]
		e.shard(h.Key).answer(event{handed: &takeOver{h, behind}})
	}
}

type takeOver struct {
	*Handed
	behind time.Duration
}

func (r *revision) handOver(now time.Time) Handed {
	memory := decide.Remember(r.series, r.decide, now)
	if r.spec.Adaptive {
		memory.Lesson = r.adaptive.Lesson()
	}
	return Handed{Key: r.key, UID: r.spec.UID, Memory: memory, Written: r.written,
		ActiveSince: r.zero.ActiveSince, ProxiedSince: r.zero.ProxiedSince, LastShort: r.zero.LastShort, Active: r.zero.Active, Proxied: r.zero.Proxied}
}

// takeOver reports false, and changes nothing, if what was handed is not of this revision or makes no sense.
func (r *revision) takeOver(h takeOver, now time.Time) bool {
	if h.UID != r.spec.UID {
		return false
	}
	adaptive, ok := h.Memory.Lesson.GoOn(h.behind, now)
	if !ok {
		return false
	}
	next, ok := decide.Recall(r.series, r.decide, h.Memory, h.behind, now)
	if !ok {
		return false
	}
	r.decide = next
	if h.Memory.Lesson != (decide.Lesson{}) {
		r.adaptive = adaptive
	}
	// The status says which, in whole seconds and as of its last write; since when, the one before knew.
	earlier := func(own, theirs time.Time) time.Time {
		if theirs = theirs.Add(h.behind); theirs.Before(own) && now.Sub(theirs) < 365*24*time.Hour {
			return theirs
		}
		return own
	}
	if h.Active == r.zero.Active {
		r.zero.ActiveSince = earlier(r.zero.ActiveSince, h.ActiveSince)
	}
	if h.Proxied && r.zero.Proxied {
		r.zero.ProxiedSince = earlier(r.zero.ProxiedSince, h.ProxiedSince)
		r.zero.LastShort = earlier(r.zero.LastShort, h.LastShort)
	}
	if r.written < 0 && h.Written >= 0 {
		r.written = h.Written
	}
	return true
}
