package cold

import (
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

const (
	chrome  = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7"
	firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
)

func TestOnlyBrowsersThatReadBrowse(t *testing.T) {
	for _, c := range []struct {
		method, accept string
		want           bool
	}{
		{"GET", chrome, true}, {"HEAD", firefox, true}, {"POST", chrome, false}, {"OPTIONS", chrome, false},
		{"GET", "", false}, {"GET", "*/*", false}, {"GET", "text/*", false}, {"GET", "application/json", false},
		{"GET", "application/json, text/html;q=0.9", false}, {"GET", "application/json;q=0.8, Text/HTML", true},
		{"GET", "application/json, text/html", false}, {"GET", "text/html, application/json", true},
		{"GET", "text/html;q=0", false}, {"GET", "text/html;q=0, */*;q=0", false}, {"GET", "text/html;level=1;q=0.5, */*;q=0.1", true},
		{"GET", `a/b;x=",text/html,";q=0.1, text/html;q=0.05`, false}, {"GET", `a/b;x="\",";q=0.1,text/html;Q=0.125`, true},
		{"GET", "text/html;q=1.001", false}, {"GET", "text/html;q=junk", false}, {"GET", "text/html;q=", false}, {"GET", ",,text/html ;q=1.000,", true},
		{"GET", "text/htmlx", false},
	} {
		if got := Browses(c.method, c.accept); got != c.want {
			t.Errorf("%s %q: got %v", c.method, c.accept, got)
		}
		if allocations := testing.AllocsPerRun(10, func() { Browses(c.method, c.accept) }); allocations > 0 {
			t.Errorf("%q: %v allocations", c.accept, allocations)
		}
	}
}

// FuzzAccept: whatever a client sends is judged, in one pass, and what does not name text/html is
// no browser's.
func FuzzAccept(f *testing.F) {
	for _, seed := range []string{chrome, firefox, `"`, `a;q="`, `\`, ";;;,", "text/html;q=0.0000"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		if Browses("GET", accept) && !strings.Contains(strings.ToLower(accept), "text/html") {
			t.Errorf("%q is taken for a browser's", accept)
		}
	})
}

func TestARevisionWithoutAnnotationsHasNoRules(t *testing.T) {
	if r := rulesOf(map[string]string{"other": "x"}, map[string]string{names.WaitingPageAnnotation: "x", names.FallbackRevisionAnnotation: "y"}, rules.Defaults{}); r != nil {
		t.Errorf("got %+v", r)
	}
	var none *Rules
	if none.WakesNone("/", "") || none.Waiting() != 0 {
		t.Error("no rules have rules")
	}
}

func TestSettingsGiveWhatIsNotAnnotated(t *testing.T) {
	defaults := rules.Defaults{NeverWakeAgents: []string{"Bot"}, MaxWaiting: 5, MaxWait: time.Minute}
	r := rulesOf(nil, nil, defaults)
	if r == nil || r.Waiting() != 5 || r.MaxWait != time.Minute || !r.WakesNone("/", "a bot/1") {
		t.Errorf("got %+v", r)
	}
	r = rulesOf(map[string]string{names.NeverWakeAgentsAnnotation: "", names.MaxWaitingAnnotation: "7", names.MaxWaitAnnotation: "3s"}, nil, defaults)
	if r == nil || r.Waiting() != 7 || r.MaxWait != 3*time.Second || r.WakesNone("/", "a bot/1") {
		t.Errorf("got %+v", r)
	}
}

func TestThePageIsThatOfTheAnnotationOrOfTheConfigMap(t *testing.T) {
	inline := map[string]string{names.WaitingPageAnnotation: "inline"}
	if r := rulesOf(inline, map[string]string{names.WaitingPageAnnotation: "other"}, rules.Defaults{}); r.Page.Body != "inline" {
		t.Errorf("got %+v", r.Page)
	}
	named := map[string]string{names.WaitingPageFromAnnotation: "pages/x", names.WaitingPageAfterAnnotation: "0s"}
	if r := rulesOf(named, map[string]string{names.WaitingPageAnnotation: "found"}, rules.Defaults{}); r.Page.Body != "found" || r.PageAfter != 0 {
		t.Errorf("got %+v", r.Page)
	}
	for why, text := range map[string]string{"not there": "", "too long": strings.Repeat("x", names.MaxPageBytes+1)} {
		if r := rulesOf(named, map[string]string{names.WaitingPageAnnotation: text}, rules.Defaults{}); r != nil {
			t.Errorf("%s: got %+v", why, r.Page)
		}
	}
}

func TestRetryAfterStandsWhereItMeansSomething(t *testing.T) {
	for status, want := range map[string]bool{"503": true, "200": false} {
		r := rulesOf(map[string]string{names.WaitingPageAnnotation: "x", names.WaitingPageStatusAnnotation: status}, nil, rules.Defaults{})
		found := false
		for _, h := range r.Page.Header {
			found = found || h.Name == "Retry-After"
		}
		if found != want {
			t.Errorf("%s: %+v", status, r.Page.Header)
		}
	}
}

func TestWhatWakesNone(t *testing.T) {
	r := rulesOf(map[string]string{names.NeverWakePathsAnnotation: "/robots.txt,/wp-*", names.NeverWakeAgentsAnnotation: "GoogleBot,kube-probe/"}, nil, rules.Defaults{})
	for _, c := range []struct {
		path, agent string
		want        bool
	}{
		{"/robots.txt", "", true}, {"/wp-login.php", "Mozilla/5.0", true}, {"/", "Mozilla/5.0", false},
		{"/", "Mozilla/5.0 (compatible; Googlebot/2.1)", true}, {"/", "kube-probe/1.35", true}, {"/", "kube-probe", false}, {"/", "", false},
		{"/", strings.Repeat("x", maxAgentBytes) + "Googlebot", false},
	} {
		if got := r.WakesNone(c.path, c.agent); got != c.want {
			t.Errorf("%s by %.40q: got %v", c.path, c.agent, got)
		}
		if allocations := testing.AllocsPerRun(10, func() { r.WakesNone(c.path, c.agent) }); allocations > 0 {
			t.Errorf("%s by %.40q: %v allocations", c.path, c.agent, allocations)
		}
	}
}

// rulesOf are the rules of a Revision with these annotations, and these in its status.
func rulesOf(annotations, resolved map[string]string, defaults rules.Defaults) *Rules {
	m, _ := names.Of(annotations, &rules.Config{Defaults: defaults})
	return Of(m.Cold, resolved)
}
