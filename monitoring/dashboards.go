package main

// of selects the chosen services.
const of = `{k8s_namespace_name=~"$namespace",kn_service_name=~"$service"}`

// one line with a legend.
func line(legend, expr string) []query { return []query{{legend, expr}} }

// ofAllPods is the target of a pod times the pods that are ready.
func ofAllPods(target string) string {
	one := "max by (" + revision + ") ("
	return sumBy("kn_revision_name", one+target+of+") * "+one+"kn_revision_pods_count"+of+")")
}

const revisionLegend = "{{kn_revision_name}}"

var dashboards = []dashboard{service, coldStarts, controlPlane}

var service = dashboard{
	file: "service", title: "Ebb / Service", description: "What a Service gets, what it needs and why it has as many pods as it has.", ofServices: true,
	panels: []panel{
		{title: "Requests by status", unit: "reqps", stacked: true, description: "Requests that ended, seen by the pods' queue-proxy. Needs request-metrics-protocol: prometheus.",
			queries: line("{{http_response_status_code}}", sumBy("http_response_status_code", rate("kn_serving_invocation_duration_seconds_count"+of)))},
		{title: "Response time", unit: "s", description: "From the end of a request's head to the end of its response, in the pod.",
			queries: quantiles("kn_serving_invocation_duration_seconds_bucket"+of, "", 0.5, 0.9, 0.99)},
		{title: "Requests without a 5xx", unit: "percentunit", description: "The share of requests of the last five minutes, by revision.",
			queries: line(revisionLegend, "1 - revision:ebb_request_failures:rate5m"+of+" / (revision:ebb_requests:rate5m"+of+" > 0)")},
		{title: "In flight and queued", unit: "short", description: "At the activators, and in the queues of pods at their concurrency limit.",
			queries: []query{
				{"at a pod, through an activator", "sum(kn_revision_request_active" + of + ")"},
				{"queued in an activator", "sum(kn_revision_request_queued" + of + ")"},
				{"queued in a pod", "sum(kn_serving_queue_depth" + of + ")"},
			}},
		{title: "Pods", unit: "short", description: "Asked for within the bounds, ready, not ready, pending and terminating.",
			queries: []query{
				{"asked for", "sum(kn_revision_pods_requested" + of + ")"},
				{"ready", "sum(kn_revision_pods_count" + of + ")"},
				{"not ready", "sum(kn_revision_pods_not_ready_count" + of + ")"},
				{"pending", "sum(kn_revision_pods_pending_count" + of + ")"},
				{"terminating", "sum(kn_revision_pods_terminating_count" + of + ")"},
			}},
		{title: "Pods that sleep", unit: "short", stacked: true, description: "By level; see docs/standby.md.",
			queries: line("{{level}}", sumBy("level", "ebb_revision_pods_asleep"+of))},
		{title: "Concurrency and target", unit: "short", description: "Averages over the stable and the panic window, and what the ready pods should have together.",
			queries: []query{
				{"stable " + revisionLegend, sumBy("kn_revision_name", "kn_revision_concurrency_stable"+of)},
				{"panic " + revisionLegend, sumBy("kn_revision_name", "kn_revision_concurrency_panic"+of)},
				{"target of all pods " + revisionLegend, ofAllPods("kn_revision_concurrency_target")},
			}},
		{title: "Requests per second and target", unit: "reqps", description: "The same, of revisions that scale by requests per second.",
			queries: []query{
				{"stable " + revisionLegend, sumBy("kn_revision_name", "kn_revision_rps_stable"+of)},
				{"panic " + revisionLegend, sumBy("kn_revision_name", "kn_revision_rps_panic"+of)},
				{"target of all pods " + revisionLegend, ofAllPods("kn_revision_rps_target")},
			}},
		{title: "Why that many pods", unit: "none", kind: "state-timeline", description: "The rule that brought the latest decision about; docs/autoscaling.md lists them.",
			queries: line(revisionLegend+" {{rule}}", "max by (kn_revision_name, rule) (ebb_revision_decision_rule"+of+")")},
		{title: "Panic, and spare capacity", unit: "short", description: "1 while the panic window decides. Below zero spare capacity, requests go through the activators.",
			queries: []query{
				{"panic " + revisionLegend, "max by (kn_revision_name) (kn_revision_panic_mode" + of + ")"},
				{"spare " + revisionLegend, "max by (kn_revision_name) (kn_revision_capacity_excess" + of + ")"},
			}},
		{title: "Requests that did not complete", unit: "reqps", stacked: true, description: "By cause, seen by the activators and by the pods. replied: answered by Ebb itself.",
			queries: []query{
				{"activator: {{cause}}", sumBy("cause", rate("ebb_activator_requests_not_completed_total"+of))},
				{"pod: {{cause}}", sumBy("cause", rate("ebb_requests_not_completed_total"+of))},
			}},
		{title: "Full pods that sent a request on", unit: "reqps", description: "It went to the next pod; nothing is lost.",
			queries: line(revisionLegend, sumBy("kn_revision_name", rate("ebb_activator_refused_by_pod_total"+of)))},
	},
}

