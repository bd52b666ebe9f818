package settings

import (
	"slices"

	"ebb.dev/ebb/api/rules"
)

// Key describes one key for people: docs/settings.md and the _example of the shipped ConfigMaps are
// made from it. A test holds that the readers read exactly these keys and that Default is what an
// absent key means.
type Key struct {
	ConfigMap string
	Name      string   // "<domain>" and the like stand for a name the user chooses
	Legacy    []string // older names, still read when Name is absent
	Default   string   // "" = unset
	Bounds    string   // legal values
	Effect    string
}

func legacyNames(configMap, key string) []string {
	for _, k := range keys {
		if k.ConfigMap == configMap && k.Name == key {
			return k.Legacy
		}
	}
	return nil
}

// Keys lists every key in the order in which it is documented.
func Keys() []Key { return slices.Clone(keys) }

// featureKeys are the keys of config-features, from the table that defaulting and validation use.
func featureKeys() []Key {
	var rows []Key
	for _, f := range rules.FeatureTable {
		words := "Enabled, Allowed or Disabled"
		if f.Key == rules.KeySecurePodDefaults {
			words = "Enabled, AllowRootBounded or Disabled"
		}
		rows = append(rows, Key{FeaturesName, string(f.Key), nil, string(f.Default),
			words + ", upper or lower case; another word leaves the default", f.Effect})
	}
	return rows
}

