package coldstart

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/internal/testing/promtool"
	"ebb.dev/ebb/wire"
)

func at(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }

func TestThePhasesOfAColdStartSumToItsTotal(t *testing.T) {
	announced := backends.Birth{Known: at(1560), Started: at(1400), Answered: at(1550)}
	for _, c := range []struct {
		name  string
		birth backends.Birth
		told  wire.Birth
		want  [6]float64 // decide schedule pull start announce forward
	}{
		{"everybody told", announced, wire.Birth{Asked: at(12), Scheduled: at(40), Started: at(1000)}, [6]float64{.012, .028, 1.36, .15, .01, .04}},
		{"the user's image was pulled after the sidecar ran", backends.Birth{Known: at(9560), Started: at(400), Answered: at(9550)},
			wire.Birth{Asked: at(12), Scheduled: at(40), Started: at(9000)}, [6]float64{.012, .028, 8.96, .55, .01, .04}},
		{"the autoscaler is silent", announced, wire.Birth{}, [6]float64{0, 0, 1.4, .15, .01, .04}},
		{"it knows the node only", announced, wire.Birth{Scheduled: at(40)}, [6]float64{0, .04, 1.36, .15, .01, .04}},
		{"the pod was known by Kubernetes", backends.Birth{Known: at(1560)}, wire.Birth{Asked: at(12), Scheduled: at(40), Started: at(1000)},
			[6]float64{.012, .028, 1.52, 0, 0, .04}},
		{"the node's clock is ahead", backends.Birth{Known: at(1560), Started: at(5000), Answered: at(5100)},
			wire.Birth{Asked: at(12), Scheduled: at(40)}, [6]float64{.012, .028, 1.52, 0, 0, .04}},
		{"the node's clock is behind", backends.Birth{Known: at(1560), Started: at(-5000), Answered: at(-4900)},
			wire.Birth{Asked: at(12), Scheduled: at(40)}, [6]float64{.012, .028, 0, 0, 1.52, .04}},
		{"the pod had been asked for before the request came", announced, wire.Birth{Asked: at(-500), Scheduled: at(-400)},
			[6]float64{0, 0, 1.4, .15, .01, .04}},
		{"known before the request came", backends.Birth{Known: at(-10)}, wire.Birth{}, [6]float64{0, 0, 0, 0, 0, 1.6}},
	} {
		end := at(1600)
		if c.birth.Known.After(end) {
			end = at(9600)
		}
		sum := 0.0
		for i, got := range Split(at(0), c.birth, c.told, end) {
			sum += got
			if math.Abs(got-c.want[i]) > 1e-9 {
				t.Errorf("%s: %s is %v, want %v", c.name, Phases[i], got, c.want[i])
			}
		}
		if total := end.Sub(at(0)).Seconds(); math.Abs(sum-total) > 1e-9 {
			t.Errorf("%s: the phases sum to %v, the total is %v", c.name, sum, total)
		}
	}
}

func exposition(t *testing.T, a *Accounts) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := a.Register(registry); err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	response := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(response, request)
	return response.Body.String()
}