var coldStarts = dashboard{
	file: "cold-starts", title: "Ebb / Cold starts", description: "How often requests wait for a pod from zero, for how long, and where that time goes.", ofServices: true,
	panels: []panel{
		{title: "Cold starts", unit: "short", stacked: true, description: "Requests in five minutes that waited for a pod from zero.",
			queries: line("{{kn_service_name}}", sumBy("kn_service_name", "increase(ebb_cold_start_total_seconds_count"+of+"[5m])"))},
		{title: "Duration", unit: "s", description: "From the arrival of a request to the begin of its response.",
			queries: quantiles("ebb_cold_start_total_seconds_bucket"+of, "", 0.5, 0.95)},
		{title: "Where the time goes", unit: "s", stacked: true, description: "Mean of each phase; docs/autoscaling.md explains them.",
			queries: line("{{phase}}", sumBy("phase", rate("ebb_cold_start_seconds_sum"+of))+" / on () group_left () (sum("+rate("ebb_cold_start_total_seconds_count"+of)+") > 0)")},
		{title: "Slowest phases", unit: "s", description: "The 95th percentile of each phase.",
			queries: quantiles("ebb_cold_start_seconds_bucket"+of, "phase", 0.95)},
		{title: "Compared with the last day", unit: "s", description: "Means of half an hour and of a day.",
			queries: []query{
				{"half an hour {{kn_service_name}}", "service:ebb_cold_start_seconds:mean30m" + of},
				{"a day {{kn_service_name}}", "service:ebb_cold_start_seconds:mean1d" + of},
			}},
		{title: "Requests that waited for a pod", unit: "reqps", description: "From zero or because all pods were full.",
			queries: line("{{kn_service_name}}", sumBy("kn_service_name", rate("ebb_activator_held_requests_total"+of)))},
		{title: "From the queue to the scale", unit: "s", description: "99th percentile: from a stat to the decision that counts it, and from the news to the end of the write of the scale.",
			queries: append(quantiles("ebb_autoscaler_stat_decision_seconds_bucket", "", 0.99), quantiles("ebb_autoscaler_scale_write_seconds_bucket", "", 0.99)...)},
		{title: "Wakes", unit: "s", description: "95th percentile of how long requests waited for a pod that slept, by level.",
			queries: quantiles("ebb_wake_duration_seconds_bucket"+of, "level", 0.95)},
		{title: "With a pull", unit: "short", description: "Cold starts in five minutes whose node did not have an image of the pod and pulled it for a second or more.",
			queries: line("{{kn_service_name}}", sumBy("kn_service_name", "increase(ebb_cold_starts_with_pull_total"+of+"[5m])"))},
		{title: "Without breakdown", unit: "short", description: "Cold starts of which the autoscaler could not say when the pod was asked for: that time is in pull.",
			queries: line("in five minutes", "sum(increase(ebb_activator_cold_starts_without_breakdown_total[5m]))")},
	},
}

const components = `{job=~"(activator|autoscaler|controller|webhook)-sm-service|node-agent"}`

