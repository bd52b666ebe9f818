package report

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/testing/promtool"
	"ebb.dev/ebb/wire"
)

var hello = loop.Key{Namespace: "default", Name: "hello-00001"}

func entry() loop.Entry {
	return loop.Entry{First: time.Unix(1000, 0), Times: 3, Explanation: revision.Explanation{
		Decision: decide.Decision{Time: time.Unix(1004, 0), Desired: 7, Rule: decide.RuleStable, Target: 7, Total: 10, StableRaw: 7, ExcessBurst: -5,
			Observation: decide.Observation{Ready: 6, Stable: 48, Panic: 50, Known: true}},
		Step: zero.Step{Want: 5, Apply: true, Replicas: 5, Rule: zero.RuleMaxScale, Reason: "max-scale allows 5 of the 7 asked for"}, Busy: 2}}
}

func TestMetricsCarryTheContractsNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	view := loop.View{Key: hello, Spec: &loop.Spec{Service: "hello", Configuration: "hello", Config: revision.Config{Rules: &revision.Rules{BusyFor: time.Minute}}}, Status: revision.Status{Desired: 5, Actual: 6},
		Counts: revision.Counts{Ready: 6, NotReady: 3, Pending: 1, Terminating: 2}, Last: entry()}
	registry.MustRegister(Collector{Each: func(visit func(loop.View)) {
		visit(view)
		visit(loop.View{Key: loop.Key{Name: "undecided"}, Spec: &loop.Spec{Config: revision.Config{Rules: &revision.Rules{}}}})
	}, Counts: func() []Count { return []Count{{"ebb_autoscaler_stats_refused_total", "x", "forged", 4}} }})
	// The contract's names of numbers of pods end as those of histograms do.
	promtool.CheckMetrics(t, telemetry.Metrics(registry), "kn_revision_pods_count", "kn_revision_pods_not_ready_count", "kn_revision_pods_pending_count",
		"kn_revision_pods_terminating_count")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			got[f.GetName()] = value
			var names []string
			for _, l := range m.Label {
				names = append(names, l.GetName()+"="+l.GetValue())
			}
			all := strings.Join(names, ",")
			if strings.HasPrefix(f.GetName(), "kn_") && all != "k8s_namespace_name=default,kn_configuration_name=hello,kn_revision_name=hello-00001,kn_service_name=hello" {
				t.Errorf("%s has labels %s", f.GetName(), all)
			}
			if f.GetName() == "ebb_revision_decision_rule" && !strings.Contains(all, "rule=max-scale") {
				t.Errorf("%s has labels %s", f.GetName(), all)
			}
		}
	}
	for name, want := range map[string]float64{
		"kn_revision_pods_desired": 7, "kn_revision_capacity_excess": -5, "kn_revision_panic_mode": 0, "kn_revision_pods_requested": 5,
		"kn_revision_pods_count": 6, "kn_revision_pods_not_ready_count": 3, "kn_revision_pods_pending_count": 1, "kn_revision_pods_terminating_count": 2,
		"kn_revision_concurrency_stable": 48, "kn_revision_concurrency_panic": 50, "kn_revision_concurrency_target": 7,
		"ebb_revision_pods_busy": 2, "ebb_revision_decision_rule": 1, "ebb_autoscaler_stats_refused_total": 4,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v (%v), want %v", name, value, ok, want)
		}
	}
}

