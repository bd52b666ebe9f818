package ingest

import (
	"bytes"
	"sync"
	"time"

	"ebb.dev/ebb/wire"
)

// pause is the time between two rounds. Most pods answer within a fraction of it. To wait for each
// answer would cost as much CPU as the answer itself: a goroutine that parks, wakes and is
// scheduled.
const pause = 5 * time.Millisecond

// maxLooks is how often answers are collected, each time after twice as long: 5, 10, 20 and 40 ms
// after the question. After that a goroutine waits for them.
const maxLooks = 4

// round holds the inquiries that begin with the next round.
type round struct {
	mutex   sync.Mutex
	waiting []*inquiry
	running bool // a goroutine gathers
}

// add lets an inquiry begin with the next round.
func (r *round) add(i *inquiry, gather func()) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.waiting = append(r.waiting, i)
	if !r.running {
		r.running = true
		go gather()
	}
}

// next returns the waiting inquiries and keeps room for the next ones. It reports false, and the
// goroutine ends, if there are none and no answers are missing.
func (r *round) next(room []*inquiry, asked int) ([]*inquiry, bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	waiting := r.waiting
	r.waiting = room[:0]
	r.running = len(waiting) > 0 || asked > 0
	return waiting, r.running
}

// gather asks and collects for all scrapes on one goroutine, while there are any. It never waits
// for a pod: a scrape that needs a new connection or more time continues on its own goroutine.
func (s *Scraper) gather() {
	space := new([maxAnswer]byte)
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
		if len(asked) > 0 {
			time.Sleep(pause)
		}
	}
}

// send sends the questions of an inquiry. It reports false, and sends nothing, if a connection is
// missing.
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

// collect reads the answers that have arrived. It reports true when gather is done with the
// inquiry: it ended, or continues on its own goroutine.
func (s *Scraper) collect(i *inquiry, space *[maxAnswer]byte) bool {
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
			i.take(&stat)
		} else if q.again {
			q.progress, q.again = unsent, false // over a new connection
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
