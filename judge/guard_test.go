package judge

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestGuards(t *testing.T) {
	for text, want := range map[string]string{
		"on":                        "errors<0.5%, p99<2x, starts<1m0s",
		" on ":                      "errors<0.5%, p99<2x, starts<1m0s",
		"off":                       "off",
		"errors<1%":                 "errors<1%",
		"errors < 0.25 % , p50<3x":  "error: errors<0.25 %: it is a number from 0.01% to 50%",
		"errors < 0.25% , p50 < 3x": "errors<0.25%, p50<3x",
		"p99.9<1.4x,p50<100x":       "p99.9<1.4x, p50<100x",
		"errors<1%, p99<2x, starts<60s, requests>100": "errors<1%, p99<2x, starts<1m0s, requests>100",

		"":                                   `error: it says nothing: write "on", "off" or bounds such as "errors<1%, p99<2x, starts<60s, requests>100"`,
		"yes":                                `error: "yes" is no bound: write`,
		"on, p99<3x":                         `error: "on" stands alone`,
		"errors<1%, off":                     `error: "off" stands alone`,
		"errors<1%,":                         `error: "" is no bound`,
		"cpu<1%":                             `error: "cpu" cannot be bounded, only errors, p50 to p99.9, starts and requests`,
		"errors<1%,errors<2%":                "error: errors is bounded twice",
		"p99<2x, p99<3x":                     "error: p99 is bounded twice",
		"requests>100":                       "error: requests> only says for how many requests to wait",
		"errors>1%":                          "error: errors takes <, not >",
		"requests<9,p50<2x":                  "error: requests takes >, not <",
		"errors<1":                           "error: errors<1: it is a number from 0.01% to 50%",
		"errors<0%":                          "error: errors<0%: it is a number from 0.01% to 50%",
		"errors<51%":                         "error: errors<51%",
		"errors<-1%":                         "error: errors<-1%",
		"errors<1e0%":                        "error: errors<1e0%",
		"errors<NaN%":                        "error: errors<NaN%",
		"p99<2":                              "error: p99<2: it is a number from 1.4x to 100x; 2x is twice what the old revision takes",
		"p99<1x":                             "error: p99<1x",
		"p99<500ms":                          "error: p99<500ms: it is a number",
		"p49<2x":                             "error: p49: a quantile is from p50 to p99.9",
		"p100<2x":                            "error: p100: a quantile is",
		"pig<2x":                             "error: pig: a quantile is",
		"starts<60":                          "error: starts<60: it is a duration from 1s to 1h",
		"starts<2h":                          "error: starts<2h",
		"requests>0,p50<2x":                  "error: requests>0: it is a whole number from 1 to 1000000",
		"requests>1.5,p50<2x":                "error: requests>1.5",
		"p50<2x,p60<2x,p70<2x,p80<2x,p90<2x": "error: p90 is one quantile too many: at most 4",
	} {
		g, err := Parse(text)
		got := g.String()
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want && !(err != nil && strings.HasPrefix(got, want)) {
			t.Errorf("%q: %s\nwant %s", text, got, want)
		}
	}
	if on, _ := Parse("on"); !reflect.DeepEqual(on, Guard{Errors: 0.5, Slower: []Slower{{99, 2}}, Starts: time.Minute}) {
		t.Errorf("on is %+v", on)
	}
}

// Whatever is written, a guard that is read is within its bounds and spelled as it is read.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"on", "off", "errors<1%, p99<2x, starts<60s, requests>100", "p99.9<1.5x", "errors<0.07%", "starts<1m0.5s,p50<2x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := Parse(text)
		if err != nil {
			if g.On() || err.Error() == "" {
				t.Errorf("%q: %+v beside %v", text, g, err)
			}
			return
		}
		if g.Errors != 0 && !(g.Errors >= minErrors && g.Errors <= maxErrors) || g.Starts < 0 || g.Starts > maxStarts || g.Requests > maxRequests || len(g.Slower) > maxQuantiles {
			t.Errorf("%q: %+v", text, g)
		}
		for _, s := range g.Slower {
			if !(s.Quantile >= minQuantile && s.Quantile <= maxQuantile && s.Factor >= minFactor && s.Factor <= maxFactor) {
				t.Errorf("%q: %+v", text, s)
			}
		}
		again, err := Parse(g.String())
		if err != nil || fmt.Sprint(again) != fmt.Sprint(g) {
			t.Errorf("%q is spelled %s, which is %s (%v)", text, g, again, err)
		}
	})
}
