package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/eventually"
)

// world is a page in front of an API server that answers as it is told.
type world struct {
	*httptest.Server
	api  *httptest.Server
	seen chan *http.Request
	log  bytes.Buffer
}

func serve(t *testing.T, answer http.HandlerFunc, change func(*Options)) *world {
	t.Helper()
	w := &world{seen: make(chan *http.Request, 2000)}
	w.api = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.seen <- r
		answer(out, r)
	}))
	t.Cleanup(w.api.Close)
	to, err := url.Parse(w.api.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{API: to, Transport: &http.Transport{}, Log: slog.New(slog.NewJSONHandler(&w.log, nil)), Registry: prometheus.NewRegistry()}
	if change != nil {
		change(&o)
	}
	handler, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Server = httptest.NewServer(handler)
	t.Cleanup(w.Server.Close)
	return w
}

func (w *world) ask(t *testing.T, method, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

func nothing(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }

const services = "/apis/serving.knative.dev/v1/services"

var bearer = []string{"Authorization", "Bearer the-token"}

func TestOnlyPathsOnTheListReachTheAPIServer(t *testing.T) {
	w := serve(t, nothing, nil)
	for path, want := range map[string]bool{
		services: true,
		"/apis/serving.knative.dev/v1/namespaces/shop/services/cart":          true,
		"/apis/serving.knative.dev/v1/namespaces/shop/revisions":              true,
		"/apis/serving.knative.dev/v1/namespaces/shop/routes":                 true,
		"/apis/view.ebb.dev/v1alpha1/services":                                true,
		"/apis/view.ebb.dev/v1alpha1/namespaces/shop/services/cart":           true,
		"/api/v1/namespaces/shop/events":                                      true,
		"/api/v1/nodes":                                                       true,
		"/apis/apps/v1/namespaces/knative-serving/deployments":                true,
		"/apis/apps/v1/namespaces/knative-serving/daemonsets/node-agent":      true,
		"/api/v1/nodes/a/proxy/metrics":                                       false,
		"/api/v1/secrets":                                                     false,
		"/api/v1/namespaces/shop/secrets":                                     false,
		"/api/v1/namespaces/shop/pods/a/log":                                  false,
		"/api/v1/namespaces/shop/services/a/proxy/":                           false,
		"/apis/serving.knative.dev/v1/namespaces/shop/services/cart/status":   false,
		"/apis/serving.knative.dev/v1/namespaces/shop/configurations":         false,
		"/apis/apps/v1/namespaces/shop/deployments":                           false,
		"/apis/apps/v1/namespaces/knative-serving/daemonsets/other":           false,
		"/apis/view.ebb.dev/v1alpha1/../../../api/v1/secrets":                 false,
		"/apis/view.ebb.dev/v1alpha1/%2e%2e/%2e%2e/%2e%2e/api/v1/secrets":     false,
		"/apis/view.ebb.dev/v1alpha1/..%2f..%2fapi/v1/secrets":                false,
		"/apis/serving.knative.dev/v1/namespaces/../../../api/v1/secrets/a":   false,
		"/apis/view.ebb.dev/v1alpha1//services":                               false,
		"/api/":                                                               false,
		"/apis/authentication.k8s.io/v1/selfsubjectreviews":                   false,
		"/apis/view.ebb.dev/v1alpha1evil/services":                            false,
		"/apis/serving.knative.dev/v1/namespaces/shop/services/cart%3Fa=b":    false,
		"/apis/serving.knative.dev/v1/namespaces/shop/services/CART":          false,
		"/apis/serving.knative.dev/v1/namespaces/shop/services/cart;x=1":      false,
		"/apis/serving.knative.dev/v1/namespaces/shop/services/.hidden":       false,
		"/apis/serving.knative.dev/v1/namespaces/shop/services/a.example.com": true,
	} {
		answer, body := w.ask(t, http.MethodGet, path, bearer...)
		if got := answer.StatusCode == http.StatusOK; got != want || !want && answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, answer.StatusCode, body)
		}
		if len(w.seen) > 0 != want {
			t.Errorf("%s reached the API server: %v", path, len(w.seen) > 0)
		}
		for len(w.seen) > 0 {
			<-w.seen
		}
	}
}

