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
		{AsyncCallbackHostsAnnotation, "example.com, *.example.org", ""}, {AsyncCallbackHostsAnnotation, "*", ""},
		{AsyncCallbackHostsAnnotation, "http://x/", "must be a host"}, {AsyncCallbackHostsAnnotation, "a,,b", "must be a host"},
		{AsyncConcurrencyAnnotation, "5", ""}, {AsyncConcurrencyAnnotation, "0", "expected 1 <= 0 <= 10000"},
		{AsyncRateAnnotation, "0.5", ""}, {AsyncRateAnnotation, "NaN", "must be a number"},
		{SchedulesAnnotation, `[{name: a, cron: "0 8 * * *"}]`, ""}, {SchedulesAnnotation, `[{name: a, cron: "0 0 30 2 *"}]`, "no such day"},
	} {
		_, err := ParseAsync(map[string]string{c.key: c.value})
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %s: %v, want %q", c.key, c.value, err, c.wrong)
		}
	}
	// A program may mean something of its own by Prefer: respond-async.
	if a, err := ParseAsync(map[string]string{SchedulesAnnotation: `[{name: a, cron: "0 8 * * *"}]`}); err != nil || a.Mode != AsyncNever || len(a.Schedules) != 1 {
		t.Errorf("%v, %+v, want a schedule and no asynchronous requests", err, a)
	}
}

func TestClientsNameCallbacksAtHostsThatTheServiceAllowsOnly(t *testing.T) {
	for hosts, want := range map[string]map[string]bool{
		"":                          {"example.com": false},
		"Example.com., *.corp.test": {"example.com": true, "EXAMPLE.com": true, "example.com.": true, "example.com..": false, "a.corp.test.": true, "a.example.com": false, "notexample.com": false, "a.corp.test": true, "corp.test": false, "192.0.2.1": false},
		"*":                         {"example.com": true, "192.0.2.1": true},
	} {
		annotations := map[string]string{}
		if hosts != "" {
			annotations[AsyncCallbackHostsAnnotation] = hosts
		}
		a, err := ParseAsync(annotations)
		if err != nil {
			t.Fatal(err)
		}
		for host, ok := range want {
			if a.MayCallBack(host) != ok {
				t.Errorf("with %q a callback at %s is allowed: %v", hosts, host, !ok)
			}
		}
	}
}