// Knative's exporter adds the unit to one name.
func TestTheStableRateHasBothSpellings(t *testing.T) {
	registry := prometheus.NewRegistry()
	view := loop.View{Key: hello, Spec: &loop.Spec{Config: revision.Config{Rules: &revision.Rules{}}}, Last: entry()}
	view.Last.Decision.Metric, view.Last.Decision.Observation.Stable = decide.RequestsPerSecond, 90
	registry.MustRegister(Collector{Each: func(visit func(loop.View)) { visit(view) }, Counts: func() []Count { return nil }})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range families {
		if name := f.GetName(); name == "kn_revision_rps_stable" || name == "kn_revision_rps_stable_per_second" {
			found++
			if got := f.Metric[0].GetGauge().GetValue(); got != 90 {
				t.Errorf("%s is %v", name, got)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d spellings", found)
	}
}

func TestBirthsAreToldByWhoDecides(t *testing.T) {
	asked := time.Unix(1000, 5e6).UTC()
	looked := 0
	b := Births{
		Peers: peers(),
		Of: func(key loop.Key, pod string) wire.Birth {
			switch {
			case key != hello:
			case pod == "p-1":
				return wire.Birth{Asked: asked}
			case pod == "p-3" || pod == "p-4":
				return wire.Birth{Asked: asked, Scheduled: asked, Started: asked.Add(slow)}
			case pod == "quick":
				return wire.Birth{Asked: asked, Scheduled: asked, Started: asked.Add(slow - 1)}
			}
			return wire.Birth{}
		},
		Pulled: func(_ context.Context, namespace, pod string) bool {
			looked++
			return namespace == "default" && pod == "p-3"
		},
		Owner: func(loop.Key) (string, bool) { return "", true },
	}
	get := func(method, path string) *httptest.ResponseRecorder {
		response := httptest.NewRecorder()
		b.ServeHTTP(response, fromInside(method, path))
		return response
	}
	response := get("GET", "/births/default/hello-00001/p-1")
	if birth, err := wire.DecodeBirth(response.Body); err != nil || !birth.Asked.Equal(asked) || !birth.Scheduled.IsZero() {
		t.Errorf("got %+v %v", birth, err)
	}
	// The API server is asked of those alone that started slowly.
	for pod, want := range map[string]bool{"p-3": true, "p-4": false, "quick": false} {
		if birth, err := wire.DecodeBirth(get("GET", "/births/default/hello-00001/"+pod).Body); err != nil || birth.Pulled != want {
			t.Errorf("%s: pulled %v, %v", pod, birth.Pulled, err)
		}
	}
	if looked != 2 {
		t.Errorf("the API server was asked %d times", looked)
	}
	for request, want := range map[string]int{"GET /births/default/hello-00001/p-2": 404, "GET /births/default/hello-00001": 400,
		"POST /births/default/hello-00001/p-1": 400, "GET /births/a/b/c/d": 400} {
		method, path, _ := strings.Cut(request, " ")
		if got := get(method, path).Code; got != want {
			t.Errorf("%s: %d, want %d", request, got, want)
		}
	}
	b.Owner = func(loop.Key) (string, bool) { return "no address", false }
	if got := get("GET", "/births/default/hello-00001/p-1").Code; got < 400 {
		t.Errorf("the replica that decides does not answer: %d", got)
	}
	if got := get("GET", "/births/default/hello-00001/p-1?forwarded=1").Code; got != 200 {
		t.Errorf("a question that was passed on is passed on again: %d", got)
	}
}

func key() []byte { return []byte("key") }

func peers() *Peers {
	return &Peers{Keys: func() wire.Keys { return wire.Keys{Current: key(), Accepted: [][]byte{key()}} }}
}

// fromInside is a request that came from inside the pod.
func fromInside(method, path string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = "127.0.0.1:40000"
	return r
}

func TestANeighbourDoesNotReadOfOtherTenants(t *testing.T) {
	owner := func(loop.Key) (string, bool) { return "", true }
	b := Births{Peers: peers(), Of: func(loop.Key, string) wire.Birth { return wire.Birth{Asked: time.Unix(1, 0)} }, Owner: owner}
	for _, c := range []struct {
		who, from, token string
		status           int
	}{
		{"a neighbour", "10.1.2.3:40000", "", 401},
		{"with a pod's token", "10.1.2.3:40000", wire.Token(key(), "default", "hello-00001"), 401},
		{"with a made-up token", "10.1.2.3:40000", "x", 401},
		{"an activator", "10.1.2.3:40000", wire.Token(key(), "", wire.ActivatorSubject), 200},
		{"inside the pod", "127.0.0.1:40000", "", 200},
		{"the same over IPv6", "[::1]:40000", "", 200},
	} {
		for path, handler := range map[string]http.Handler{"/births/default/hello-00001/p-1": b} {
			request := httptest.NewRequest("GET", path, nil)
			request.RemoteAddr = c.from
			if c.token != "" {
				if err := new(wire.Signer).Sign(request, c.token); err != nil {
					t.Fatal(err)
				}
			}
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			if answer.Code != c.status {
				t.Errorf("%s, %s: %d, want %d", c.who, path, answer.Code, c.status)
			}
		}
	}
}
