package names

import (
	"strings"
	"testing"
)

func TestAnnotationsOfAsynchronousCalls(t *testing.T) {
	for _, c := range []struct{ key, value, wrong string }{
		{AsyncAnnotation, "always", ""}, {AsyncAnnotation, "never", ""}, {AsyncAnnotation, "true", "must be allowed, always or never"},
		{AsyncCallbackAnnotation, "https://example.com/done?a=b", ""}, {AsyncCallbackAnnotation, "gopher://x", "must be a URL"},
		{AsyncCallbackAnnotation, "http://user:pass@x/", "must be a URL"}, {AsyncCallbackAnnotation, "/done", "must be a URL"},
		{AsyncConcurrencyAnnotation, "5", ""}, {AsyncConcurrencyAnnotation, "0", "expected 1 <= 0 <= 10000"},
		{AsyncRateAnnotation, "0.5", ""}, {AsyncRateAnnotation, "NaN", "must be a number"},
		{SchedulesAnnotation, `[{name: a, cron: "0 8 * * *"}]`, ""}, {SchedulesAnnotation, `[{name: a, cron: "0 0 30 2 *"}]`, "no such day"},
	} {
		_, err := ParseAsync(map[string]string{c.key: c.value})
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %s: %v, want %q", c.key, c.value, err, c.wrong)
		}
	}
	if _, err := ParseAsync(map[string]string{AsyncAnnotation: "never", SchedulesAnnotation: `[{name: a, cron: "0 8 * * *"}]`}); err == nil {
		t.Error("a schedule of a Service without asynchronous calls passes")
	}
}
