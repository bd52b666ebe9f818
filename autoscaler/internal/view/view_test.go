package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/internal/recall"
	"ebb.dev/ebb/autoscaler/internal/witness"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/internal/frontproxy"
	"ebb.dev/ebb/wire"
)

// world is a replica that decides for some revisions.
type world struct {
	t       *testing.T
	engine  *loop.Engine
	records *recall.Records
	witness *witness.Witness
	mutex   sync.Mutex
	// services are by revision; absent ones are not known.
	services map[loop.Key]string
	ready    int32
}

func (w *world) Spec(key loop.Key) *loop.Spec {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	service := w.services[key]
	if service == "" {
		return nil
	}
	return &loop.Spec{Service: service, Found: &revision.State{}, Config: revision.Config{UID: key.String(), Rules: &revision.Rules{PanicWindow: 6 * time.Second,
		Formula: decide.Config{Total: 10, Target: 7, MaxScaleUpRate: 1000, MaxScaleDownRate: 2, PanicThreshold: 2, StableWindow: time.Minute, Reachable: true},
		Zero:    zero.Config{Min: 1, Max: 5, StableWindow: time.Minute}}}}
}

func (w *world) Count(loop.Key) revision.Counts {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return revision.Counts{Ready: w.ready, NotReady: 2, Lost: 1}
}

func (w *world) Act(loop.Order) {}

func (w *world) change(namespace, name string, change func()) {
	w.mutex.Lock()
	change()
	w.mutex.Unlock()
	w.engine.Changed(loop.Key{Namespace: namespace, Name: name})
}

func (w *world) set(service string, revisions ...string) {
	for _, name := range revisions {
		namespace, name, _ := strings.Cut(name, "/")
		key := loop.Key{Namespace: namespace, Name: name}
		w.change(namespace, name, func() { w.services[key] = service })
	}
	w.engine.Settle(time.Second)
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, services: map[loop.Key]string{}, ready: 2}
	w.engine = loop.New(loop.Options{Shards: 2, Source: w, Pods: w, Actor: w})
	w.records = &recall.Records{Known: func(loop.Key) bool { return true }, Clock: time.Now}
	w.witness = &witness.Witness{Clock: time.Now, Pods: func(loop.Key) []pods.Pod { return nil }, Starting: func(loop.Key) time.Time { return time.Time{} },
		Ask: func(context.Context, loop.Key, []pods.Pod) []wire.Stat { return nil }}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.engine.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func keys() wire.Keys {
	key := []byte("0123456789abcdef0123456789abcdef")
	return wire.Keys{Current: key, Accepted: [][]byte{key}}
}

func (w *world) replicas(others ...string) *Replicas {
	silent := func(key loop.Key) []v1alpha1.SilentNode {
		return []v1alpha1.SilentNode{{Name: "b", Pods: 1, State: "silent", Reason: "of " + key.Name}}
	}
	return NewReplicas(Local{w.engine, w.records, w.witness, silent}, keys, func() []string { return others })
}

// door lets a user into the namespace of the same name, and root everywhere.
type door struct{}

func (door) Caller(r *http.Request) (frontproxy.User, error) {
	name := r.Header.Get("X-Remote-User")
	if name == "" {
		return frontproxy.User{}, frontproxy.ErrStranger
	}
	return frontproxy.User{Name: name}, nil
}

func (door) May(_ context.Context, u frontproxy.User, what authorizationv1.ResourceAttributes) (bool, string, error) {
	if u.Name == "unlucky" {
		return false, "", errors.New("the API server is away")
	}
	right := what.Resource == "podautoscalers" && what.Group == "autoscaling.internal.knative.dev" && (what.Verb == "get" || what.Verb == "list")
	return right && (u.Name == "root" || u.Name == what.Namespace || strings.HasPrefix(u.Name, "system:serviceaccount:"+what.Namespace+":")), "", nil
}

