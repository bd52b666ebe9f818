package names

import (
	"strings"
	"testing"

	"ebb.dev/ebb/api/rules"
)

func TestHowMuchCPUAPodStartsWith(t *testing.T) {
	for _, test := range []struct {
		why     string
		setting int64
		asked   string // "-" for none
		want    int64
		err     string
	}{
		{"nothing", 0, "-", 0, ""},
		{"by the setting", 1000, "-", 1000, ""},
		{"by the annotation", 0, "1500m", 1500, ""},
		{"the annotation counts before the setting", 1000, "2", 2000, ""},
		{"off here", 1000, "0", 0, ""},
		{"at the bound", 0, "4", 4000, ""},
		{"above the bound", 0, "1000", 4000, "expected 0 <= 1k <= 4: " + StartupCPUAnnotation},
		{"beyond all numbers", 0, "9e99", 4000, "expected 0 <= "},
		{"negative", 1000, "-1", 1000, "must not be negative"},
		{"no quantity", 1000, "much", 1000, "must be a quantity"},
		{"a quantity that takes long to read", 1000, "1e-10000000", 1000, "must be a quantity"},
	} {
		t.Run(test.why, func(t *testing.T) {
			c := &rules.Config{Autoscaling: rules.Autoscaling{Class: ClassKPA, StartupCPU: test.setting, StartupCPUMax: 4000}}
			annotations := map[string]string{}
			if test.asked != "-" {
				annotations[StartupCPUAnnotation] = test.asked
			}
			s, _ := ScalingOf(annotations, c)
			if s.Startup.CPU != test.want {
				t.Errorf("got %d, want %d", s.Startup.CPU, test.want)
			}
			if got := ValidateScaling(annotations, c).Error(); (got == "") != (test.err == "") || !strings.Contains(got, test.err) {
				t.Errorf("got %q, want %q", got, test.err)
			}
		})
	}
}

// A bound of 0 allows none. It let all in, without effect.
func TestABoundOfZeroAllowsNoStartupCPU(t *testing.T) {
	c := &rules.Config{Autoscaling: rules.Autoscaling{Class: ClassKPA}}
	for asked, want := range map[string]string{"1": "expected 0 <= 1 <= 0: " + StartupCPUAnnotation, "0": ""} {
		annotations := map[string]string{StartupCPUAnnotation: asked}
		if s, _ := ScalingOf(annotations, c); s.Startup.CPU != 0 {
			t.Errorf("%s: pods start with %d", asked, s.Startup.CPU)
		}
		if got := ValidateScaling(annotations, c).Error(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", asked, got, want)
		}
	}
}

func TestAStartupLimitGoesBothWays(t *testing.T) {
	for text, want := range map[string]StartupLimit{
		"user-container=250m:1": {"user-container", 250, 1000},
		"a=1:4":                 {"a", 1000, 4000},
		"a=1500m:2500m":         {"a", 1500, 2500},
	} {
		got, err := ParseStartupLimit(text)
		if err != nil || got != want || want.String() != text {
			t.Errorf("%s: got %+v, %v; it writes %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a", "a=1", "a=:", "a=1:1", "a=2:1", "a=0:1", "a=-1:1", "a=0.25:1", "a=250m:1000m", "a=250m:1e99",
		"a=1e-10000000:1", "a=250m:1:2", strings.Repeat("a", 200) + "=1:2"} {
		if got, err := ParseStartupLimit(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