func FuzzAPathOnTheListIsWhatItSeems(f *testing.F) {
	f.Add("/apis/view.ebb.dev/v1alpha1/namespaces/a/services/b")
	f.Add("/api/v1/namespaces/%2e%2e/events")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.ParseRequestURI(text)
		if err != nil || !mayRead(u) {
			return
		}
		if u.Path != u.EscapedPath() || path.Clean(u.Path) != u.Path {
			t.Errorf("%q is %q to another reader", u.EscapedPath(), path.Clean(u.Path))
		}
		for _, word := range []string{"secrets", "proxy", "log", "exec"} {
			if !strings.HasPrefix(u.Path, "/apis/view.ebb.dev/") && path.Base(u.Path) == word && !regexp.MustCompile(`/(services|revisions|routes)/[^/]+$`).MatchString(u.Path) {
				t.Errorf("%q is on the list", u.Path)
			}
		}
	})
}

func TestThePageOnlyReads(t *testing.T) {
	w := serve(t, nothing, nil)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions} {
		if answer, _ := w.ask(t, method, services, bearer...); answer.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, answer.StatusCode)
		}
	}
	if len(w.seen) > 0 {
		t.Error("a write reached the API server")
	}
}

// What goes on is the token, and nothing else of the request that the API server would act on.
func TestTheCallersTokenGoesOnAndNothingElse(t *testing.T) {
	w := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range map[string]string{"Set-Cookie": "a=b", "Www-Authenticate": "Basic", "Access-Control-Allow-Origin": "*", "Warning": `299 - "left out"`} {
			w.Header().Set(name, value)
		}
		fmt.Fprint(w, "{}")
	}, nil)
	answer, _ := w.ask(t, http.MethodGet, services+"?limit=3&as=admin&pretty=1&dryRun=All", append(bearer, "Impersonate-User", "admin", "Impersonate-Group", "system:masters",
		"Cookie", "a=b", "X-Remote-User", "admin", "Connection", "Upgrade", "Upgrade", "websocket")...)
	r := <-w.seen
	if r.URL.RawQuery != "limit=3" || r.Header.Get("Authorization") != "Bearer the-token" {
		t.Errorf("%s %v", r.URL, r.Header)
	}
	for name := range r.Header {
		if name != "Authorization" && name != "Accept" && name != "Accept-Encoding" && name != "User-Agent" {
			t.Errorf("%s went on", name)
		}
	}
	for _, name := range []string{"Set-Cookie", "Www-Authenticate", "Access-Control-Allow-Origin"} {
		if answer.Header.Get(name) != "" {
			t.Errorf("%s came back", name)
		}
	}
	if answer.Header.Get("Warning") == "" || answer.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", answer.Header)
	}
}

func TestWithoutATokenNothingIsAsked(t *testing.T) {
	w := serve(t, nothing, nil)
	for _, header := range []string{"", "Bearer ", "Basic YTpi", "bearer x"} {
		if answer, body := w.ask(t, http.MethodGet, services, "Authorization", header); answer.StatusCode != http.StatusUnauthorized || !strings.Contains(body, "sign in first") {
			t.Errorf("%q: %d %s", header, answer.StatusCode, body)
		}
	}
	if len(w.seen) > 0 {
		t.Error("the API server was asked")
	}
}

// Behind `kubectl ebb dashboard`, others on the machine and pages of other sites have no key.
func TestWhoDoesNotHaveTheKeySeesNothing(t *testing.T) {
	w := serve(t, nothing, func(o *Options) { o.Key = "the-token" })
	host := strings.TrimPrefix(w.URL, "http://")
	if answer, _ := w.ask(t, http.MethodGet, services, bearer...); answer.StatusCode != http.StatusOK {
		t.Errorf("with the key: %d", answer.StatusCode)
	}
	if r := <-w.seen; r.Header.Get("Authorization") != "" {
		t.Error("the key went on to the API server")
	}
	if answer, _ := w.ask(t, http.MethodGet, services, "Authorization", "Bearer another"); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("with another key: %d", answer.StatusCode)
	}
	for _, site := range []string{"cross-site", "same-site"} {
		if answer, _ := w.ask(t, http.MethodGet, services, append(bearer, "Sec-Fetch-Site", site)...); answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d", site, answer.StatusCode)
		}
	}
	w = serve(t, nothing, func(o *Options) { o.Key, o.Host = "the-token", host })
	if answer, _ := w.ask(t, http.MethodGet, "/", "Host", "evil.example"); answer.StatusCode != http.StatusForbidden {
		t.Errorf("another name of the address: %d", answer.StatusCode)
	}
	if len(w.seen) > 0 {
		t.Error("the API server was asked")
	}
}

