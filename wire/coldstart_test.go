package wire

import (
	"testing"
	"time"
)

func TestColdStartSurvivesItsHeader(t *testing.T) {
	received := time.Unix(1700000000, 123456789)
	for header, c := range map[string]ColdStart{
		"": {},
		"ebb-queue;dur=0.000001;from=1700000000123.456789": {Received: received, Forwarded: received.Add(1)},
		"ebb-pod;dur=812.345678;desc=announcement;from=1700000000123.456789, ebb-queue;dur=0.2": {Received: received,
			Announced: received.Add(812345678), Forwarded: received.Add(812545678), Via: "announcement"},
	} {
		if c.String() != header {
			t.Errorf("%+v is told as %q, want %q", c, c.String(), header)
		}
		got, err := ParseColdStart([]string{"db;dur=53, cache;desc=hit", header})
		if err != nil || got != c {
			t.Errorf("%q came back as %+v, %v", header, got, err)
		}
	}
	if got := (ColdStart{Received: received}).String(); got != "" {
		t.Errorf("a request that was not sent on is told as %q", got)
	}
	if c, err := ParseColdStart([]string{`ebb-queue; later=x; from="5"; dur=1`}); err != nil || c.Received.UnixMilli() != 5 {
		t.Errorf("a parameter of a newer sender spoils the rest: %+v, %v", c, err)
	}
	for _, bad := range []string{"ebb-pod", "ebb-pod;dur=soon", "ebb-queue;dur=1;from=-3"} {
		if c, err := ParseColdStart([]string{bad}); err == nil {
			t.Errorf("%q is read as %+v", bad, c)
		}
	}
}

func FuzzParseColdStart(f *testing.F) {
	f.Add("ebb-pod;dur=812.345678;desc=announcement;from=1700000000123.456789, ebb-queue;dur=0.2")
	f.Fuzz(func(t *testing.T, value string) {
		c, err := ParseColdStart([]string{value})
		if err != nil {
			return
		}
		if again, err := ParseColdStart([]string{c.String()}); err == nil && !again.Received.Equal(c.Received) {
			t.Errorf("%q: %+v, then %+v", value, c, again)
		}
	})
}
