package main

import (
	"fmt"
	"strings"
)

// oldNames are the names of Knative 1.18 and before, which dashboards of that time read, recorded
// from today's. Nothing is summed up: a counter of each pod stays one.
var oldNames = []group{{"knative-1.18-names", slicesOf(oldGauges(), oldCounters(), oldLatencies())}}

func slicesOf(lists ...[]rule) (all []rule) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// relabel gives a series the old labels beside the new ones.
func relabel(expr string, more ...string) string {
	pairs := append([]string{"namespace_name", "k8s_namespace_name", "service_name", "kn_service_name",
		"configuration_name", "kn_configuration_name", "revision_name", "kn_revision_name"}, more...)
	for i := 0; i < len(pairs); i += 2 {
		expr = fmt.Sprintf(`label_replace(%s, %q, "$1", %q, "(.*)")`, expr, pairs[i], pairs[i+1])
	}
	return expr
}

func oldGauges() (all []rule) {
	for _, pair := range [][2]string{
		{"autoscaler_actual_pods", "kn_revision_pods_count"},
		{"autoscaler_desired_pods", "kn_revision_pods_desired"},
		{"autoscaler_requested_pods", "kn_revision_pods_requested"},
		{"autoscaler_pending_pods", "kn_revision_pods_pending_count"},
		{"autoscaler_not_ready_pods", "kn_revision_pods_not_ready_count"},
		{"autoscaler_terminating_pods", "kn_revision_pods_terminating_count"},
		{"autoscaler_stable_request_concurrency", "kn_revision_concurrency_stable"},
		{"autoscaler_panic_request_concurrency", "kn_revision_concurrency_panic"},
		{"autoscaler_target_concurrency_per_pod", "kn_revision_concurrency_target"},
		{"autoscaler_stable_requests_per_second", "kn_revision_rps_stable"},
		{"autoscaler_panic_requests_per_second", "kn_revision_rps_panic"},
		{"autoscaler_target_requests_per_second", "kn_revision_rps_target"},
		{"autoscaler_excess_burst_capacity", "kn_revision_capacity_excess"},
		{"autoscaler_panic_mode", "kn_revision_panic_mode"},
		{"activator_request_concurrency", "kn_revision_request_concurrency"},
	} {
		all = append(all, record(pair[0], relabel(pair[1])))
	}
	return all
}

func oldCounters() []rule {
	pod := []string{"pod_name", "k8s_pod_name", "response_code", "http_response_status_code"}
	count := class(relabel("kn_serving_invocation_duration_seconds_count", pod...), "http_response_status_code", "(.)..")
	return []rule{
		record("activator_request_count", class(relabel("ebb_activator_requests_total"), "code_class", "(.)")),
		record("revision_request_count", count),
		record("revision_app_request_count", count),
	}
}

// class adds the label response_code_class, such as 2xx.
func class(expr, from, pattern string) string {
	return fmt.Sprintf(`label_replace(%s, "response_code_class", "${1}xx", %q, %q)`, expr, from, pattern)
}

// bounds are the buckets of queue-proxy's histograms, in seconds and in milliseconds.
var bounds = strings.Fields(`0.0005=0.5 0.001=1 0.0025=2.5 0.005=5 0.01=10 0.025=25 0.05=50 0.075=75 0.1=100 0.25=250
	0.5=500 0.75=750 1=1000 2.5=2500 5=5000 7.5=7500 10=10000 30=30000 60=60000 300=300000 +Inf=+Inf`)

// oldLatencies are in milliseconds.
func oldLatencies() (all []rule) {
	const now = "kn_serving_invocation_duration_seconds"
	var buckets []string
	for _, b := range bounds {
		seconds, milliseconds, _ := strings.Cut(b, "=")
		buckets = append(buckets, fmt.Sprintf(`label_replace(%s_bucket{le=%q}, "le", %q, "", "")`, now, seconds, milliseconds))
	}
	for _, old := range []string{"revision_request_latencies", "revision_app_request_latencies"} {
		pod := []string{"pod_name", "k8s_pod_name", "response_code", "http_response_status_code"}
		all = append(all,
			record(old+"_bucket", class(relabel("(\n  "+strings.Join(buckets, "\n  or ")+"\n)", pod...), "http_response_status_code", "(.)..")),
			record(old+"_sum", class(relabel("(1000 * "+now+"_sum)", pod...), "http_response_status_code", "(.)..")),
			record(old+"_count", class(relabel(now+"_count", pod...), "http_response_status_code", "(.)..")))
	}
	return all
}
