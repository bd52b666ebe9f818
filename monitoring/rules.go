package main

import (
	"fmt"
	"strings"
)

// A group is evaluated in order, all of it at the same moment.
type group struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

// A rule records a series or is an alert.
type rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// revision are the labels that name a revision.
const revision = "k8s_namespace_name, kn_service_name, kn_revision_name"

// records are what dashboards and alerts read more than once.
var records = []rule{
	record("revision:ebb_requests:rate5m", `sum by (`+revision+`) (rate(kn_serving_invocation_duration_seconds_count[5m]))`),
	record("revision:ebb_request_failures:rate5m",
		`sum by (`+revision+`) (rate(kn_serving_invocation_duration_seconds_count{http_response_status_code=~"5.."}[5m]))
  or 0 * revision:ebb_requests:rate5m`),
	record("revision:ebb_request_duration_seconds:p99_5m",
		`histogram_quantile(0.99, sum by (le, `+revision+`) (rate(kn_serving_invocation_duration_seconds_bucket[5m])))`),
	record("service:ebb_cold_starts:increase30m",
		`sum by (k8s_namespace_name, kn_service_name) (increase(ebb_cold_start_total_seconds_count[30m]))`),
	record("service:ebb_cold_start_seconds:mean30m", meanColdStart("30m")),
	record("service:ebb_cold_start_seconds:mean1d", meanColdStart("1d")),
	record("component:ebb_cpu:rate5m", `sum by (job) (rate(process_cpu_seconds_total{job=~"(activator|autoscaler|controller|webhook)-sm-service|node-agent"}[5m]))`),
}

func record(name, expr string) rule { return rule{Record: name, Expr: expr} }

func meanColdStart(window string) string {
	by := "sum by (k8s_namespace_name, kn_service_name) "
	return by + "(rate(ebb_cold_start_total_seconds_sum[" + window + "]))\n  / (" + by + "(rate(ebb_cold_start_total_seconds_count[" + window + "])) > 0)"
}

// Severities: critical is lost or delayed requests now, warning is what becomes that.
const (
	critical = "critical"
	warning  = "warning"
)

// alert makes an alert whose page in docs/runbooks has the given name.
func alert(name, page, severity, wait, summary, expr string) rule {
	return rule{Alert: name, Expr: expr, For: wait, Labels: map[string]string{"severity": severity},
		Annotations: map[string]string{"summary": summary, "runbook_url": runbooks + page + ".html"}}
}

// runbooks is where the site (make docs) has docs/runbooks.
const runbooks = "https://ebb.dev/docs/runbooks/"

const named = "{{ $labels.k8s_namespace_name }}/{{ $labels.kn_revision_name }}"

var alerts = []rule{
	alert("EbbRequestsLost", "requests-lost", critical, "",
		"{{ printf `%.0f` $value }} requests of "+named+" got no or a broken response in ten minutes.",
		`sum by (`+revision+`) (increase(ebb_activator_requests_not_completed_total{cause="upstream-failed"}[10m])) > 0
or sum by (`+revision+`) (increase(ebb_requests_not_completed_total{cause="upstream-failed"}[10m])) > 0`),
	alert("EbbStuckAtZero", "stuck-at-zero", critical, "2m",
		"{{ printf `%.0f` $value }} requests of "+named+" wait, and it has no pod.",
		`sum by (`+revision+`) (kn_revision_request_queued) > 0
and sum by (`+revision+`) (ebb_activator_pods) == 0`),
	alert("EbbScaleUpLimited", "scale-up-limited", warning, "10m",
		named+" needs more pods than it has; the limit: {{ $labels.limit }}.",
		`label_replace(max by (`+revision+`) (ebb_revision_decision_rule{rule="max-scale"}) == 1, "limit", "max-scale", "", "")
or label_replace(max by (`+revision+`) (kn_revision_pods_pending_count) > 0, "limit", "nodes", "", "")`),
	alert("EbbRequestsRefused", "requests-refused", warning, "2m",
		"The activator answers {{ printf `%.1f` $value }} requests a second of "+named+" itself, without a pod.",
		`sum by (`+revision+`) (rate(ebb_activator_requests_not_completed_total{cause="replied"}[5m])) > 0`),
	alert("EbbColdStartsSlow", "cold-starts-slow", warning, "",
		"Cold starts of {{ $labels.k8s_namespace_name }}/{{ $labels.kn_service_name }} take {{ printf `%.1f` $value }} s, twice as long as in the last day.",
		`service:ebb_cold_start_seconds:mean30m > 2 * service:ebb_cold_start_seconds:mean1d
and service:ebb_cold_start_seconds:mean30m > 1
and service:ebb_cold_starts:increase30m >= 5`),
	alert("EbbNodeAgentDown", "node-agent-down", warning, "5m",
		"The node agent at {{ $labels.instance }} does not answer, or its guard is away: pods of that node sleep warm.",
		`up{job="node-agent"} == 0
or ebb_node_agent_guarded == 0`),
	alert("EbbRolloutWentBack", "rollout-went-back", warning, "1m",
		"{{ printf `%.0f` $value }} Services of the namespace {{ $labels.k8s_namespace_name }} went back from their latest revision.",
		`max by (k8s_namespace_name) (ebb_rollouts{state="went_back"}) > 0`),
	alert("EbbRolloutStandsStill", "rollout-stands-still", warning, "30m",
		"{{ printf `%.0f` $value }} rollouts of the namespace {{ $labels.k8s_namespace_name }} stand still and may need a person.",
		`max by (k8s_namespace_name) (ebb_rollouts{state="held"}) > 0`),
	alert("EbbCertificateEnds", "certificate-ends", critical, "15m",
		"The certificate {{ $labels.certificate }} is valid for {{ humanizeDuration $value }} more.",
		`min by (certificate) (ebb_certificate_end_timestamp_seconds{certificate="webhook-certs"}) - time() < 12 * 3600
or min by (certificate) (ebb_certificate_end_timestamp_seconds{certificate!="webhook-certs"}) - time() < 3 * 24 * 3600`),
	alert("EbbLeaderMissing", "leader-missing", critical, "2m",
		"No replica of the {{ $labels.component }} holds {{ printf `%.0f` $value }} of its Leases: nothing decides for their revisions.",
		`max by (component) (ebb_leases) - sum by (component) (ebb_leases_held) > 0`),
	alert("EbbComponentDown", "component-down", critical, "2m",
		"No replica behind {{ $labels.job }} answers.",
		down("activator", "autoscaler", "controller", "webhook")),
}

func down(components ...string) string {
	var all []string
	for _, c := range components {
		job := c + "-sm-service"
		all = append(all, fmt.Sprintf(`label_replace(absent(up{job=%q} == 1), "job", %q, "", "")`, job, job))
	}
	return strings.Join(all, "\nor ")
}

// groups are all rules but those with old names.
var groups = []group{{"ebb-records", records}, {"ebb-alerts", alerts}}