func TestEachAnswerHasTheHeadersThatKeepOthersOut(t *testing.T) {
	w := serve(t, nothing, nil)
	for _, path := range []string{"/", "/app.js", "/vendor/preact.mjs", "/nothing", services, "/api/v1/secrets"} {
		answer, _ := w.ask(t, http.MethodGet, path, bearer...)
		policy := answer.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self' 'sha256-", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
			if !strings.Contains(policy, part) {
				t.Errorf("%s: the policy %q lacks %s", path, policy, part)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("%s: %s", path, policy)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
			"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"} {
			if got := answer.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
	}
}

func TestFilesAreSentOnceAndPacked(t *testing.T) {
	w := serve(t, nothing, nil)
	answer, body := w.ask(t, http.MethodGet, "/app.js", "Accept-Encoding", "gzip")
	if answer.Header.Get("Content-Encoding") != "gzip" || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/javascript") || strings.Contains(body, "import ") {
		t.Errorf("%v", answer.Header)
	}
	if answer, body := w.ask(t, http.MethodGet, "/app.js", "If-None-Match", answer.Header.Get("ETag")); answer.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("%d", answer.StatusCode)
	}
	for _, missing := range []string{"/nothing.js", "/vendor", "/../page.go", "/assets/app.js"} {
		if answer, _ := w.ask(t, http.MethodGet, missing); answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", missing, answer.StatusCode)
		}
	}
}

// The bound of the page: 150 kB of script, all pages together, before compression.
func TestThePageHasLittleScript(t *testing.T) {
	total := 0
	err := fs.WalkDir(Assets(), ".", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".js" || path.Ext(name) == ".mjs" {
			text, err := fs.ReadFile(Assets(), name)
			total += len(text)
			return err
		}
		return err
	})
	if err != nil || total > 150_000 || total < 50_000 {
		t.Errorf("%d bytes, %v", total, err)
	}
}

func TestAnAPIServerThatIsAwayIsTold(t *testing.T) {
	w := serve(t, nothing, func(o *Options) { o.API = &url.URL{Scheme: "http", Host: "127.0.0.1:1"} })
	answer, body := w.ask(t, http.MethodGet, services, bearer...)
	var status metav1.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil || answer.StatusCode != http.StatusBadGateway || status.Reason != "NoAPIServer" || status.Message != "the API server does not answer: connection refused" {
		t.Errorf("%d %s %v", answer.StatusCode, body, err)
	}
	if logged := w.log.String(); !strings.Contains(logged, "the API server did not answer") || strings.Contains(logged, "the-token") {
		t.Error(logged)
	}
}

// endless is a stream that says something once, and then nothing.
func endless(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, `{"type":"BOOKMARK"}`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func TestOpenPagesTakeABoundedNumberOfStreams(t *testing.T) {
	w := serve(t, func(out http.ResponseWriter, r *http.Request) {
		if isStream(r.URL) {
			endless(out, r)
			return
		}
		nothing(out, r)
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{}}
	open := func(token string) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+services+"?watch=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode == http.StatusOK {
			if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		} else if answer.Body.Close(); answer.Header.Get("Retry-After") == "" {
			t.Error("it is not said when to come again")
		}
		return answer.StatusCode
	}
	counts := map[int]int{}
	for range 2 * maxStreamsOfOne {
		counts[open("greedy")]++
	}
	if counts[http.StatusOK] != maxStreamsOfOne || counts[http.StatusTooManyRequests] != maxStreamsOfOne {
		t.Errorf("of one token: %v", counts)
	}
	for i := range maxStreams {
		counts[open(fmt.Sprint("one of many ", i))]++
	}
	if counts[http.StatusOK] != maxStreams {
		t.Errorf("all told: %v", counts)
	}
	if answer, _ := w.ask(t, http.MethodGet, services, bearer...); answer.StatusCode != http.StatusOK {
		t.Errorf("a question beside them: %d", answer.StatusCode)
	}
	cancel() // the pages are closed
	ctx = t.Context()
	eventually.True(t, "the places of closed pages are free again", func() bool { return open("greedy") == http.StatusOK })
	client.CloseIdleConnections()
	w.CloseClientConnections()
}

func TestAStreamHasAnEnd(t *testing.T) {
	w := serve(t, nothing, nil)
	w.ask(t, http.MethodGet, services+"?watch=true&timeoutSeconds=86400&resourceVersion=5&allowWatchBookmarks=true", bearer...)
	if q := (<-w.seen).URL.Query(); q.Get("timeoutSeconds") != fmt.Sprint(streamSeconds) || q.Get("resourceVersion") != "5" || q.Get("allowWatchBookmarks") != "true" {
		t.Errorf("%v", q)
	}
}
