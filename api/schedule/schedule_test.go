package schedule

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"0 8 * * 1-5 for 10h = 3", ""},
		{"TZ=Europe/Berlin 0 8 * * MON-FRI for 10h = 3; 0 0 * * * for 30m = 0;", ""},
		{"  TZ=America/New_York   */5 * * * *   for 90s = 2147483647 ", ""},
		{"0 0 29 2 * for 24h = 1", ""},
		{"", "must be like"},
		{";", "must be like"},
		{"0 8 * * 1-5 = 3", "must be like"},
		{"0 8 * * 1-5 for 10h", "must be like"},
		{"0 0 8 * * 1-5 for 10h = 3", "must be like"},
		{"@every 1m for 10h = 3", "must be like"},
		{"TZ=Europe/Berlin", "must be like"},
		{"TZ= 0 8 * * * for 10h = 3", "not an IANA time zone"},
		{"TZ=Local 0 8 * * * for 10h = 3", "not an IANA time zone"},
		{"TZ=../../etc/passwd 0 8 * * * for 10h = 3", "not an IANA time zone"},
		{"TZ=Mars/Olympus 0 8 * * * for 10h = 3", "not an IANA time zone"},
		{"60 8 * * * for 10h = 3", "60"},
		{"0 0 30 2 * for 1h = 3", "never opens"},
		{"0 8 * * * for 10 = 3", "not a duration"},
		{"0 8 * * * for 59s = 3", "not a duration"},
		{"0 8 * * * for 169h = 3", "not a duration"},
		{"0 8 * * * for 1h = -1", "not a number of pods"},
		{"0 8 * * * for 1h = 2147483648", "not a number of pods"},
		{"0 8 * * * for 1h = three", "not a number of pods"},
		{"0 8 * * * for 1h = 1; nonsense", `window "nonsense"`},
		{strings.Repeat("0 8 * * * for 1h = 1;", MaxWindows+1), "at most 50"},
	} {
		t.Run(test.text, func(t *testing.T) {
			_, err := Parse(test.text)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestAt(t *testing.T) {
	const week = "TZ=Europe/Berlin 0 8 * * 1-5 for 10h = 3; TZ=Europe/Berlin 0 12 * * * for 1h = 5"
	for _, test := range []struct {
		why, schedule, now string
		pods               int32
		until              string
	}{
		{"a Monday before eight in winter", week, "2026-11-23T06:59:59Z", 0, "2026-11-23T07:00:00Z"},
		{"from the first second", week, "2026-11-23T07:00:00Z", 3, "2026-11-23T11:00:00Z"},
		{"the largest of two", week, "2026-11-23T11:30:00Z", 5, "2026-11-23T12:00:00Z"},
		{"the smaller one goes on", week, "2026-11-23T12:00:00Z", 3, "2026-11-23T17:00:00Z"},
		{"the end does not belong to it", week, "2026-11-23T17:00:00Z", 0, "2026-11-24T07:00:00Z"},
		{"eight o'clock in summer", week, "2026-07-01T06:00:00Z", 3, "2026-07-01T10:00:00Z"},
		{"a weekend", week, "2026-11-21T09:00:00Z", 0, "2026-11-21T11:00:00Z"},
		{"open over midnight", "0 22 * * * for 4h = 2", "2026-11-24T01:00:00Z", 2, "2026-11-24T02:00:00Z"},
		{"open over the change to summer time", "TZ=Europe/Berlin 0 1 * * * for 4h = 2", "2026-03-29T03:30:00Z", 2, "2026-03-29T04:00:00Z"},
		{"open over the change to winter time", "TZ=Europe/Berlin 0 1 * * * for 4h = 2", "2026-10-25T02:30:00Z", 2, "2026-10-25T03:00:00Z"},
		{"starts that overlap", "*/10 * * * * for 1h = 1", "2026-11-23T12:05:00Z", 1, "2026-11-23T12:10:00Z"},
		{"no schedule", "", "2026-11-23T12:00:00Z", 0, ""},
		{"a window that asks for none", "0 0 * * * for 24h = 0", "2026-11-23T12:00:00Z", 0, "2026-11-24T00:00:00Z"},
	} {
		t.Run(test.why, func(t *testing.T) {
			var s Schedule
			if test.schedule != "" {
				var err error
				if s, err = Parse(test.schedule); err != nil {
					t.Fatal(err)
				}
			}
			now, err := time.Parse(time.RFC3339, test.now)
			if err != nil {
				t.Fatal(err)
			}
			pods, until := s.At(now)
			text := ""
			if !until.IsZero() {
				text = until.UTC().Format(time.RFC3339)
			}
			if pods != test.pods || text != test.until {
				t.Errorf("got %d until %s, want %d until %s", pods, text, test.pods, test.until)
			}
		})
	}
}

// FuzzParse: what is read can be asked at any time, and its answer holds for a while.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"0 8 * * 1-5 for 10h = 3", "TZ=Europe/Berlin 30 2 * * * for 1h = 1; 0 0 29 2 1 for 2m = 9", "TZ=", "* * * * * for 168h = 1"} {
		f.Add(seed, int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, text string, at int64) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		now := time.Unix(at%(1<<33), 0)
		if pods, until := s.At(now); pods < 0 || !until.IsZero() && !until.After(now) {
			t.Errorf("at %v: %d until %v", now, pods, until)
		}
	})
}
