package ingest

import (
	"bytes"
	"sync"
	"time"

	"ebb.dev/ebb/wire"
)

// pause is what pods are given to answer before it is looked who did. Most do within a fraction of
// it, so that nobody has to wait for each: a goroutine that parks, is told of every answer and is
// scheduled anew costs as much as the answer itself.
const pause = 5 * time.Millisecond

// maxLooks is how often it is looked, each time after twice as long, until somebody waits: 5, 10,
// 20 and 40 ms after the question.
const maxLooks = 4

// round is what is asked and looked at together.
type round struct {
	mutex   sync.Mutex
	waiting []*inquiry
	under   bool // somebody gathers
}

// add lets an inquiry begin with the next round.
func (r *round) add(i *inquiry, gather func()) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.waiting = append(r.waiting, i)
	if !r.under {
		r.under = true
		go gather()
	}
}

// next takes what waits into room. It reports false, and the round is over, if there is nothing and
// nobody was asked.
func (r *round) next(room []*inquiry, asked int) ([]*inquiry, bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	waiting := r.waiting
	r.waiting = room[:0]
	r.under = len(waiting) > 0 || asked > 0
	return waiting, r.under
}

// gather asks and collects, all scrapes in one goroutine, as long as there are any. It never waits
// for a pod: a scrape that needs a new connection, or an answer that takes long, goes on in a
// goroutine of its own.
func (s *Scraper) gather() {
	space := new([longestAnswer]byte)
	var asked, fresh []*inquiry
	for {
		var more bool
		if fresh, more = s.round.next(fresh, len(asked)); !more {
			return
		}
		waiting := asked[:0]
		for _, i := range asked {
			if i.left--; i.left > 0 || !s.collect(i, space) {
				waiting = append(waiting, i)
			}
		}
		clear(asked[len(waiting):])
		asked = waiting
		now := time.Now()
		for _, i := range fresh {
			switch {
			case !s.begin(i, now):
				s.end(i)
			case !s.send(i):
				go s.finish(i)
			default:
				asked = append(asked, i)
			}
		}
		clear(fresh)
		time.Sleep(pause)
	}
}

// send sends the questions of an inquiry whose connections are all there. It reports false, and
// sends nothing, if they are not.
func (s *Scraper) send(i *inquiry) bool {
	for n := range i.questions {
		if c := i.questions[n].c; c == nil || !c.resting {
			return false
		}
	}
	for n := range i.questions {
		q := &i.questions[n]
		q.progress = sent
		q.err = q.c.sendNow()
	}
	i.left = 1
	return true
}

// collect takes the answers that are there. It reports true when there is nothing more to look for:
// the inquiry ended, or goes on elsewhere.
func (s *Scraper) collect(i *inquiry, space *[longestAnswer]byte) bool {
	pending := false
	for n := range i.questions {
		q := &i.questions[n]
		if q.progress != sent {
			continue
		}
		stat, whole, err := wire.Stat{}, false, q.err
		if err == nil {
			have := copy(space[:], q.part)
			var k int
			if k, err = q.c.readNow(space[have:]); err == nil {
				if stat, whole, err = read(space[:have+k], q.pod.Name); !whole && err == nil {
					if k > 0 {
						q.part = bytes.Clone(space[:have+k])
					}
					pending = true
					continue
				}
			}
		}
		if stat, err = s.judge(i.key, q, stat, err); err == nil {
			i.stats = append(i.stats, stat)
		} else if q.again {
			q.progress, q.again = unsent, false // by a new connection
		}
	}
	if i.looks++; pending && i.looks < maxLooks {
		i.left = 1 << (i.looks - 1)
		return false
	}
	if len(i.stats) < i.size {
		go s.finish(i)
	} else {
		s.end(i)
	}
	return true
}
