package told

import (
	"strings"
	"sync"
	"time"
)

// Busy knows until when the program says that it is busy, in the field wire.HeaderBusy of its
// responses.
type Busy struct {
	// Max bounds for how long one response may say that.
	Max time.Duration
	// Changed, if set, is told of each word that counts: for how long the program is busy now, 0
	// for no longer. It is called with one word at a time.
	Changed func(left time.Duration)

	mu    sync.Mutex
	until time.Time
	spoke time.Time // when a word came last that it is busy
}

// Header takes the field of a response to a request that came at asked, a duration such as 90s. Of
// several, the one that ends last counts, because each may be of a job of its own. 0 ends all that
// came before asked: a newer one may be of a job that had not begun when the program looked, and
// then 0 changes nothing. It reports false for what is no such duration, which changes nothing.
func (b *Busy) Header(text string, asked, now time.Time) bool {
	if len(text) > maxNumber { // an error would carry it to the heap
		return false
	}
	said, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || said < 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch until := now.Add(min(said, b.Max)); {
	case said == 0 && b.spoke.After(asked):
		return true
	case said == 0:
		b.until = now
	default:
		b.spoke = now
		if until.After(b.until) {
			b.until = until
		}
	}
	if b.Changed != nil {
		b.Changed(b.until.Sub(now))
	}
	return true
}

// Until is when the program is no longer busy.
func (b *Busy) Until() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until
}

// Now reports whether the program is busy.
func (b *Busy) Now(now time.Time) bool { return now.Before(b.Until()) }
