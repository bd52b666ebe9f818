// Package schedule reads schedules of pod counts, such as "TZ=Asia/Tokyo 0 8 * * 1-5 for 10h = 3",
// and says how many pods they ask for at a time.
//
// Owns: the format. Reads: nothing but its arguments. Writes: nothing. Never: looks at a clock, or
// at the time zones of the machine: they are built in, so that admission and the autoscaler read a
// schedule alike.
package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // images have no time zones

	"github.com/robfig/cron/v3"
)

// Bounds of a schedule.
const (
	MaxWindows = 50
	MinWindow  = time.Minute
	MaxWindow  = 7 * 24 * time.Hour
)

// Schedule is a number of windows, each of which asks for pods while it is open. The zero value
// asks for none. It is immutable.
type Schedule struct{ windows []window }

// window opens at each start for a time.
type window struct {
	starts *cron.SpecSchedule
	length time.Duration
	count  int32
}

// fields are those of crontab(5).
var fields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// Parse reads windows that are separated by semicolons. Each is
//
//	[TZ=<IANA time zone>] <minute> <hour> <day of month> <month> <day of week> for <duration> = <pods>
//
// Without a time zone it is in UTC.
func Parse(text string) (Schedule, error) {
	var s Schedule
	parts := strings.Split(strings.TrimSuffix(strings.TrimSpace(text), ";"), ";")
	if len(parts) > MaxWindows {
		return s, fmt.Errorf("has %d windows, at most %d are allowed", len(parts), MaxWindows)
	}
	for _, part := range parts {
		w, err := parse(strings.Fields(part))
		if err != nil {
			return Schedule{}, fmt.Errorf("window %q: %w", strings.TrimSpace(part), err)
		}
		s.windows = append(s.windows, w)
	}
	return s, nil
}

var errForm = errors.New(`must be like "TZ=Europe/Berlin 0 8 * * 1-5 for 10h = 3"`)

func parse(words []string) (w window, err error) {
	zone := time.UTC
	if len(words) > 0 {
		if name, given := strings.CutPrefix(words[0], "TZ="); given {
			if zone, err = location(name); err != nil {
				return w, err
			}
			words = words[1:]
		}
	}
	if len(words) != 9 || words[5] != "for" || words[7] != "=" {
		return w, errForm
	}
	starts, err := fields.Parse(strings.Join(words[:5], " "))
	if err != nil {
		return w, err
	}
	w.starts = starts.(*cron.SpecSchedule)
	w.starts.Location = zone
	if w.starts.Next(time.Unix(0, 0)).IsZero() {
		return w, errors.New("never opens, because there is no such day")
	}
	if w.length, err = time.ParseDuration(words[6]); err != nil || w.length < MinWindow || w.length > MaxWindow {
		return w, fmt.Errorf("%q is not a duration from %v to %v", words[6], MinWindow, MaxWindow)
	}
	count, err := strconv.ParseInt(words[8], 10, 32)
	if err != nil || count < 0 {
		return w, fmt.Errorf("%q is not a number of pods", words[8])
	}
	w.count = int32(count)
	return w, nil
}

// location finds an IANA time zone. The name "Local" is that of no zone.
func location(name string) (*time.Location, error) {
	if name != "" && name != "Local" {
		if zone, err := time.LoadLocation(name); err == nil {
			return zone, nil
		}
	}
	return nil, fmt.Errorf("%q is not an IANA time zone such as Europe/Berlin", name)
}

// At returns the largest number of pods of the windows that are open, zero if none is, and until
// when the answer holds at least: zero for ever.
func (s Schedule) At(now time.Time) (pods int32, until time.Time) {
	for _, w := range s.windows {
		// The first start after now-length is the oldest one that can still be open.
		change := w.starts.Next(now.Add(-w.length))
		if change.IsZero() {
			continue
		}
		if !change.After(now) {
			pods = max(pods, w.count)
			change = change.Add(w.length)
		}
		if until.IsZero() || change.Before(until) {
			until = change
		}
	}
	return pods, until
}
