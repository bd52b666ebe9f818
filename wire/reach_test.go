package wire

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestTheLargestQuestionAboutPodsFitsItsBound(t *testing.T) {
	long := netip.MustParseAddr("2001:db8:1234:5678:9abc:def0:1234:5678")
	var q ReachQuestion
	for range MaxReach {
		q.Pods = append(q.Pods, long)
	}
	a := ReachAnswer{Node: strings.Repeat("n", 253), Life: q.Pods, Silent: q.Pods}
	for _, one := range []any{q, a} {
		if text, err := json.Marshal(one); err != nil || len(text) > MaxReachBytes {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
}

func TestQuestionsAboutPodsThatCannotBeAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":     "x",
		"no address":  `{"pods":["hello"]}`,
		"an empty":    `{"pods":[""]}`,
		"with a zone": `{"pods":["fe80::1%eth0"]}`,
		"too many":    `{"pods":[` + strings.Repeat(`"10.0.0.1",`, MaxReach) + `"10.0.0.1"]}`,
	} {
		if q, err := DecodeReachQuestion([]byte(text)); err == nil {
			t.Errorf("%s: got %+v", name, q)
		}
		for _, list := range []string{"life", "silent"} {
			if a, err := DecodeReachAnswer([]byte(strings.ReplaceAll(text, "pods", list))); err == nil {
				t.Errorf("%s in %s: got %+v", name, list, a)
			}
		}
	}
	if a, err := DecodeReachAnswer([]byte(`{"node":"\u001b[2J"}`)); err == nil {
		t.Errorf("a control: got %+v", a)
	}
}

func FuzzDecodeReach(f *testing.F) {
	f.Add([]byte(`{"pods":["10.0.0.1","fd00::1"],"node":"b","life":["10.0.0.1"],"silent":["::ffff:10.0.0.2"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if q, err := DecodeReachQuestion(data); err == nil {
			text, err := json.Marshal(q)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := DecodeReachQuestion(text); err != nil || fmt.Sprint(again) != fmt.Sprint(q) {
				t.Fatalf("%+v became %+v: %v", q, again, err)
			}
		}
		if a, err := DecodeReachAnswer(data); err == nil {
			text, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := DecodeReachAnswer(text); err != nil || fmt.Sprint(again) != fmt.Sprint(a) {
				t.Fatalf("%+v became %+v: %v", a, again, err)
			}
		}
	})
}
