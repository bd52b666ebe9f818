package names

import (
	"fmt"
	"strings"
	"testing"

	"ebb.dev/ebb/api/rules"
)

func TestStepsOfARollout(t *testing.T) {
	for text, want := range map[string]string{
		"1%, 10%, 50%":     "[{1 0s 0} {10 0s 0} {50 0s 0}]",
		" 1% 30s,10%  5m ": "[{1 30s 0} {10 5m0s 0}]",
		"":                 "refused",
		"1%,":              "refused",
		"10%, 10%":         "refused",
		"10%, 5%":          "refused",
		"0%":               "refused",
		"0%, 1%":           "refused", // nobody judges it
		"100%":             "refused",
		"1":                "refused",
		"1% 0s":            "refused",
		"1% soon":          "refused",
		"1% for 30s":       "refused",
		"1% requests>5":    "refused", // nobody counts them
		"1%,2%,3%,4%,5%,6%,7%,8%,9%,10%,11%,12%,13%,14%,15%,16%,17%,18%,19%,20%,21%": "refused",
	} {
		steps, fault := RolloutSteps(map[string]string{RolloutStepsAnnotation: text})
		got := fmt.Sprint(steps)
		if fault != nil {
			got = "refused"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"1% 30s requests>5, 10% requests>7": "[{1 30s 5} {10 0s 7}]",
		"0% 10m requests>5, 1%":             "[{0 10m0s 5} {1 0s 0}]",
		"0% 10m":                            "refused",
		"1%, 0%":                            "refused",
		"-1%, 1%":                           "refused",
		"1% requests>0":                     "refused",
		"1% requests>many":                  "refused",
		"1% requests>5 30s":                 "refused",
		"1% 30s 30s requests>5":             "refused",
		"requests>5":                        "refused",
	} {
		steps, fault := RolloutSteps(map[string]string{RolloutStepsAnnotation: text, RolloutGuardAnnotation: "on"})
		got := fmt.Sprint(steps)
		if fault != nil {
			got = "refused"
		}
		if got != want {
			t.Errorf("with a guard, %q: %s, want %s", text, got, want)
		}
	}
	if steps, fault := RolloutSteps(map[string]string{RolloutStepsAnnotation: "0%, 1%", RolloutGuardAnnotation: "p99<2x"}); fault == nil {
		t.Errorf("nobody judges the errors of %v", steps)
	}
	if steps, fault := RolloutSteps(nil); steps != nil || fault != nil {
		t.Errorf("without steps: %v, %v", steps, fault)
	}
}

func TestAPersonsWord(t *testing.T) {
	for text, want := range map[string]string{"back r": "back r", " promote  r ": "promote r", "": "refused", "back": "refused", "stop r": "refused", "back r s": "refused"} {
		word, fault := RolloutOverrule(map[string]string{RolloutOverruleAnnotation: text})
		got := word.String()
		if fault != nil {
			got = "refused"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestAWarmUpHasBounds(t *testing.T) {
	for text, want := range map[string]string{"": "10s", "0s": "0s", "90s": "1m30s", "1h": "1h0m0s", "61m": "expected 0s <= 61m <= 1h0m0s: " + WarmUpAnnotation,
		"-1s": "expected 0s <= -1s", "long": "must be a duration"} {
		annotations := map[string]string{WarmUpAnnotation: text}
		if text == "" {
			annotations = nil
		}
		s, err := Of(annotations, &rules.Config{})
		if got := s.WarmUp.String(); err == nil && got != want || err != nil && (!strings.Contains(err.Error(), want) || got != "10s") {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}
