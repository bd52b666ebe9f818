package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/client/versioned"
	serving "ebb.dev/ebb/api/serving/v1"
	view "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/test/golden"
)

// cartView is what the API tells of the Service cart.
func cartView() *view.ServiceView {
	decision := func(age time.Duration, want int32, times int, rule, reason string) view.Decision {
		return view.Decision{First: ago(age), Last: ago(age - time.Duration(times)*2*time.Second), Times: times, Want: want, Rule: rule, Reason: reason,
			Metric: "concurrent requests", Stable: 48, Panic: 47.2, Target: 7, Queued: 2, Formula: 7}
	}
	history := []view.Decision{
		decision(10*time.Minute, -1, 1, "no-data", "no data yet"), decision(9*time.Minute, 1, 200, "stable-window", "stable average 3 / target 7 = 1 pod"),
		decision(50*time.Second, 7, 4, "panic-window", "panic average 48 / target 7 = 7 pods"), decision(40*time.Second, 5, 12, "max-scale", "max-scale allows 5 of the 7 asked for"),
	}
	return &view.ServiceView{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Now: view.Now{Time: now, RequestsPerSecond: 412, P50Ms: ptr.To(18.6), P99Ms: ptr.To(1490.), SuccessRatio: ptr.To(0.99961), InFlight: 9.4, Queued: 0.2,
			Replicas: view.Replicas{Wanted: 5, Ready: 4, Starting: 1}},
		Revisions: []view.RevisionView{{Name: "cart-00002", History: history, Decision: &history[3]}},
		ColdStarts: []view.ColdStart{
			{At: ago(12 * time.Second), Revision: "cart-00002", Pod: "cart-00002-deployment-7d9f-x2k4p", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", TotalMs: 1240, Complete: true,
				Phases: []view.Phase{{Name: "decide", StartMs: 0, DurationMs: 4}, {Name: "schedule", StartMs: 4, DurationMs: 36}, {Name: "pull", StartMs: 40, DurationMs: 700},
					{Name: "start", StartMs: 740, DurationMs: 480}, {Name: "announce", StartMs: 1220, DurationMs: 0}, {Name: "forward", StartMs: 1220, DurationMs: 20}}},
			{At: ago(time.Hour), Revision: "cart-00001", Pod: "cart-00001-deployment-a", TotalMs: 800, Pulled: true, Phases: []view.Phase{{Name: "pull", DurationMs: 790}, {Name: "forward", StartMs: 790, DurationMs: 10}}},
		}}
}

func TestColdStarts(t *testing.T) {
	v := cartView()
	var text bytes.Buffer
	if err := writeColdStarts(&text, v, v.ColdStarts, now); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&text, "----")
	if err := writeColdStarts(&text, v, nil, now); err != nil {
		t.Fatal(err)
	}
	golden.File(t, "testdata/coldstarts.txt", text.String())
}

func TestCalls(t *testing.T) {
	v := cartView()
	pod := "cart-00002-deployment-7d9f-x2k4p"
	v.Calls = []view.Call{
		{At: ago(2 * time.Second), Revision: "cart-00002", Pod: pod, Method: "POST", Path: "/report", Status: 200, WaitedMs: 61000, ColdMs: 1240, RanMs: 1800,
			ID: "ae3nXc3sVb8nPpQ2b0JrVtq1w2I", Attempt: 2},
		{At: ago(3 * time.Second), Revision: "cart-00002", Pod: pod, Method: "GET", Path: "/", Status: 200, WaitedMs: 0.4, RanMs: 7},
	}
	var text bytes.Buffer
	if err := writeCalls(&text, v, v.Calls); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&text, "----")
	if err := writeCalls(&text, v, nil); err != nil {
		t.Fatal(err)
	}
	golden.File(t, "testdata/calls.txt", text.String())
	text.Reset()
	v.Calls = []view.Call{{At: now, Method: "GET", Path: "/\n\x1b[2J\u009b1m", Pod: pod}}
	if err := writeCalls(&text, v, v.Calls); err != nil || strings.Count(text.String(), "\n") != 2 || strings.ContainsAny(text.String(), "\x1b\u009b") {
		t.Errorf("%q, %v", text.String(), err)
	}
}

