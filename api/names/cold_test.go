package names

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
)

func TestColdAnnotations(t *testing.T) {
	for _, test := range []struct {
		name        string
		annotations map[string]string
		want        string // part of the error; empty means none
	}{
		{"nothing", nil, ""},
		{"a page", map[string]string{WaitingPageAnnotation: "<h1>soon</h1>", WaitingPageAfterAnnotation: "0s", WaitingPageStatusAnnotation: "200"}, ""},
		{"an empty page", map[string]string{WaitingPageAnnotation: ""}, "the page has 0 bytes, expected 1 to 16384: " + WaitingPageAnnotation},
		{"a page that is too long", map[string]string{WaitingPageAnnotation: strings.Repeat("x", 16<<10+1)}, "the page has 16385 bytes"},
		{"a page from a ConfigMap", map[string]string{WaitingPageFromAnnotation: "pages.example/wait.html"}, ""},
		{"a ConfigMap without a key", map[string]string{WaitingPageFromAnnotation: "pages"}, "must be CONFIGMAP/KEY"},
		{"a ConfigMap of another namespace", map[string]string{WaitingPageFromAnnotation: "kube-system/pages/wait.html"}, "must be CONFIGMAP/KEY"},
		{"a key that leaves its folder", map[string]string{WaitingPageFromAnnotation: "pages/.."}, "must be CONFIGMAP/KEY"},
		{"two pages", map[string]string{WaitingPageAnnotation: "x", WaitingPageFromAnnotation: "pages/x"}, "expected exactly one, got both"},
		{"a wait for no page", map[string]string{WaitingPageAfterAnnotation: "1s"}, "has no effect without " + WaitingPageAnnotation + " or " + WaitingPageFromAnnotation},
		{"a negative wait", map[string]string{WaitingPageAnnotation: "x", WaitingPageAfterAnnotation: "-1s"}, "expected 0s <= -1s <= 1h0m0s"},
		{"a status that caches would keep", map[string]string{WaitingPageAnnotation: "x", WaitingPageStatusAnnotation: "404"}, "must be one of 503 200"},
		{"a fallback", map[string]string{FallbackServiceAnnotation: "spare", FallbackAfterAnnotation: "500ms"}, ""},
		{"a fallback elsewhere", map[string]string{FallbackServiceAnnotation: "other/spare"}, "must be the name of a Service in the same namespace"},
		{"a fallback on a host", map[string]string{FallbackServiceAnnotation: "spare.other.svc"}, "must be the name of a Service in the same namespace"},
		{"a wait for no fallback", map[string]string{FallbackAfterAnnotation: "1s"}, "has no effect without " + FallbackServiceAnnotation},
		{"never wake", map[string]string{NeverWakePathsAnnotation: "/robots.txt, *.php\n/wp-*/x", NeverWakeAgentsAnnotation: "Bot/1.0 (x; y),curl", NeverWakeStatusAnnotation: "204"}, ""},
		{"two stars", map[string]string{NeverWakePathsAnnotation: "/a*b*"}, `must have at most one "*"`},
		{"a path without a slash", map[string]string{NeverWakePathsAnnotation: "robots.txt"}, `must begin with "/" or "*"`},
		{"a path with a query", map[string]string{NeverWakePathsAnnotation: "/x?y"}, "without a query"},
		{"too many paths", map[string]string{NeverWakePathsAnnotation: strings.Repeat("/x,", 33)}, "has more than 32 entries"},
		{"a long agent", map[string]string{NeverWakeAgentsAnnotation: strings.Repeat("x", 129)}, "has more than 128 characters"},
		{"an agent that no client can send", map[string]string{NeverWakeAgentsAnnotation: "a\x00b"}, "visible ASCII"},
		{"another status", map[string]string{NeverWakeStatusAnnotation: "500"}, "must be one of 503 404 204"},
		{"bounds", map[string]string{MaxWaitingAnnotation: "1", MaxWaitAnnotation: "1s"}, ""},
		{"none may wait", map[string]string{MaxWaitingAnnotation: "0"}, "expected 1 <= 0"},
		{"for no time", map[string]string{MaxWaitAnnotation: "10ms"}, "expected 1s <= 10ms"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := ValidateTemplateAnnotations(test.annotations, &rules.Config{})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestColdIsTypedAndHasDefaults(t *testing.T) {
	got, err := readCold(map[string]string{WaitingPageFromAnnotation: "pages/a.html", FallbackServiceAnnotation: "spare",
		NeverWakePathsAnnotation: "/a/*,/b", NeverWakeAgentsAnnotation: "", MaxWaitingAnnotation: "junk"})
	want := Cold{PageFrom: ConfigMapKey{"pages", "a.html"}, PageAfter: DefaultPageAfter, PageStatus: 503,
		Fallback: "spare", FallbackAfter: DefaultFallbackAfter,
		NeverWakePaths: []PathPattern{{before: "/a/", open: true}, {before: "/b"}}, NeverWakeAgents: []string{}, NeverWakeStatus: 503}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(PathPattern{})); diff != "" || err == nil {
		t.Errorf("%v\n-want +got\n%s", err, diff)
	}
	if got, _ := readCold(map[string]string{MaxWaitAnnotation: "90s"}); got.MaxWait != 90*time.Second || got.NeverWakeAgents != nil {
		t.Errorf("got %+v", got)
	}
}

func TestAServiceIsNotItsOwnFallback(t *testing.T) {
	annotations := map[string]string{FallbackServiceAnnotation: "hello"}
	if ValidateFallback(annotations, "hello") == nil || ValidateFallback(annotations, "other") != nil || ValidateFallback(nil, "") != nil {
		t.Error("only the name of the Service itself is to be refused")
	}
}

func TestColdAnnotationsBelongToTheTemplate(t *testing.T) {
	err := ValidateNoScaling(map[string]string{MaxWaitAnnotation: "1s"}, LiveAnnotations)
	if err == nil || !strings.Contains(err.Error(), MaxWaitAnnotation) {
		t.Errorf("got %v", err)
	}
}

func TestPathPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, path string
		want          bool
	}{
		{"/a", "/a", true}, {"/a", "/a/", false}, {"/a", "/ab", false},
		{"/a/*", "/a/", true}, {"/a/*", "/a/b/c", true}, {"/a/*", "/a", false},
		{"*.php", "/x.php", true}, {"*.php", "/x.php/", false},
		{"/a*/b", "/a/b", true}, {"/a*/b", "/axy/b", true}, {"/ab*b", "/ab", false}, {"/ab*b", "/abb", true},
		{"*", "/", true},
	} {
		cold, err := readCold(map[string]string{NeverWakePathsAnnotation: test.pattern})
		if err != nil || cold.NeverWakePaths[0].Match(test.path) != test.want || cold.NeverWakePaths[0].String() != test.pattern {
			t.Errorf("%s matches %s: %v (%v)", test.pattern, test.path, !test.want, err)
		}
	}
}