var controlPlane = dashboard{
	file: "control-plane", title: "Ebb / Control plane", description: "Ebb's own parts: whether they run, what they use and what they refuse.",
	panels: []panel{
		{title: "Replicas that answer", unit: "short", queries: line("{{job}}", sumBy("job", "up"+components))},
		{title: "Alerts", unit: "short", description: "Alerts of Ebb that fire.", queries: line("{{alertname}}", sumBy("alertname", `ALERTS{alertname=~"Ebb.*",alertstate="firing"}`))},
		{title: "Leases without a holder", unit: "short", description: "Above zero nothing decides for the revisions of the Lease.",
			queries: line("{{component}}", "max by (component) (ebb_leases) - sum by (component) (ebb_leases_held)")},
		{title: "CPU", unit: "short", description: "Processors in use.", queries: line("{{job}}", "component:ebb_cpu:rate5m")},
		{title: "Memory", unit: "bytes", description: "Resident memory that no file backs.", queries: line("{{job}}", sumBy("job", "process_anonymous_memory_bytes"+components))},
		{title: "Certificates", unit: "s", description: "How long each is valid yet.", queries: line("{{certificate}}", "min by (certificate) (ebb_certificate_end_timestamp_seconds) - time()")},
		{title: "Activator: memory of requests", unit: "bytes", description: "Queued and in flight; the limit is EBB_HOLD_BYTES.", queries: line("{{instance}}", sumBy("instance", "ebb_activator_held_bytes"))},
		{title: "Activator: refused and cut", unit: "reqps", description: "EBB_HOLD_* was reached; what was no HTTP; connections closed for others.",
			queries: []query{
				{"limit reached", "sum(" + rate("ebb_activator_rejected_requests_total") + ")"},
				{"no HTTP", "sum(" + rate("ebb_activator_malformed_requests_total") + ")"},
				{"connections closed", "sum(" + rate("ebb_activator_evicted_connections_total") + ")"},
				{"panics", "sum(" + rate("ebb_activator_panics_total") + ")"},
			}},
		{title: "Activator: announcements of pods", unit: "short", description: "A second, by outcome.", queries: line("{{outcome}}", sumBy("outcome", rate("ebb_activator_announcements_total")))},
		{title: "Activator: autoscaler reached", unit: "short", description: "1 if the autoscaler took the last report.", queries: line("{{instance}}", "min by (instance) (kn_activator_stats_conn_reachable)")},
		{title: "Autoscaler: stats", unit: "short", description: "A second: counted, and refused by reason.",
			queries: []query{
				{"{{reason}}", sumBy("reason", rate("ebb_autoscaler_stats_total"))},
				{"refused: {{reason}}", sumBy("reason", rate("ebb_autoscaler_stats_refused_total")) + " > 0 or " + sumBy("reason", rate("ebb_autoscaler_stats_refused_total")) + " * 0"},
			}},
		{title: "Autoscaler: orders", unit: "short", description: "A second, by outcome.", queries: line("{{reason}}", sumBy("reason", rate("ebb_autoscaler_orders_total")))},
		{title: "Autoscaler: scrapes", unit: "s", description: "Time to scrape the sample of one revision's pods.", queries: quantiles("kn_autoscaler_scrape_duration_seconds_bucket", "", 0.5, 0.99)},
		{title: "Controller: reconciles", unit: "short", stacked: true, description: "A second, by outcome.",
			queries: line("{{outcome}}", sumBy("outcome", rate("ebb_controller_reconcile_duration_seconds_count")))},
		{title: "Controller: time of a reconcile", unit: "s", description: "99th percentile.", queries: quantiles("ebb_controller_reconcile_duration_seconds_bucket", "reconciler", 0.99)},
		{title: "Controller: queues", unit: "short", description: "Keys that wait.", queries: line("{{name}}", sumBy("name", "workqueue_depth"))},
		{title: "Webhook: admission", unit: "s", description: "99th percentile.", queries: quantiles("webhook_request_duration_seconds_bucket", "kind", 0.99)},
		{title: "Node agents: work", unit: "s", description: "95th percentile of the time to freeze, to thaw and to compress a pod.", queries: quantiles("ebb_node_agent_work_seconds_bucket", "work", 0.95)},
		{title: "Node agents: pods and guards", unit: "short", description: "Pods that may sleep, and whether the guard watches.",
			queries: []query{
				{"pods at {{instance}}", sumBy("instance", "ebb_node_agent_pods")},
				{"guard at {{instance}}", sumBy("instance", "ebb_node_agent_guarded")},
			}},
	},
}
