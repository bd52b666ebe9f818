package keep

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestIdleTimesSurviveInAText(t *testing.T) {
	t.Parallel()
	k := History{}
	now := start
	for _, idle := range []time.Duration{5 * time.Second, 10 * time.Second, time.Minute, time.Minute, 7 * time.Minute, 90 * time.Minute, 5 * time.Hour} {
		now = play(&k, now, 3, time.Second, 1, idle, 3, time.Second, 0, idle)
	}
	text := k.Text()
	gaps, err := ParseText(text)
	if err != nil {
		t.Fatal(err)
	}
	again, ok := Import(State{Gaps: gaps}, 0, now)
	if !ok || again.Text() != text || strings.Count(text, ";") != 2 {
		t.Errorf("%q became %q", text, again.Text())
	}
	for bucket := range buckets + 1 {
		if got := bucketOf(wholeEdge(bucket)); got != bucket {
			t.Errorf("%v is said for bucket %d and read as %d", wholeEdge(bucket), bucket, got)
		}
	}
}

func FuzzParseText(f *testing.F) {
	f.Add("10s=1 1m20s=3.2;4h=1e9")
	f.Add(";;=;-5m=NaN")
	f.Fuzz(func(t *testing.T, text string) {
		gaps, err := ParseText(text)
		if err != nil {
			return
		}
		k, ok := Import(State{Gaps: gaps, IdleSince: slices.Repeat([]time.Time{start}, 3)}, 0, start)
		if !ok {
			return
		}
		if d := k.Decide(Config{Worth: DefaultWorth, ColdStart: time.Second, Memory: 1, MaxTime: MaxTime, MaxPods: -1}, start.Add(time.Minute)); d.Keep < 0 || d.Keep > 3 {
			t.Errorf("%q keeps %d of 3", text, d.Keep)
		}
		if len(k.Text()) > maxText {
			t.Errorf("%q became %d bytes", text, len(k.Text()))
		}
	})
}