// FuzzCold: what is read is within the bounds, and a pattern with a star matches what path.Match
// would, were its star to stand for slashes, too.
func FuzzCold(f *testing.F) {
	f.Add("/a*b", "/ab")
	f.Add("*", "")
	f.Add("/x,/y\n*z", "/z")
	f.Fuzz(func(t *testing.T, value, path string) {
		annotations := map[string]string{}
		for _, key := range coldKeys {
			annotations[key] = value
		}
		c, err := readCold(annotations)
		_ = err.Error()
		if len(c.Page) > MaxPageBytes || c.PageAfter < 0 || c.PageAfter > MaxColdWait || c.FallbackAfter < 0 || c.FallbackAfter > MaxColdWait ||
			c.PageStatus != 200 && c.PageStatus != 503 || c.MaxWaiting < 0 || c.MaxWait != 0 && c.MaxWait < time.Second ||
			strings.ContainsAny(c.Fallback, "./") || len(c.NeverWakePaths) > MaxPatterns || len(c.NeverWakeAgents) > MaxPatterns {
			t.Errorf("%q was accepted as %+v", value, c)
		}
		for _, agent := range c.NeverWakeAgents {
			if agent == "" || len(agent) > MaxPatternBytes {
				t.Errorf("%q was accepted as the agent %q", value, agent)
			}
		}
		for _, p := range c.NeverWakePaths {
			before, after, star := strings.Cut(p.String(), "*")
			want := path == before && !star
			for i := 0; star && i <= len(path); i++ {
				rest := path[i:]
				want = want || path[:i] == before && strings.HasSuffix(rest, after)
			}
			if p.Match(path) != want {
				t.Errorf("%s matches %q: %v", p, path, !want)
			}
		}
	})
}

func readCold(annotations map[string]string) (Cold, *apis.FieldError) {
	return read(annotations, func(r *reader) Cold { return r.cold(&rules.Defaults{}) })
}
