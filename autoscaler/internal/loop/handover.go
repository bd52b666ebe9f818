package loop

import (
	"sync"
	"time"

	"ebb.dev/ebb/autoscaler/revision"
)

// keepLeft is how long a revision that this process no longer decides for is kept for its next
// owner.
const keepLeft = 10 * time.Second

// left holds the states of revisions that were given up a moment ago.
type left struct {
	mutex sync.Mutex
	all   map[Key]revision.State
	sweep *time.Timer
}

func (l *left) put(key Key, s revision.State) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.all == nil {
		l.all = map[Key]revision.State{}
	}
	l.all[key] = s
	if l.sweep == nil {
		l.sweep = time.AfterFunc(2*keepLeft, func() {
			l.mutex.Lock()
			defer l.mutex.Unlock()
			l.all, l.sweep = nil, nil // nobody asked
		})
	}
}

// take moves the states of the chosen revisions to out, and forgets old ones.
func (l *left) take(chosen func(Key) bool, now time.Time, out map[Key]revision.State) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for key, s := range l.all {
		if old := now.Sub(s.At) > keepLeft; old || chosen(key) {
			delete(l.all, key)
			if !old {
				out[key] = s
			}
		}
	}
}

// Export returns the states of the chosen revisions that this process owned until a moment ago. It
// returns each state once: the caller is the next owner.
func (e *Engine) Export(chosen func(Key) bool) map[Key]revision.State {
	out := map[Key]revision.State{}
	for _, s := range e.shards {
		s.left.take(chosen, e.options.Clock(), out)
	}
	return out
}

// Left is how many revisions Export could still return.
func (e *Engine) Left() int {
	n := 0
	for _, s := range e.shards {
		s.left.mutex.Lock()
		n += len(s.left.all)
		s.left.mutex.Unlock()
	}
	return n
}

// Import takes the states that the previous owner exported. behind is by how much its clock was
// behind. Import waits for room, and returns when the states are in the shards' inboxes or Run has
// ended.
func (e *Engine) Import(states map[Key]revision.State, behind time.Duration) {
	for key, s := range states {
		e.shard(key).answer(event{imported: &imported{key, s, behind}})
	}
}

type imported struct {
	key    Key
	state  revision.State
	behind time.Duration
}
