package calls

import (
	"strings"
	"testing"
	"time"
)

func TestASchedulePassesOrSaysWhyNot(t *testing.T) {
	for _, c := range []struct{ behaviour, text, wrong string }{
		{"the least", `[{name: a, cron: "0 8 * * *"}]`, ""},
		{"all fields", `[{name: a, cron: "*/5 0-6 1,15 * 1-5", timeZone: Europe/Berlin, method: PUT, path: "/a?b=c", headers: {X: y}, body: hello, missed: Once, concurrency: Forbid, suspend: true}]`, ""},
		{"none", `[]`, ""},
		{"never due", `[{name: a, cron: "0 0 30 2 *"}]`, "is never due, because there is no such day"},
		{"six fields", `[{name: a, cron: "0 0 8 * * *"}]`, "expected exactly 5 fields"},
		{"a descriptor", `[{name: a, cron: "@daily"}]`, "must have five fields"},
		{"a zone in the cron", `[{name: a, cron: "TZ=UTC 0 8 * * *"}]`, "must have five fields"},
		{"no zone", `[{name: a, cron: "0 8 * * *", timeZone: Mars/Base}]`, "IANA time zone"},
		{"the machine's zone", `[{name: a, cron: "0 8 * * *", timeZone: Local}]`, "IANA time zone"},
		{"twice", `[{name: a, cron: "0 8 * * *"}, {name: a, cron: "0 9 * * *"}]`, "is there twice"},
		{"a name that is none", `[{name: "a.b", cron: "0 8 * * *"}]`, "is not a DNS label"},
		{"a misspelled field", `[{name: a, cron: "0 8 * * *", tz: UTC}]`, "unknown field"},
		{"another host", `[{name: a, cron: "0 8 * * *", path: "http://other/"}]`, "is not a path"},
		{"another host in a header", `[{name: a, cron: "0 8 * * *", headers: {Host: other}}]`, "is not a header that can be sent"},
		{"a header with a line", `[{name: a, cron: "0 8 * * *", headers: {X: "a\r\nY: b"}}]`, "is not a header that can be sent"},
		{"a method that is none", `[{name: a, cron: "0 8 * * *", method: CONNECT}]`, "is not one of POST"},
		{"a policy that is none", `[{name: a, cron: "0 8 * * *", missed: All}]`, "is not one of Skip, Once"},
		{"no list", `a: b`, "is not a list"},
	} {
		_, err := Parse(c.text)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want %q", c.behaviour, err, c.wrong)
		}
	}
}

func TestAScheduleIsDueByItsZone(t *testing.T) {
	list, err := Parse(`[{name: a, cron: "30 2 * * *", timeZone: Europe/Berlin}]`)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	// On the 29th the clocks go from 2 to 3, so 2:30 is not there.
	if next := list[0].Next(at).UTC(); !next.Equal(time.Date(2026, 3, 30, 0, 30, 0, 0, time.UTC)) {
		t.Errorf("due at %v", next)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`[{name: a, cron: "0 8 * * *", timeZone: Europe/Berlin, headers: {X: y}}]`)
	f.Add("- name: b\n  cron: '*/5 * * * *'\n  missed: Once")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := Parse(text)
		if err != nil {
			return
		}
		for _, s := range list {
			if s.Next(time.Unix(0, 0)).IsZero() || s.Method == "" || !strings.HasPrefix(s.Path, "/") {
				t.Errorf("%q passed: %+v", text, s)
			}
		}
	})
}
