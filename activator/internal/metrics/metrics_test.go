package metrics

import (
	"sort"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/activator/internal/announce"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/cold"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/activator/internal/report"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/testing/promtool"
)

// Dashboards hang on these names: a change here breaks somebody's.
func TestTheNamesOfMetrics(t *testing.T) {
	budget := hold.NewBudget(hold.Bounds{})
	table := backends.NewTable(func(backends.Key, *backends.Info) *hold.Queue {
		return hold.New(0, budget.Share("ns"), hold.Options{})
	})
	table.SetRevision(backends.Key{Namespace: "ns", Name: "idle"}, &backends.Info{UID: "1"})
	table.SetRevision(backends.Key{Namespace: "ns", Name: "busy"}, &backends.Info{UID: "2", Service: "svc", Configuration: "cfg", Cold: &cold.Rules{}})
	busy := table.Get(backends.Key{Namespace: "ns", Name: "busy"}).Load()
	busy.Requests[2].Add(3)
	busy.Answers[bind.AnswerMaxWait].Add(1)
	busy.NotCompleted[forward.UpstreamFailed].Add(1)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&Sources{Table: table, Budget: budget, Announce: &announce.Server{}, Report: &report.Reporter{},
		Rejected: func() int64 { return 0 }, Panics: func() int64 { return 0 }, Evicted: func() int64 { return 0 }, Untrusted: new(atomic.Int64),
		Plans: plans.NewTable("cluster.local"), Unknown: plans.NewRoom(budget.Share("")), Relay: &relay.Table{}})
	promtool.CheckMetrics(t, telemetry.Metrics(registry))
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
	want := `ebb_activator_announcements_total ebb_activator_evicted_connections_total ebb_activator_fallbacks_total ebb_activator_held_bytes ebb_activator_held_requests_total
		ebb_activator_malformed_requests_total ebb_activator_not_woken_requests_total ebb_activator_panics_total ebb_activator_plans ebb_activator_pods ebb_activator_queued_requests
		ebb_activator_refused_by_pod_total ebb_activator_rejected_requests_total ebb_activator_relayed_requests_total ebb_activator_requests_not_completed_total ebb_activator_requests_total
		ebb_activator_revision_rejected_requests_total ebb_activator_unknown_hosts_total ebb_activator_untrusted_pods_total ebb_activator_waiting_pages_total kn_activator_stats_conn_errors_total kn_activator_stats_conn_reachable
		kn_revision_request_active kn_revision_request_concurrency kn_revision_request_queued`
	if got := strings.Join(names, " "); got != strings.Join(strings.Fields(want), " ") {
		t.Errorf("got %s", got)
	}
}