func TestThePodsOfOneWaveAreAskedForOnceAndLeaveExemplars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		var asked atomic.Int64
		a := New(func(_ context.Context, key backends.Key, pod string) (wire.Birth, error) {
			asked.Add(1)
			if pod == "unknown" {
				return wire.Birth{}, errors.New("nobody knows it")
			}
			return wire.Birth{Asked: now.Add(10 * time.Millisecond), Scheduled: now.Add(30 * time.Millisecond), Pulled: pod == "p-1"}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		birth := backends.Birth{Known: now.Add(500 * time.Millisecond), Started: now.Add(300 * time.Millisecond), Answered: now.Add(490 * time.Millisecond)}
		for _, pod := range []string{"p-1", "p-1", "p-1", "unknown"} {
			a.open <- account{key: backends.Key{Namespace: "ns", Name: "rev"}, service: "svc", pod: pod, trace: strings.Repeat("a", 32), received: now,
				end: now.Add(time.Second), birth: birth}
		}
		time.Sleep(2 * settled)
		synctest.Wait()
		if asked.Load() != 2 || a.Unsplit.Load() != 1 {
			t.Errorf("asked %d times, %d unsplit", asked.Load(), a.Unsplit.Load())
		}
		a.open <- account{key: backends.Key{Namespace: "ns", Name: "rev"}, service: "svc", pod: "p-2", received: time.Now(), end: time.Now(), birth: birth}
		synctest.Wait()
		cancel()
		<-done // closes what is open
		// The labels of an exemplar come in any order.
		text := strings.ReplaceAll(exposition(t, a), `# {trace_id="`+strings.Repeat("a", 32)+`",pod="p-1"}`, `# {pod="p-1",trace_id="`+strings.Repeat("a", 32)+`"}`)
		for _, want := range []string{
			`ebb_cold_start_seconds_count{k8s_namespace_name="ns",kn_revision_name="rev",kn_service_name="svc",phase="decide"} 5`,
			`ebb_cold_start_total_seconds_count{k8s_namespace_name="ns",kn_revision_name="rev",kn_service_name="svc"} 5`,
			`# {pod="p-1",trace_id="` + strings.Repeat("a", 32) + `"} 0.01 `,
			`le="300.0"`,
			`ebb_cold_starts_with_pull_total{k8s_namespace_name="ns",kn_revision_name="rev",kn_service_name="svc"} 3`,
			`faas_coldstarts_total{faas_trigger="http",k8s_namespace_name="ns",kn_revision_name="rev",kn_service_name="svc"} 5`,
			`faas_init_duration_seconds_count{faas_trigger="http",k8s_namespace_name="ns",kn_revision_name="rev",kn_service_name="svc"} 5`,
			`faas_init_duration_seconds_bucket{faas_trigger="http",k8s_namespace_name="ns",kn_revision_name="rev",kn_service_name="svc",le="0.5"} 5`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s is missing from\n%s", want, text)
			}
		}
	})
}

// However many revisions start from zero, the number of series is bounded: those without room count
// for their namespace, and a revision that has not started for long makes room.
func TestTheNumberOfSeriesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(nil)
		start := func(revision string) {
			a.close(account{key: backends.Key{Namespace: "ns", Name: revision}, service: revision, pod: "p", received: time.Now(),
				end: time.Now()}, wire.Birth{})
		}
		for i := range 3 * maxShown {
			start(fmt.Sprint("rev-", i))
		}
		count := func() (own int, other bool) {
			text := exposition(t, a)
			if n := strings.Count(text, "faas_init_duration_seconds_count"); n != strings.Count(text, "faas_coldstarts_total{") || n > maxShown+1 {
				t.Errorf("%d revisions under OpenTelemetry's names", n)
			}
			return strings.Count(text, "ebb_cold_start_total_seconds_count"),
				strings.Contains(text, fmt.Sprintf(`ebb_cold_start_total_seconds_count{k8s_namespace_name="ns",kn_revision_name="",kn_service_name=""} %d`, 2*maxShown))
		}
		if n, other := count(); n != maxShown+1 || !other {
			t.Errorf("%d series, want %d and one for the others", n, maxShown)
		}
		time.Sleep(2 * shownFor)
		start("new")
		if n, _ := count(); n != maxShown+1 || !strings.Contains(exposition(t, a), `kn_revision_name="new"`) {
			t.Errorf("%d series after an hour", n)
		}
	})
}

func TestPromtoolTakesTheMetrics(t *testing.T) {
	a, registry := New(nil), prometheus.NewRegistry()
	if err := a.Register(registry); err != nil {
		t.Fatal(err)
	}
	a.close(account{key: backends.Key{Namespace: "ns", Name: "rev"}, service: "svc", pod: "p", received: time.Now(), end: time.Now()}, wire.Birth{})
	promtool.CheckMetrics(t, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}

func TestTraceID(t *testing.T) {
	id := "4bf92f3577b34da6a3ce929d0e0e4736"
	for parent, want := range map[string]string{
		"00-" + id + "-00f067aa0ba902b7-01": id, "": "", "00-short-00f067aa0ba902b7-01": "", "00-" + strings.ToUpper(id) + "-0-1": "", id: "",
	} {
		if got := traceID(parent); got != want {
			t.Errorf("%q: got %q", parent, got)
		}
	}
}
