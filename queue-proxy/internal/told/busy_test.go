package told

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Whoever asks whether the work is done may be answered after the next job has begun.
func TestAnEndOfWorkEndsNoNewerJob(t *testing.T) {
	var told []time.Duration
	b := &Busy{Max: time.Hour, Changed: func(left time.Duration) { told = append(told, left) }}
	at := func(second int) time.Time { return noon.Add(time.Duration(second) * time.Second) }
	for _, c := range []struct {
		word        string
		asked, said int
		until       int
	}{
		{"60s", 0, 1, 61},
		{"100s", 2, 3, 103}, // a new job, while somebody
		{"0", 2, 4, 103},    // had asked for the old one
		{"0", 3, 5, 5},
		{"30s", 6, 6, 36},
		{"0", 6, 7, 7},
	} {
		if !b.Header(c.word, at(c.asked), at(c.said)) {
			t.Errorf("%q is not understood", c.word)
		}
		if got := b.Until(); !got.Equal(at(c.until)) {
			t.Errorf("%q, asked for at %d: busy until %s after noon, want %d s", c.word, c.asked, got.Sub(noon), c.until)
		}
	}
	if want := []time.Duration{60 * time.Second, 100 * time.Second, 0, 30 * time.Second, 0}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

func TestAProgramIsBusyForAsLongAsItSays(t *testing.T) {
	for _, c := range []struct {
		behaviour string
		headers   []string // one a second from noon on
		want      time.Duration
		wrong     int
	}{
		{"for its time", []string{"90s"}, 90 * time.Second, 0},
		{"with spaces", []string{" 90s "}, 90 * time.Second, 0},
		{"for the bound at most", []string{"8760h"}, 10 * time.Minute, 0},
		{"the one that ends last counts", []string{"90s", "10s"}, 90 * time.Second, 0},
		{"each begins when it comes", []string{"90s", "90s"}, 91 * time.Second, 0},
		{"the bound begins anew with each", []string{"1h", "1h"}, 10*time.Minute + time.Second, 0},
		{"0 ends all", []string{"90s", "0"}, 0, 0},
		{"0s, too", []string{"90s", "0s"}, 0, 0},
		{"after 0 it may be busy again", []string{"90s", "0", "5s"}, 7 * time.Second, 0},
		{"a number without a unit is nothing", []string{"90"}, 0, 1},
		{"what is wrong changes nothing", []string{"90s", "done", "", "-1s", "-5m"}, 90 * time.Second, 4},
		{"longer than a duration", []string{"9999999999999999h"}, 0, 1},
		{"a word without end", []string{strings.Repeat("1", 1000) + "s"}, 0, 1},
	} {
		var left time.Duration
		b := &Busy{Max: 10 * time.Minute, Changed: func(l time.Duration) { left = l }}
		wrong, last := 0, noon
		for i, text := range c.headers {
			at := noon.Add(time.Duration(i) * time.Second)
			if b.Header(text, at, at) {
				last = at
			} else {
				wrong++
			}
		}
		if until := last.Add(left); c.want > 0 && until.Sub(noon) != c.want || c.want == 0 && left != 0 {
			t.Errorf("%s: told that it is busy until %s after noon, want %s", c.behaviour, until.Sub(noon), c.want)
		}
		if c.want > 0 && (!b.Now(noon.Add(c.want-1)) || b.Now(noon.Add(c.want))) || c.want == 0 && b.Now(last) {
			t.Errorf("%s: not until %s", c.behaviour, c.want)
		}
		if wrong != c.wrong {
			t.Errorf("%s: %d were wrong, want %d", c.behaviour, wrong, c.wrong)
		}
	}
}