func newServer(r *Replicas) *Server {
	return NewServer(r, door{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func ask(s http.Handler, user, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set("X-Remote-User", user)
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, r)
	return answer
}

func read[T any](t *testing.T, answer *httptest.ResponseRecorder) (v T) {
	t.Helper()
	if err := json.Unmarshal(answer.Body.Bytes(), &v); err != nil || answer.Code != 200 {
		t.Fatalf("%d %s: %v", answer.Code, answer.Body, err)
	}
	return v
}

func TestOnlyWhoMayReadPodAutoscalersReadsViews(t *testing.T) {
	w := newWorld(t)
	w.set("cart", "shop/cart-00001")
	w.set("pay", "bank/pay-00001")
	s := newServer(w.replicas())
	for _, c := range []struct {
		user, path string
		status     int
		says       string
	}{
		{"shop", "/namespaces/shop/services/cart", 200, ""},
		{"shop", "/namespaces/shop/services", 200, ""},
		{"root", "/services", 200, ""},
		{"root", "", 200, "ServiceView"},
		{"", "", 401, "ask the API server"},
		{"", "/namespaces/shop/services/cart", 401, "ask the API server"},
		{"shop", "/services", 403, `user "shop" cannot list podautoscalers.autoscaling.internal.knative.dev in the cluster`},
		{"shop", "/namespaces/bank/services", 403, "in the namespace bank"},
		{"shop", "/namespaces/bank/services?watch=1", 403, "in the namespace bank"},
		{"shop", "/namespaces/bank/services/pay", 403, `cannot get`},
		{"shop", "/namespaces/bank/services/unheard-of", 403, ""},
		{"shop", "/namespaces/shop/services/unheard-of", 404, `"unheard-of" not found`},
		{"shop", "/namespaces/shop/services/cart/status", 404, "could not find the requested resource"},
		{"root", "/services/cart", 404, "could not find the requested resource"},
		{"root", "/namespaces//services", 404, "could not find the requested resource"},
		{"root", "/pods", 404, "could not find the requested resource"},
		{"shop", "/namespaces/shop/services?limit=x", 400, "want a number"},
		{"shop", "/namespaces/shop/services?watch=perhaps", 400, "true or false"},
		{"shop", "/namespaces/shop/services?fieldSelector=spec.x=y", 400, "metadata.name=NAME"},
		{"shop", "/namespaces/shop/services?labelSelector=a", 400, "no labels"},
		{"unlucky", "/namespaces/shop/services", 503, "did not tell the rights"},
	} {
		answer := ask(s, c.user, root+c.path)
		if answer.Code != c.status || !strings.Contains(answer.Body.String(), strings.ReplaceAll(c.says, `"`, `\"`)) {
			t.Errorf("%s, %s: %d %s, want %d %s", c.user, c.path, answer.Code, answer.Body, c.status, c.says)
		}
		var status metav1.Status
		if err := json.Unmarshal(answer.Body.Bytes(), &status); err != nil || c.status >= 400 && (status.Kind != "Status" || int(status.Code) != c.status) {
			t.Errorf("%s, %s: %+v %v", c.user, c.path, status, err)
		}
	}
	r := httptest.NewRequest("POST", root+"/namespaces/shop/services", nil)
	r.Header.Set("X-Remote-User", "root")
	answer := httptest.NewRecorder()
	if s.ServeHTTP(answer, r); answer.Code != 405 {
		t.Errorf("POST: %d", answer.Code)
	}
}

func TestAListIsShortAndAViewHasEverything(t *testing.T) {
	w := newWorld(t)
	w.set("cart", "shop/cart-00001", "shop/cart-00002")
	w.set("another", "shop/another-00001")
	w.set("pay", "bank/pay-00001")
	now := time.Now()
	for _, name := range []string{"cart-00001", "cart-00002"} {
		var ended wire.Outcomes
		for i := range 10 {
			ended.End(200+300*(i/9), 100*time.Millisecond)
		}
		w.records.Reported(loop.Key{Namespace: "shop", Name: name}, &wire.Stat{Requests: 10, AverageConcurrent: 1, Ended: &ended})
		w.records.ColdStart(&wire.ColdStarted{Namespace: "shop", Revision: name, At: now, Phases: []wire.Phase{{Name: "pull", Took: time.Second}}})
		w.records.Refused(&wire.Refused{Namespace: "shop", Revision: name, At: now, By: "activator-1", Status: 503, Reason: "full", Count: 3})
		w.records.Called(&wire.Called{Namespace: "shop", Revision: name, At: now.Add(time.Second), Ran: time.Second})
		w.records.Called(&wire.Called{Namespace: "shop", Revision: name, At: now.Add(time.Minute), Ran: time.Second})
	}
	w.records.Step(w.engine.Each)
	s := newServer(w.replicas())
	list := read[v1alpha1.ServiceViewList](t, ask(s, "root", root+"/services"))
	var names []string
	for _, v := range list.Items {
		names = append(names, v.Namespace+"/"+v.Name)
	}
	if fmt.Sprint(names) != "[bank/pay shop/another shop/cart]" || list.Kind != "ServiceViewList" {
		t.Fatalf("%s of %v", list.Kind, names)
	}
	short := list.Items[2]
	if len(short.Revisions) != 2 || short.ColdStarts != nil || short.Refusals != nil || short.Calls != nil || short.Revisions[0].History != nil || short.Revisions[0].Series != nil || short.Revisions[0].Nodes != nil ||
		short.Revisions[0].Decision == nil || len(short.Series.Ready) != 1 || short.Series.Ready[0] != 4 {
		t.Errorf("a view of a list: %+v", short)
	}
	full := read[v1alpha1.ServiceView](t, ask(s, "shop", root+"/namespaces/shop/services/cart"))
	one := full.Revisions[1]
	if full.Kind != "ServiceView" || len(full.ColdStarts) != 2 || len(full.Refusals) != 2 || len(full.Calls) != 4 || full.Calls[0].ColdMs != 0 || full.Calls[3].ColdMs != 1000 || one.Name != "cart-00002" || len(one.History) == 0 || len(one.Series.Ready) != 1 ||
		len(one.Nodes) != 1 || one.Nodes[0].Reason != "of cart-00002" || one.Decision.Limits.Max != 5 || one.Decision.Target != 7 || one.Decision.Reason == "" {
		t.Errorf("%+v", full)
	}
	n := full.Now
	if n.Replicas != (v1alpha1.Replicas{Wanted: n.Replicas.Wanted, Ready: 4, Starting: 2}) || n.SuccessRatio == nil || *n.SuccessRatio != 0.9 || *n.P50Ms < 81 || *n.P50Ms > 119 || n.RequestsPerSecond != 20 {
		t.Errorf("%+v", n)
	}
	page := read[v1alpha1.ServiceViewList](t, ask(s, "root", root+"/services?limit=2"))
	if len(page.Items) != 2 || *page.RemainingItemCount != 1 {
		t.Errorf("%d of a page, %v more", len(page.Items), page.RemainingItemCount)
	}
	selected := read[v1alpha1.ServiceViewList](t, ask(s, "shop", root+"/namespaces/shop/services?fieldSelector=metadata.name%3Dcart"))
	if len(selected.Items) != 1 || len(selected.Items[0].ColdStarts) != 2 {
		t.Errorf("%+v", selected)
	}
}

// elsewhere is another replica at an address of its own.
func elsewhere(t *testing.T, handler http.Handler) (ip string, port int) {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	u, _ := url.Parse(server.URL)
	ip, text, _ := net.SplitHostPort(u.Host)
	port, _ = strconv.Atoi(text)
	return ip, port
}

func TestReplicasAnswerTogether(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	a.set("cart", "shop/cart-00001")
	b.set("cart", "shop/cart-00002")
	b.set("pay", "bank/pay-00001")
	ip, port := elsewhere(t, b.replicas())
	replicas := a.replicas(ip)
	replicas.Port = port
	s := newServer(replicas)
	if v := read[v1alpha1.ServiceView](t, ask(s, "shop", root+"/namespaces/shop/services/cart")); len(v.Revisions) != 2 || v.Now.Replicas.Ready != 4 {
		t.Errorf("%+v", v)
	}
	if list := read[v1alpha1.ServiceViewList](t, ask(s, "root", root+"/services")); len(list.Items) != 2 {
		t.Errorf("%+v", list)
	}
}

// A judge's question reaches the replica that decides for each revision. Nobody else's makes it
// count.
func TestRevisionsAreCountedForAJudge(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	a.set("cart", "shop/cart-00001")
	b.set("cart", "shop/cart-00002")
	b.set("pay", "shop/pay-00001")
	ip, port := elsewhere(t, b.replicas())
	replicas := a.replicas(ip)
	replicas.Port = port
	s := newServer(replicas)
	counted := func(path string) (n int) {
		v := read[v1alpha1.ServiceView](t, ask(s, "shop", root+path))
		for _, r := range v.Revisions {
			if r.Judged != nil {
				n += 1 + len(r.Judged.Seconds)
			}
		}
		return n
	}
	if n := counted("/namespaces/shop/services/cart"); n != 0 {
		t.Errorf("nobody asked, and %d were counted", n)
	}
	if n := counted("/namespaces/shop/services/cart?judge=true"); n != 2 {
		t.Errorf("%d revisions are counted, want 2", n)
	}
	a.witness.Round(t.Context())
	b.witness.Round(t.Context())
	if n := counted("/namespaces/shop/services/cart"); n != 4 {
		t.Errorf("%d seconds and revisions, want 4", n)
	}
	if n := counted("/namespaces/shop/services/pay"); n != 0 {
		t.Errorf("%d of another Service", n)
	}
	if text := ask(s, "shop", root+"/namespaces/shop/services").Body.String(); strings.Contains(text, "judged") {
		t.Errorf("a list has it: %s", text)
	}
}

func TestAReplicaThatIsAwayIsSaidAndTakesNothingAway(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	a.set("cart", "shop/cart-00001")
	b.set("pay", "bank/pay-00001")
	theirs := b.replicas()
	var away atomic.Bool
	ip, port := elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			w.Write([]byte("[]")) // without a proof
			return
		}
		theirs.ServeHTTP(w, r)
	}))
	replicas := a.replicas(ip)
	replicas.Port = port
	s := newServer(replicas)
	list := func() (int, string) {
		s.board.mutex.Lock()
		s.board.at = time.Time{}
		s.board.mutex.Unlock()
		answer := ask(s, "root", root+"/services")
		return len(read[v1alpha1.ServiceViewList](t, answer).Items), answer.Header().Get("Warning")
	}
	if n, warning := list(); n != 2 || warning != "" {
		t.Errorf("%d views, warning %q", n, warning)
	}
	away.Store(true)
	if n, warning := list(); n != 2 || !strings.Contains(warning, "incomplete") {
		t.Errorf("%d views, warning %q", n, warning)
	}
	if answer := ask(s, "root", root+"/namespaces/bank/services/pay"); answer.Code != 503 || !strings.Contains(answer.Body.String(), "does not prove") {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
	away.Store(false)
	b.change("bank", "pay-00001", func() { clear(b.services) })
	b.engine.Settle(time.Second)
	if n, warning := list(); n != 1 || warning != "" {
		t.Errorf("%d views, warning %q", n, warning)
	}
}

