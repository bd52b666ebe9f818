package wire

import (
	"testing"
	"time"
)

func TestColdStartSurvivesItsHeader(t *testing.T) {
	for _, c := range []ColdStart{
		{},
		{Received: time.Unix(1700000000, 1)},
		{Received: time.Unix(1700000000, 1), Announced: time.Unix(1700000000, 2), Forwarded: time.Unix(1700000001, 0), Via: "announcement"},
	} {
		got, err := ParseColdStart(c.String())
		if err != nil || got != c {
			t.Errorf("%q came back as %+v, %v", c.String(), got, err)
		}
	}
	if c, err := ParseColdStart("received=5;later=x"); err != nil || c.Received.UnixNano() != 5 {
		t.Errorf("a part of a newer sender spoils the rest: %+v, %v", c, err)
	}
	for _, bad := range []string{"received", "received=soon", ";"} {
		if c, err := ParseColdStart(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, c)
		}
	}
}

func FuzzParseColdStart(f *testing.F) {
	f.Add("received=1;announced=2;forwarded=3;via=endpoints")
	f.Fuzz(func(t *testing.T, value string) {
		c, err := ParseColdStart(value)
		if err != nil {
			return
		}
		if again, err := ParseColdStart(c.String()); err == nil && again.Received.UnixNano() != c.Received.UnixNano() {
			t.Errorf("%q: %+v, then %+v", value, c, again)
		}
	})
}