// keys is the table of all keys. It is never written after start.
var keys = slices.Concat([]Key{
	{AutoscalerName, "pod-autoscaler-class", nil, "kpa.autoscaling.knative.dev", "not empty", "Autoscaler class of revisions that name none."},
	{AutoscalerName, "enable-scale-to-zero", nil, "true", "true or false", "false keeps at least one pod of every revision."},
	{AutoscalerName, "allow-zero-initial-scale", nil, "false", "true or false", "Permits initial-scale 0, here and as an annotation."},
	{AutoscalerName, "initial-scale", nil, "1", "0 or more; 0 needs allow-zero-initial-scale", "Pods that must be ready before a new revision counts as initialized."},
	{AutoscalerName, "min-scale", nil, "0", "0 or more", "Pods a reachable revision keeps at least."},
	{AutoscalerName, "max-scale", nil, "0", "0 or more; 1 to max-scale-limit when that is set", "Pods a revision gets at most; 0 is no bound."},
	{AutoscalerName, "max-scale-limit", nil, "0", "0 or more", "Upper bound of max-scale, here and as an annotation; 0 is no bound."},
	{AutoscalerName, "max-scale-up-rate", nil, "1000", "more than 1", "One decision multiplies the ready pods by at most this."},
	{AutoscalerName, "max-scale-down-rate", nil, "2", "more than 1", "One decision divides the ready pods by at most this."},
	{AutoscalerName, "container-concurrency-target-percentage", nil, "70", "more than 0, at most 100; values up to 1 are fractions", "Share of a pod's concurrency that is aimed at."},
	{AutoscalerName, "container-concurrency-target-default", nil, "100", "more than 0; at least 0.01 after the percentage", "Concurrent requests a pod of a revision without a limit is worth."},
	{AutoscalerName, "requests-per-second-target-default", nil, "200", "at least 0.01", "Requests per second a pod is worth when the metric is rps."},
	{AutoscalerName, "target-burst-capacity", nil, "211", "-1, or 0 and more", "Requests of spare capacity below which the activator stays in the path; 0 leaves it as soon as there is a pod, -1 never."},
	{AutoscalerName, "activator-capacity", nil, "100", "at least 1", "Concurrent requests one activator is worth when choosing how many serve a revision."},
	{AutoscalerName, "stable-window", nil, "60s", "6s to 1h, whole seconds", "Window the load is averaged over."},
	{AutoscalerName, "panic-window-percentage", nil, "10", "1 to 100", "Length of the panic window in percent of the stable window."},
	{AutoscalerName, "panic-threshold-percentage", nil, "200", "a number", "Load in percent of the ready capacity that starts panic mode."},
	{AutoscalerName, "scale-to-zero-grace-period", nil, "30s", "more than 0", "Longest wait for the network to be moved to the activator before the last pod goes."},
	{AutoscalerName, "scale-to-zero-pod-retention-period", nil, "0s", "0 or more", "Least time the last pod stays after traffic ended."},
	{AutoscalerName, "scale-down-delay", nil, "0s", "0 or more, whole seconds", "Time over which the highest decision holds before pods are removed."},
	{AutoscalerName, "scale-up-burst", nil, "500", "1 or more", "Pods that one service may add at once; its first pod is always granted."},
	{AutoscalerName, "scale-up-per-second", nil, "50", "more than 0", "Pods a second that one service may add beyond scale-up-burst."},

	{DefaultsName, "revision-timeout-seconds", nil, "300", "1 or more", "timeoutSeconds of a revision that has none."},
	{DefaultsName, "max-revision-timeout-seconds", nil, "600", "at least revision-timeout-seconds", "Largest legal timeoutSeconds."},
	{DefaultsName, "revision-response-start-timeout-seconds", nil, "300", "0 or more; revision-timeout-seconds when absent", "responseStartTimeoutSeconds of a revision that has none; used where it is less than the revision's timeout."},
	{DefaultsName, "revision-idle-timeout-seconds", nil, "0", "0 or more; 0 is off", "idleTimeoutSeconds of a revision that has none; used where it is less than the revision's timeout."},
	{DefaultsName, "response-timeout-action", nil, "end", "end or cut", "What a timer does to a response that has begun: end it cleanly with the trailer Ebb-Timeout, or cut the connection. The annotation serving.ebb.dev/response-timeout-action on a template overrides it."},
	{DefaultsName, "revision-cpu-request", nil, "", "resource quantity", "CPU request of containers that have none."},
	{DefaultsName, "revision-memory-request", nil, "", "resource quantity", "Memory request of containers that have none."},
	{DefaultsName, "revision-ephemeral-storage-request", nil, "", "resource quantity", "Ephemeral storage request of containers that have none."},
	{DefaultsName, "revision-cpu-limit", nil, "", "resource quantity", "CPU limit of containers that have none."},
	{DefaultsName, "revision-memory-limit", nil, "", "resource quantity", "Memory limit of containers that have none."},
	{DefaultsName, "revision-ephemeral-storage-limit", nil, "", "resource quantity", "Ephemeral storage limit of containers that have none."},
	{DefaultsName, "container-name-template", nil, "user-container", "Go template over the object's metadata that gives a DNS label", "Name of a container that has none."},
	{DefaultsName, "init-container-name-template", nil, "init-container", "Go template over the object's metadata that gives a DNS label", "Name of an init container that has none."},
	{DefaultsName, "container-concurrency", nil, "0", "0 to container-concurrency-max-limit; 0 is no limit", "containerConcurrency of a revision that has none."},
	{DefaultsName, "container-concurrency-max-limit", nil, "1000", "1 or more", "Largest legal containerConcurrency."},
	{DefaultsName, "allow-container-concurrency-zero", nil, "true", "true or false", "false makes 1 the smallest legal containerConcurrency."},
	{DefaultsName, "enable-service-links", nil, "false", "true or false; another word leaves the field unset", "enableServiceLinks of a new revision that does not say."},

	{DeploymentName, "queue-sidecar-image", []string{"queueSidecarImage"}, "", "required", "Image of queue-proxy."},
	{DeploymentName, "registries-skipping-tag-resolving", []string{"registriesSkippingTagResolving"}, "kind.local,ko.local,dev.local", "comma-separated host names", "Registries whose tags are used as they are."},
	{DeploymentName, "digest-resolution-timeout", []string{"digestResolutionTimeout"}, "10s", "more than 0", "Longest wait for one tag to be resolved to a digest."},
	{DeploymentName, "progress-deadline", []string{"progressDeadline"}, "600s", "1s or more, whole seconds", "Time a revision has to become ready, and to be activated."},
	{DeploymentName, "queue-sidecar-cpu-request", []string{"queueSidecarCPURequest"}, "25m", "resource quantity", "CPU request of queue-proxy."},
	{DeploymentName, "queue-sidecar-cpu-limit", []string{"queueSidecarCPULimit"}, "", "resource quantity", "CPU limit of queue-proxy."},
	{DeploymentName, "queue-sidecar-memory-request", []string{"queueSidecarMemoryRequest"}, "", "resource quantity", "Memory request of queue-proxy."},
	{DeploymentName, "queue-sidecar-memory-limit", []string{"queueSidecarMemoryLimit"}, "", "resource quantity", "Memory limit of queue-proxy."},
	{DeploymentName, "queue-sidecar-ephemeral-storage-request", []string{"queueSidecarEphemeralStorageRequest"}, "", "resource quantity", "Ephemeral storage request of queue-proxy."},
	{DeploymentName, "queue-sidecar-ephemeral-storage-limit", []string{"queueSidecarEphemeralStorageLimit"}, "", "resource quantity", "Ephemeral storage limit of queue-proxy."},
	{DeploymentName, "queue-sidecar-token-audiences", nil, "", "comma-separated audiences", "Service account tokens mounted into queue-proxy."},
	{DeploymentName, "queue-sidecar-rootca", nil, "", "PEM", "Extra root certificates of queue-proxy."},
	{DeploymentName, "queue-sidecar-tls-min-version", nil, "", "1.2 or 1.3", "Oldest TLS version of queue-proxy."},
	{DeploymentName, "queue-sidecar-tls-max-version", nil, "", "1.2 or 1.3, at least the minimum", "Newest TLS version of queue-proxy."},
	{DeploymentName, "queue-sidecar-tls-cipher-suites", nil, "", "comma-separated names", "TLS cipher suites of queue-proxy."},
	{DeploymentName, "queue-sidecar-tls-curve-preferences", nil, "", "comma-separated names", "TLS curves of queue-proxy, best first."},
	{DeploymentName, "default-affinity-type", nil, AffinityPreferSpread, AffinityPreferSpread + " or " + AffinityNone, "Affinity of pods that have none: spread over nodes, or nothing."},
	{DeploymentName, "runtime-class-name", nil, "", "YAML map: runtime class to {selector: {label: value}}", "Runtime class of revisions by their labels; the selector with the most labels wins."},
	{DeploymentName, "pod-is-always-schedulable", nil, "false", "true or false", "true hides Unschedulable, for clusters that add nodes."},

	{DomainName, "<domain>", nil, "", "YAML {selector: {label: value}, type: wildcard}, or empty", "Domain of the Routes whose labels match; the selector with the most labels wins, then the first name. Without any key the domain is svc.cluster.local and Routes are local."},
}, featureKeys(), []Key{
	{GCName, "retain-since-create-time", nil, "48h", "0 or more, or disabled", "Age below which a revision without traffic is kept."},
	{GCName, "retain-since-last-active-time", nil, "15h", "0 or more, or disabled", "Time since its last traffic below which a revision is kept."},
	{GCName, "min-non-active-revisions", nil, "20", "0 or more", "Revisions without traffic that are always kept, per Configuration."},
	{GCName, "max-non-active-revisions", nil, "1000", "at least the minimum, or disabled", "Revisions without traffic beyond which the oldest go, per Configuration."},

	{NetworkName, "ingress-class", []string{"ingress.class"}, "istio.ingress.networking.knative.dev", "not empty", "Kept for manifests that name it: Ebb writes HTTPRoutes for the Gateways of config-gateway, whatever the class. Another value than the default is answered with a warning."},
	{NetworkName, "certificate-class", []string{"certificate.class"}, "cert-manager.certificate.networking.knative.dev", "not empty", "Kept for manifests that name it: cert-manager makes certificates, whatever the class. Another value than the default is answered with a warning."},
	{NetworkName, "namespace-wildcard-cert-selector", nil, "", "YAML label selector", "Namespaces that get one wildcard certificate for all their Routes."},
	{NetworkName, "domain-template", []string{"domainTemplate"}, "{{.Name}}.{{.Namespace}}.{{.Domain}}", "Go template over Name, Namespace, Domain, Annotations, Labels that gives a DNS name", "Host of a Route."},
	{NetworkName, "tag-template", []string{"tagTemplate"}, "{{.Tag}}-{{.Name}}", "Go template over Tag, Name that gives a DNS label", "Name of a tagged target: the first label of its host, and its placeholder Service."},
	{NetworkName, "external-domain-tls", []string{"auto-tls", "autoTLS"}, "Disabled", "Enabled or Disabled", "Certificates and https for external hosts."},
	{NetworkName, "cluster-local-domain-tls", nil, "Disabled", "Enabled or Disabled", "Certificates and https for cluster-local hosts."},
	{NetworkName, "system-internal-tls", []string{"internal-encryption"}, "Disabled", "Enabled or Disabled", "TLS from the gateway to activator and queue-proxy."},
	{NetworkName, "http-protocol", []string{"httpProtocol"}, "Enabled", "Enabled, Redirected (Disabled is deprecated)", "What plain HTTP does on an external host that has TLS."},
	{NetworkName, "rollout-duration", []string{"rolloutDuration"}, "0", "whole seconds, 0 or more", "Time over which traffic moves to a new latest revision; 0 moves it at once."},
	{NetworkName, "autocreate-cluster-domain-claims", []string{"autocreateClusterDomainClaims"}, "false", "true or false", "true makes the ClusterDomainClaim of a DomainMapping by itself."},
	{NetworkName, "enable-mesh-pod-addressability", nil, "false", "true or false", "true: the activator and the autoscaler, which connect to each pod by its address, name its private Service in Host, as a service mesh wants it."},
	{NetworkName, "mesh-compatibility-mode", nil, "auto", "auto, enabled or disabled", "enabled does what enable-mesh-pod-addressability does; auto and disabled leave that to it. Pods are connected to by their address in any case: the private Service is headless, and in a mesh that is a Service whose pods can be."},
	{NetworkName, "default-external-scheme", []string{"defaultExternalScheme"}, "http", "http or https", "Scheme of status.url where something in front of the gateway ends TLS."},
	{NetworkName, "system-internal-tls-allow-serve-mode", nil, "", "anything", "Accepted and without effect, and answered with a warning: while system-internal-tls is Enabled gateways reach every revision over TLS."},

	{ObservabilityName, "logging.enable-var-log-collection", nil, "false", "true or false", "Mounts an emptyDir at /var/log of every container for log collectors."},
	{ObservabilityName, "logging.revision-url-template", nil, "", "text with ${REVISION_UID}", "status.logUrl of revisions."},
	{ObservabilityName, "logging.request-log-template", nil, "", "Go template; empty is Ebb's JSON line", "Form of a request log line."},
	{ObservabilityName, "logging.enable-request-log", nil, "false", "true or false", "Writes one line a request in queue-proxy and activator."},
	{ObservabilityName, "logging.enable-probe-request-log", nil, "false", "true or false", "Writes probes into the request log too."},
	{ObservabilityName, "metrics-protocol", nil, "none", "none, prometheus, http/protobuf or grpc", "How Ebb's components hand out metrics besides port 9090, where every one serves Prometheus always."},
	{ObservabilityName, "metrics-endpoint", nil, "", "address; required for http/protobuf and grpc", "OTLP target of the components' metrics."},
	{ObservabilityName, "metrics-export-interval", nil, "", "duration", "Time between two exports."},
	{ObservabilityName, "request-metrics-protocol", nil, "none", "none, prometheus, http/protobuf or grpc", "How queue-proxy hands out request metrics; prometheus is port 9091."},
	{ObservabilityName, "request-metrics-endpoint", nil, "", "address; required for http/protobuf and grpc", "OTLP target of request metrics."},
	{ObservabilityName, "request-metrics-export-interval", nil, "", "duration", "Time between two exports."},
	{ObservabilityName, "runtime-profiling", nil, "disabled", "enabled or disabled", "pprof on port 8008."},
	{ObservabilityName, "runtime-export-interval", nil, "15s", "duration", "Least time between two exports of the metrics of the Go runtime and the process, where metrics-protocol sends metrics. Port 9090 always has them as they are."},
	{ObservabilityName, "tracing-protocol", nil, "none", "none, http/protobuf, grpc or stdout", "How spans are exported."},
	{ObservabilityName, "tracing-endpoint", nil, "", "address; required for http/protobuf and grpc", "OTLP target of spans."},
	{ObservabilityName, "tracing-sampling-rate", nil, "0", "0 to 1", "Share of requests that are traced."},
	{ObservabilityName, "cold-start-header", nil, "disabled", "enabled or disabled", "Header Ebb-Cold-Start on responses to requests that waited for a pod: when each step happened."},

	{LoggingName, "zap-logger-config", nil, `{"level": "info"}`, "JSON object; level is one of debug, info, warn, error, dpanic, panic, fatal", "Log level of components without one of their own."},
	{LoggingName, "loglevel.<component>", nil, "", "debug, info, warn, error, dpanic, panic or fatal", "Log level of one component: controller, autoscaler, activator, webhook, queueproxy (of new pods), hpaautoscaler."},

	{LeaderElectionName, "lease-duration", nil, "60s", "1s or more", "Time after which a leader that does not renew its lease is replaced. A change keeps the leader."},
	{LeaderElectionName, "renew-deadline", nil, "40s", "less than lease-duration", "Time a leader tries to renew its lease before it gives up. A change keeps the leader."},
	{LeaderElectionName, "retry-period", nil, "10s", "less than renew-deadline / 1.2", "Time between two renewals, and between two attempts to lead; a released lease is taken at once. A change keeps the leader."},
	{LeaderElectionName, "buckets", nil, "1", "1 to 10", "Parts into which the replicas of a component divide its objects. After a change the controller and the autoscaler restart by themselves."},
	{LeaderElectionName, "map-lease-prefix.<component>", nil, "", "DNS name, another for each component", "Renames the leases of a component: controller or autoscaler. Each has one set of leases for all its work, so names of single reconcilers are ignored. After a change the component restarts by itself."},

	{CertManagerName, "issuerRef", nil, "kind: ClusterIssuer\nname: knative-selfsigned-issuer", "YAML {kind, name, group}", "Signs certificates of external hosts."},
	{CertManagerName, "clusterLocalIssuerRef", nil, "kind: ClusterIssuer\nname: knative-selfsigned-issuer", "YAML {kind, name, group}", "Signs certificates of cluster-local hosts."},
	{CertManagerName, "systemInternalIssuerRef", nil, "kind: ClusterIssuer\nname: knative-selfsigned-issuer", "YAML {kind, name, group}", "Signs certificates between Ebb's parts."},

	{GatewayName, "external-gateways", nil, defaultExternalGateways, "YAML list of {class, gateway: namespace/name, service: namespace/name, http-listener-name, supported-features}", "Gateways that carry the external hosts of Routes."},
	{GatewayName, "local-gateways", nil, defaultLocalGateways, "YAML list of {class, gateway: namespace/name, service: namespace/name, http-listener-name, supported-features}", "Gateways that carry the cluster-local hosts of Routes; the first one's Service is the target of placeholder Services."},
})
