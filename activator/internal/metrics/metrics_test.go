package metrics

import (
	"math"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/activator/internal/announce"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/report"
)

// Dashboards hang on these names: a change here breaks somebody's.
func TestTheNamesOfMetrics(t *testing.T) {
	budget := hold.NewBudget(hold.Bounds{})
	table := backends.NewTable(func(backends.Key, *backends.Info) (*hold.Queue, any) {
		return hold.New(0, budget, hold.Options{}), &chain.Load{}
	})
	table.SetRevision(backends.Key{Namespace: "ns", Name: "idle"}, &backends.Info{UID: "1"})
	table.SetRevision(backends.Key{Namespace: "ns", Name: "busy"}, &backends.Info{UID: "2", Service: "svc", Configuration: "cfg"})
	table.Get(backends.Key{Namespace: "ns", Name: "busy"}).Data.(*chain.Load).Requests[2].Add(3)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&Sources{Table: table, Budget: budget, Announce: &announce.Server{}, Report: &report.Reporter{},
		Rejected: func() int64 { return 0 }, Untrusted: new(atomic.Int64)})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "idle" {
					t.Errorf("%s is shown for a revision that never had a request", f.GetName())
				}
			}
		}
	}
	sort.Strings(names)
	want := `ebb_activator_announcements_total ebb_activator_held ebb_activator_held_bytes ebb_activator_held_requests_total
		ebb_activator_malformed_requests_total ebb_activator_pods ebb_activator_refused_by_pod_total ebb_activator_requests_total
		ebb_activator_turned_away_total ebb_activator_untrusted_pods_total kn_activator_stats_conn_errors_total kn_activator_stats_conn_reachable
		kn_revision_request_active kn_revision_request_concurrency kn_revision_request_queued`
	if got := strings.Join(names, " "); got != strings.Join(strings.Fields(want), " ") {
		t.Errorf("got %s", got)
	}
}

func TestThePhasesOfAColdStartSumToItsTotal(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		name  string
		birth backends.Birth
		want  [4]float64 // pod start announce forward
	}{
		{"announced", backends.Birth{Known: at(560), Started: at(400), Answered: at(550)}, [4]float64{.4, .15, .01, .04}},
		{"by Kubernetes", backends.Birth{Known: at(560)}, [4]float64{.56, 0, 0, .04}},
		{"the node's clock is ahead", backends.Birth{Known: at(560), Started: at(5000), Answered: at(5100)}, [4]float64{.56, 0, 0, .04}},
		{"the node's clock is behind", backends.Birth{Known: at(560), Started: at(-5000), Answered: at(-4900)}, [4]float64{0, 0, .56, .04}},
		{"known before the request came", backends.Birth{Known: at(-10)}, [4]float64{0, 0, 0, .6}},
	} {
		got := Phases(at(0), c.birth, at(600))
		sum := 0.0
		for i, phase := range []string{"pod", "start", "announce", "forward"} {
			sum += got[phase]
			if math.Abs(got[phase]-c.want[i]) > 1e-9 {
				t.Errorf("%s: %s is %v, want %v", c.name, phase, got[phase], c.want[i])
			}
		}
		if math.Abs(sum-got["total"]) > 1e-9 || math.Abs(sum-.6) > 1e-9 {
			t.Errorf("%s: the phases sum to %v, total is %v", c.name, sum, got["total"])
		}
	}
}