func TestANeighbourDoesNotReadOfOtherTenants(t *testing.T) {
	w := newWorld(t)
	w.set("cart", "shop/cart-00001")
	replicas := w.replicas()
	for _, c := range []struct {
		who, from, token string
		status           int
	}{
		{"a neighbour", "10.1.2.3:40000", "", 401},
		{"a pod", "10.1.2.3:40000", wire.Token(keys().Current, "shop", "cart-00001"), 401},
		{"an activator", "10.1.2.3:40000", wire.Token(keys().Current, "", wire.ActivatorSubject), 401},
		{"made up", "10.1.2.3:40000", "x", 401},
		{"another replica", "10.1.2.3:40000", wire.Token(keys().Current, "", wire.AutoscalerSubject), 200},
		{"inside the pod", "127.0.0.1:40000", "", 200},
	} {
		request := httptest.NewRequest("GET", wire.PathViews+"?namespace=shop", nil)
		request.RemoteAddr = c.from
		if c.token != "" {
			if err := new(wire.Signer).Sign(request, c.token); err != nil {
				t.Fatal(err)
			}
		}
		answer := httptest.NewRecorder()
		if replicas.ServeHTTP(answer, request); answer.Code != c.status {
			t.Errorf("%s: %d, want %d", c.who, answer.Code, c.status)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(root + "/namespaces/shop/services/cart?watch=1&limit=3&fieldSelector=metadata.name%3Dx")
	f.Add(root + "/namespaces/shop/services?fieldSelector=metadata.name%3Dcart/x")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		q, err := parse(u)
		if err == nil && (q.service != "" && q.namespace == "" || q.limit < 0 || q.limit > v1alpha1.MaxItems || strings.Contains(q.service, "/")) {
			t.Fatalf("%q became %+v", text, q)
		}
	})
}