func TestABarNeverLeavesItsAxis(t *testing.T) {
	for _, c := range [][3]float64{{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {5, 1, 5}, {-1, 1, 5}, {100, 100, 5}, {0, 0.001, 1e9}, {1e9, 0.001, 1e9}} {
		if got := bar(c[0], c[1], c[2]); len(got) != barWidth+2 {
			t.Errorf("%v: %q", c, got)
		}
	}
}

// answering is a cluster whose API view.ebb.dev gives one answer, and that has nothing else.
func answering(t *testing.T, status int, body any) *access {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/apis/"+view.Group) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(body)
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	a := &access{kube: kubernetes.NewForConfigOrDie(config), ebb: versioned.NewForConfigOrDie(config), namespace: "shop"}
	return a
}

func TestWhatTheAPIDoesNotTellIsExplained(t *testing.T) {
	failure := func(code int32, reason metav1.StatusReason, name string) metav1.Status {
		s := metav1.Status{Code: code, Reason: reason, Status: "Failure", Message: "because"}
		s.Kind, s.APIVersion = "Status", "v1"
		if name != "" {
			s.Details = &metav1.StatusDetails{Name: name}
		}
		return s
	}
	for _, c := range []struct {
		status int
		body   any
		says   string
	}{
		{401, failure(401, metav1.StatusReasonUnauthorized, ""), "does not accept your credentials"},
		{403, failure(403, metav1.StatusReasonForbidden, ""), "ask for the ClusterRole view"},
		{404, failure(404, metav1.StatusReasonNotFound, "cart"), "knows nothing: no autoscaler of Ebb decides for it"},
		{404, "404 page not found", "This cluster has no API view.ebb.dev"},
		{503, "service unavailable", "No autoscaler answers"},
		{200, "x", "does not answer: read the answer"},
	} {
		_, err := answering(t, c.status, c.body).viewOf(t.Context(), "cart")
		if err == nil || !strings.Contains(whyNoView(err), c.says) {
			t.Errorf("%d: %v, want %q", c.status, err, c.says)
		} else if _, err := answering(t, c.status, c.body).traceOf(t.Context(), "cart", "x"); err == nil {
			t.Errorf("%d: a trace without an answer", c.status)
		}
	}
	got, err := answering(t, 200, cartView()).viewOf(t.Context(), "cart")
	if err != nil || got.Now.RequestsPerSecond != 412 {
		t.Errorf("%+v %v", got, err)
	}
}

func TestATraceFollowsAnIDThatIsKnown(t *testing.T) {
	a := answering(t, 200, cartView())
	told, err := a.traceOf(t.Context(), "cart", strings.ToUpper("4bf92f3577b34da6a3ce929d0e0e4736"))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := told.write(&text); err != nil {
		t.Fatal(err)
	}
	golden.File(t, "testdata/trace-id.txt", text.String())
	if _, err := a.traceOf(t.Context(), "cart", "0"); err == nil || !strings.Contains(err.Error(), "only the newest 20") {
		t.Errorf("an id that nobody knows: %v", err)
	}
}

func TestTrace(t *testing.T) {
	v := cartView()
	cold := &traced{Service: "cart", URL: "http://cart.shop.example.org/", TraceID: v.ColdStarts[0].TraceID, Began: ago(12 * time.Second), Gateway: "192.0.2.7:80", Status: 200,
		ConnectMs: 1.5, FirstByteMs: 1242, TotalMs: 1243, Modes: modes{{"cart-00002", "Proxy", 0}}, Cold: &v.ColdStarts[0],
		Steps: serverTiming([]string{`ebb-pod;dur=1220.5;desc=announcement, db;dur=53;desc="the ` + "\x1b" + `[2J query", ,x;dur=-1`})}
	warm := &traced{Service: "cart", URL: "http://cart.shop.example.org/", TraceID: "0af7651916cd43dd8448eb211c80319c", Began: now, Gateway: "192.0.2.7:80", Status: 503,
		ConnectMs: 1, FirstByteMs: 12, TotalMs: 12.5, Modes: modes{{"cart-00001", "Serve", 3}, {"cart-00002", "Proxy", 1}}, Note: "The response broke off: unexpected EOF",
		Call: &view.Call{Revision: "cart-00001", Pod: "cart-00001-deployment-a", WaitedMs: 0.4, RanMs: 9}}
	var text bytes.Buffer
	waiting := &traced{Service: "cart", URL: "http://cart.shop.example.org/", TraceID: "0af7651916cd43dd8448eb211c80319c", Began: now, Gateway: "192.0.2.7:80", Status: 200,
		ConnectMs: 1, FirstByteMs: 9580, TotalMs: 9582, Modes: modes{{"cart-00001", "Proxy", 3}}, Call: &view.Call{Revision: "cart-00001", Pod: "cart-00001-deployment-a", RanMs: 9}}
	for _, told := range []*traced{cold, warm, waiting} {
		if err := told.write(&text); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&text, "----")
	}
	golden.File(t, "testdata/trace.txt", text.String())
}

func TestARequestIsTimedOnItsWayThroughTheGateway(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "cart.shop.invalid" || r.URL.RequestURI() != "/a?b=c" || len(r.Header.Get("Traceparent")) != 55 {
			w.WriteHeader(http.StatusTeapot)
		}
		w.Header().Set("Server-Timing", "app;dur=3")
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
	}))
	defer gateway.Close()
	o := traceOptions{path: "/a?b=c", gateway: strings.TrimPrefix(gateway.URL, "http://"), timeout: time.Minute}
	told, err := send(t.Context(), "http", "cart.shop.invalid", o)
	if err != nil || told.Status != 302 || told.Gateway != o.gateway || len(told.Steps) != 1 || told.FirstByteMs < told.ConnectMs || told.TotalMs < told.FirstByteMs {
		t.Errorf("%+v %v", told, err)
	}
	gateway.Close()
	if _, err := send(t.Context(), "http", "cart.shop.invalid", o); err == nil || !strings.Contains(err.Error(), "the gateway at "+o.gateway) {
		t.Errorf("a gateway that is away: %v", err)
	}
	if err := whyNotSent(context.DeadlineExceeded, "h", o); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no response within 1m0s") {
		t.Error(err)
	}
}

func TestLimitsAreReadInEverySpelling(t *testing.T) {
	r := &serving.Revision{}
	r.Annotations = map[string]string{"autoscaling.knative.dev/maxScale": "5", "autoscaling.knative.dev/min-scale": "1"}
	if got := strings.Join(limits(r), ", "); got != "min-scale 1, max-scale 5" {
		t.Errorf("got %q", got)
	}
}
