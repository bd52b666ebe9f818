package settings

import (
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

// key describes one key of a ConfigMap, once. Parsing, defaults, docs/settings.md and the _example
// of the shipped ConfigMaps come from it.
type key struct {
	name    string // "<domain>" and the like stand for a name that the user chooses
	Default string // "" = unset
	value          // how the text is parsed, and where it goes
	effect  string
}

// section is one ConfigMap: its keys, in the order in which they are documented, and what the keys
// must be together. check runs after all keys were read.
type section struct {
	name  string
	check func(*reader)
	keys  []key
}

// sections lists every ConfigMap and key. What is read goes into s.
func sections(s *Snapshot) []section {
	a, d, p, n, o, l := &s.Autoscaler, &s.Defaults, &s.Deployment, &s.Network, &s.Observability, &s.LeaderElection
	address := "address; required for http/protobuf and grpc"
	return []section{
		{AutoscalerName, s.checkAutoscaler, []key{
			{"pod-autoscaler-class", "kpa.autoscaling.knative.dev", nonEmpty(&a.Class), "Autoscaler class of revisions without a class annotation."},
			{"enable-scale-to-zero", "true", boolean(&a.EnableScaleToZero), "If false, every revision keeps at least one pod."},
			{"allow-zero-initial-scale", "false", boolean(&a.AllowZeroInitialScale), "Allows initial-scale 0, here and as an annotation."},
			{"initial-scale", "1", whole(&a.InitialScale, 0, math.MaxInt32).note("0 needs allow-zero-initial-scale"), "Pods that must be ready before a new revision counts as initialized."},
			{"min-scale", "0", whole(&a.MinScale, 0, math.MaxInt32), "Minimum number of pods of a reachable revision."},
			{"max-scale", "0", whole(&a.MaxScale, 0, math.MaxInt32).note("1 to max-scale-limit if that is set"), "Maximum number of pods of a revision; 0 means no maximum."},
			{"max-scale-limit", "0", whole(&a.MaxScaleLimit, 0, math.MaxInt32), "Upper bound of max-scale, here and as an annotation; 0 means no bound."},
			{"max-scale-up-rate", "1000", number(&a.MaxScaleUpRate, above(1)), "Largest factor by which one decision may multiply the ready pods."},
			{"max-scale-down-rate", "2", number(&a.MaxScaleDownRate, above(1)), "Largest factor by which one decision may divide the ready pods."},
			{"container-concurrency-target-percentage", "70", number(&a.ConcurrencyTargetUtilization, interval{"more than 0, at most 100", func(f float64) bool { return f > 0 && f <= 100 }}).note("values up to 1 are fractions"), "Target utilization of a pod's concurrency."},
			{"container-concurrency-target-default", "100", number(&a.ConcurrencyTargetDefault, above(0)).note("at least 0.01 after the percentage"), "Concurrent requests per pod, for revisions without a limit."},
			{"requests-per-second-target-default", "200", number(&a.RequestsPerSecondTarget, least(names.MinTarget)), "Requests per second per pod, if the metric is rps."},
			{"target-burst-capacity", "211", number(&a.TargetBurstCapacity, interval{"-1, or 0 and more", func(f float64) bool { return f >= 0 || f == names.UnlimitedTargetBurst }}), "Spare capacity, in requests, below which the activator stays in the path. With 0 it leaves the path as soon as there is a pod, with -1 never."},
			{"activator-capacity", "100", number(&a.ActivatorCapacity, least(1)), "Concurrent requests per activator, to choose how many activators serve a revision."},
			{"stable-window", "60s", duration(&a.StableWindow, names.MinStableWindow, names.MaxStableWindow, time.Second), "Window over which load is averaged."},
			{"panic-window-percentage", "10", number(&a.PanicWindowPercentage, between(1, 100)), "Length of the panic window in percent of the stable window."},
			{"panic-threshold-percentage", "200", number(&a.PanicThresholdPercentage, interval{"a number", func(float64) bool { return true }}), "Load, in percent of the ready capacity, above which panic mode starts."},
			{"scale-to-zero-grace-period", "30s", duration(&a.ScaleToZeroGracePeriod, 1, forever, 1), "Longest wait for traffic to move to the activator before the last pod is removed."},
			{"scale-to-zero-pod-retention-period", "0s", duration(&a.ScaleToZeroPodRetentionPeriod, 0, forever, 1), "Minimum time that the last pod is kept after traffic ends."},
			{"scale-down-delay", "0s", duration(&a.ScaleDownDelay, 0, forever, time.Second), "Time for which the highest wanted scale is kept before pods are removed."},
			{"scale-up-burst", "500", number(&a.ScaleUpBurst, least(1)), "Pods that one service may add at once; its first pod is always allowed."},
			{"scale-up-per-second", "50", number(&a.ScaleUpPerSecond, above(0)), "Pods per second that one service may add beyond scale-up-burst."},
			{"standby", "off", word(&a.Standby, rules.StandbyOff, rules.StandbyAuto), "Whether pods that are not needed sleep for a while before they are deleted. The annotation autoscaling.ebb.dev/standby on a template overrides it."},
			{"standby-after", "10s", duration(&a.StandbyAfter, time.Second, forever, 1), "Time that a pod must not have been needed before it falls asleep."},
			{"standby-max", "4h", duration(&a.StandbyMax, time.Second, forever, 1), "Longest time that a pod sleeps before it is deleted; also the upper bound of the annotation autoscaling.ebb.dev/standby-for."},
			{"standby-memory", "10", number(&a.StandbyMemory, between(0, 100)), "Memory, in percent of the allocatable memory of all nodes, that sleeping pods may take. Beyond it those go whose memory is worth least. Pods that a number or a schedule asks for may take as much again, divided among their namespaces."},
			{"startup-cpu", "0", milliCPU(&a.StartupCPU).note("0 is none, at most startup-cpu-max"), "CPU limit of the serving container of a new pod until it answers, if its own limit is lower. The annotation autoscaling.ebb.dev/startup-cpu on a template overrides it."},
			{"startup-cpu-max", "4", milliCPU(&a.StartupCPUMax).note("0 allows none"), "Upper bound of startup-cpu, here and as an annotation."},
			{"startup-cpu-grace", "5s", duration(&a.StartupCPUGrace, 0, time.Hour, 1), "Time after a pod became ready before its container has its own CPU limit again."},
		}},
		{DefaultsName, s.checkDefaults, slices.Concat([]key{
			{"revision-timeout-seconds", "300", whole(&d.TimeoutSeconds, 1, math.MaxInt32), "timeoutSeconds of a revision that has none."},
			{"max-revision-timeout-seconds", "600", whole(&d.MaxTimeoutSeconds, 1, math.MaxInt32).says("at least revision-timeout-seconds"), "Largest legal timeoutSeconds."},
			{"revision-response-start-timeout-seconds", "300", whole(&d.ResponseStartTimeoutSeconds, 0, math.MaxInt32).note("revision-timeout-seconds if absent"), "responseStartTimeoutSeconds of a revision that has none; used if it is less than the revision's timeout."},
			{"revision-idle-timeout-seconds", "0", whole(&d.IdleTimeoutSeconds, 0, math.MaxInt32).note("0 is off"), "idleTimeoutSeconds of a revision that has none; used if it is less than the revision's timeout."},
			{"response-timeout-action", "end", choice(&d.Handling.CutResponses, names.ResponseTimeoutEnd, names.ResponseTimeoutCut), "What a timeout does to a response that has begun: end it cleanly with the trailer Ebb-Timeout, or cut the connection. The annotation serving.ebb.dev/response-timeout-action on a template overrides it."},
		}, resourceKeys("revision", "containers that have none", "", &d.Requests, &d.Limits), []key{
			{"container-name-template", "user-container", name(&d.ContainerNameTemplate), "Name of a container that has none."},
			{"init-container-name-template", "init-container", name(&d.InitContainerNameTemplate), "Name of an init container that has none."},
			{"container-concurrency", "0", whole(&d.ContainerConcurrency, 0, math.MaxInt32).says("0 to container-concurrency-max-limit; 0 is no limit"), "containerConcurrency of a revision that has none."},
			{"container-concurrency-max-limit", "1000", whole(&d.ContainerConcurrencyMax, 1, math.MaxInt32), "Largest legal containerConcurrency."},
			{"allow-container-concurrency-zero", "true", boolean(&d.AllowConcurrencyZero), "If false, the smallest legal containerConcurrency is 1."},
			{"enable-service-links", "false", optional(&d.EnableServiceLinks), "enableServiceLinks of a new revision that does not set it."},
			{"automount-service-account-token", "default", optional(&d.AutomountServiceAccountToken), "automountServiceAccountToken of a new revision that does not set it. With false, pods without volumes start about 300 ms sooner, and a program that calls Kubernetes' API sets automountServiceAccountToken: true on its template."},
			{"never-wake-agents", "", patterns(&d.NeverWakeAgents), "Requests whose User-Agent contains one of these, in any case, do not wake a pod. The annotation serving.ebb.dev/never-wake-agents on a template overrides it."},
			{"max-waiting", "0", whole(&d.MaxWaiting, 0, math.MaxInt32).note("0 is no limit but EBB_HOLD_REQUESTS_PER_REVISION"), "Requests of one revision that may wait in one activator for a pod. The annotation serving.ebb.dev/max-waiting on a template overrides it."},
			{"max-wait", "0s", duration(&d.MaxWait, 0, names.MaxColdWait, 1).note("0s is no limit but the revision's timeouts"), "Longest time that a request waits for a pod. The annotation serving.ebb.dev/max-wait on a template overrides it."},
		})},
		{DeploymentName, s.checkDeployment, slices.Concat([]key{
			{"queue-sidecar-image", "", text(&p.QueueSidecarImage, "required", func(s string) bool { return !strings.ContainsAny(s, " \t\n") }).older("queueSidecarImage"), "Image of queue-proxy."},
			{"shim-image", "", text(&p.ShimImage, "without spaces", func(s string) bool { return !strings.ContainsAny(s, " \t\n") }), "Image of the shim, which the annotation serving.ebb.dev/shim on a template puts before a program. If it is unset, the annotation is rejected."},
			{"registries-skipping-tag-resolving", "kind.local,ko.local,dev.local", words(&p.RegistriesSkippingDigests, "comma-separated host names").older("registriesSkippingTagResolving"), "Registries whose tags are not resolved to digests."},
			{"trusted-registries", "", words(&p.TrustedRegistries, "comma-separated HOST, HOST:PORT, or http:// and either"), "Registries that the controller may ask for digests at addresses of the cluster's Services, and whose tokens may come from another host at a private address. Only those written with http:// are asked without TLS."},
			{"digest-resolution-timeout", "10s", duration(&p.DigestResolutionTimeout, 1, forever, 1).older("digestResolutionTimeout"), "Longest wait for one tag to be resolved to a digest."},
			{"progress-deadline", "600s", duration(&p.ProgressDeadline, time.Second, forever, time.Second).older("progressDeadline"), "Time in which a revision must become ready, or start from zero."},
			{"deployment-retention-period", "0s", duration(&p.RetentionPeriod, 0, forever, 1).note("0s is for ever, else at least 1m"), "How long a revision without pods keeps its Deployment. After that it is deleted, with its ReplicaSet and the private Service, and the next request has the controller make them again. Before a version without this setting is installed, set it to 0s and wait until each Deployment is back."},
		}, resourceKeys("queue-sidecar", "queue-proxy", "25m", &p.QueueSidecarRequests, &p.QueueSidecarLimits), []key{
			{"queue-sidecar-token-audiences", "", words(&p.QueueSidecarTokenAudiences, "comma-separated audiences"), "Service account tokens mounted into queue-proxy."},
			{"token-key-rotation-days", "0", whole(&p.TokenKeyRotationDays, 0, 36500), "Days after which the key of the pods' tokens is replaced. 0 replaces it only when somebody asks, by the annotation ebb.dev/rotate on the Secret ebb-token-key."},
			{"queue-sidecar-rootca", "", text(&p.QueueSidecarRootCA, "PEM", nil), "Additional root certificates of queue-proxy."},
			{"queue-sidecar-tls-min-version", "", word(&p.QueueSidecarTLS.MinVersion, "1.2", "1.3"), "Oldest TLS version of queue-proxy."},
			{"queue-sidecar-tls-max-version", "", word(&p.QueueSidecarTLS.MaxVersion, "1.2", "1.3").says("1.2 or 1.3, at least the minimum"), "Newest TLS version of queue-proxy."},
			{"queue-sidecar-tls-cipher-suites", "", joined(&p.QueueSidecarTLS.CipherSuites), "TLS cipher suites of queue-proxy."},
			{"queue-sidecar-tls-curve-preferences", "", joined(&p.QueueSidecarTLS.CurvePreferences), "TLS curves of queue-proxy, in order of preference."},
			{"default-affinity-type", AffinityPreferSpread, word(&p.DefaultAffinity, AffinityPreferSpread, AffinityNone), "Affinity of pods that have none: spread over nodes and, among these, over zones; or no affinity."},
			{"runtime-class-name", "", structured("YAML map: runtime class to {selector: {label: value}}", p.setRuntimeClasses), "Runtime class of revisions by their labels; the selector with the most labels wins."},
			{"pod-is-always-schedulable", "false", boolean(&p.PodIsAlwaysSchedulable), "If true, Unschedulable is not reported, for clusters that add nodes."},
		})},
		{DomainName, s.sortDomains, []key{
			{"<domain>", "", each("YAML {selector: {label: value}, type: wildcard}, or empty", s.Domain.set), "Domain of the Routes whose labels match; the selector with the most labels wins, then the first name. Without any key the domain is svc.cluster.local and Routes are local."},
		}},
		{FeaturesName, nil, featureKeys(s)},
		{GCName, s.checkGC, []key{
			{"retain-since-create-time", "48h", orDisabled(&s.GC.RetainSinceCreateTime, func(d *time.Duration) value { return duration(d, 0, forever, 1) }), "Age below which a revision without traffic is kept."},
			{"retain-since-last-active-time", "15h", orDisabled(&s.GC.RetainSinceLastActiveTime, func(d *time.Duration) value { return duration(d, 0, forever, 1) }), "Time since its last traffic below which a revision is kept."},
			{"min-non-active-revisions", "20", whole(&s.GC.MinNonActiveRevisions, 0, math.MaxInt32), "Revisions without traffic that are always kept, per Configuration."},
			{"max-non-active-revisions", "1000", orDisabled(&s.GC.MaxNonActiveRevisions, func(n *int64) value { return whole(n, 0, math.MaxInt32) }).says("at least the minimum, or disabled"), "Revisions without traffic per Configuration; beyond it the oldest are deleted."},
		}},
		{NetworkName, nil, []key{
			{"ingress-class", "istio.ingress.networking.knative.dev", nonEmpty(&n.IngressClass).older("ingress.class"), "No effect: Ebb always writes HTTPRoutes for the Gateways of config-gateway. A value other than the default causes a warning."},
			{"certificate-class", "cert-manager.certificate.networking.knative.dev", nonEmpty(&n.CertificateClass).older("certificate.class"), "No effect: cert-manager always issues the certificates. A value other than the default causes a warning."},
			{"namespace-wildcard-cert-selector", "", structured("YAML label selector", n.setSelector), "Selects namespaces that get one wildcard certificate for all their Routes."},
			{"domain-template", "{{.Name}}.{{.Namespace}}.{{.Domain}}", hostTemplate(&n.DomainTemplate, domainSample, isDomain, "Go template over Name, Namespace, Domain, Annotations, Labels that gives a DNS name").older("domainTemplate"), "Host of a Route."},
			{"tag-template", "{{.Tag}}-{{.Name}}", hostTemplate(&n.TagTemplate, TagValues{Tag: "tag", Name: "name"}, dnsLabel.MatchString, "Go template over Tag, Name that gives a DNS label").older("tagTemplate"), "Name of a tagged target: the first label of its host, and its placeholder Service."},
			{"external-domain-tls", "Disabled", onOff(&n.ExternalDomainTLS).older("auto-tls", "autoTLS"), "Certificates and https for external hosts."},
			{"cluster-local-domain-tls", "Disabled", onOff(&n.ClusterLocalDomainTLS), "Certificates and https for cluster-local hosts."},
			{"system-internal-tls", "Disabled", onOff(&n.SystemInternalTLS).older("internal-encryption"), "TLS from the gateway to activator and queue-proxy."},
			{"http-protocol", "Enabled", word(&n.HTTPProtocol, HTTPEnabled, HTTPRedirected, HTTPDisabled).says("Enabled, Redirected (Disabled is deprecated)").older("httpProtocol"), "Whether an external host with TLS also serves plain HTTP or redirects it."},
			{"rollout-duration", "0", seconds(&n.RolloutDuration).older("rolloutDuration"), "Time over which traffic moves to a new latest revision; 0 moves all of it at once."},
			{"autocreate-cluster-domain-claims", "false", boolean(&n.AutoCreateClusterDomainClaims).older("autocreateClusterDomainClaims"), "If true, Ebb creates the ClusterDomainClaim of a DomainMapping, but for a host that config-domain and domain-template give to another namespace."},
			{"enable-mesh-pod-addressability", "false", boolean(&n.EnableMeshPodAddressability), "If true, the activator and the autoscaler connect to a pod by its address but put its private Service in Host, as service meshes require."},
			{"mesh-compatibility-mode", "auto", word(&n.MeshCompatibilityMode, "auto", "enabled", "disabled"), "enabled means the same as enable-mesh-pod-addressability; auto and disabled have no effect. Ebb always connects to pods by their address: the private Service is headless, so a mesh allows that."},
			{"default-external-scheme", "http", word(&n.DefaultExternalScheme, "http", "https").older("defaultExternalScheme"), "Scheme of status.url, if TLS is terminated in front of the gateway."},
			{"system-internal-tls-allow-serve-mode", "", text(new(string), "anything", nil), "No effect, and causes a warning: while system-internal-tls is Enabled, gateways use TLS for every revision."},
		}},
		{ObservabilityName, s.checkObservability, []key{
			{"logging.enable-var-log-collection", "false", boolean(&o.EnableVarLogCollection), "Mounts an emptyDir at /var/log in every container, for log collectors."},
			{"logging.revision-url-template", "", text(&o.RevisionURLTemplate, "text with ${REVISION_UID}", nil), "status.logUrl of revisions."},
			{"logging.request-log-template", "", structured("Go template; empty is Ebb's JSON line", o.setRequestLog), "Format of a request log line."},
			{"logging.enable-request-log", "false", boolean(&o.EnableRequestLog), "Writes one line per request in queue-proxy and activator."},
			{"logging.enable-probe-request-log", "false", boolean(&o.EnableProbeRequestLog), "Includes probes in the request log."},
			{"metrics-protocol", "none", word(&o.Metrics.Protocol, "none", "prometheus", "http/protobuf", "grpc"), "How Ebb's components export metrics. They always serve Prometheus metrics on port 9090, too."},
			{"metrics-endpoint", "", text(&o.Metrics.Endpoint, address, nil), "OTLP target of the components' metrics."},
			{"metrics-export-interval", "", duration(&o.Metrics.Interval, time.Millisecond, forever, 1).orBlank().says("duration"), "Time between two exports."},
			{"request-metrics-protocol", "none", word(&o.RequestMetrics.Protocol, "none", "prometheus", "http/protobuf", "grpc"), "How queue-proxy exports request metrics; prometheus is served on port 9091."},
			{"request-metrics-endpoint", "", text(&o.RequestMetrics.Endpoint, address, nil), "OTLP target of request metrics."},
			{"request-metrics-export-interval", "", duration(&o.RequestMetrics.Interval, time.Millisecond, forever, 1).orBlank().says("duration"), "Time between two exports."},
			{"runtime-profiling", "disabled", enabled(&o.RuntimeProfiling), "pprof on port 8008."},
			{"runtime-export-interval", "15s", duration(&o.RuntimeExportInterval, time.Millisecond, forever, 1).says("duration"), "Minimum time between two exports of the metrics of the Go runtime and the process by metrics-protocol. Port 9090 always serves the current values."},
			{"tracing-protocol", "none", word(&o.Tracing.Protocol, "none", "http/protobuf", "grpc", "stdout"), "How spans are exported."},
			{"tracing-endpoint", "", text(&o.Tracing.Endpoint, address, nil), "OTLP target of spans."},
			{"tracing-sampling-rate", "0", number(&o.Tracing.SamplingRate, between(0, 1)), "Fraction of requests that are traced."},
			{"cold-start-header", "disabled", enabled(&o.ColdStartHeader), "Adds the header Server-Timing, with the time of each step, to responses of requests that waited for a pod."},
		}},
		{LoggingName, s.checkLogging, []key{
			{"zap-logger-config", `{"level": "info"}`, structured("JSON object; level is one of "+levels, s.Logging.setZap), "Log level of components without their own level."},
			{"loglevel.<component>", "", each("debug, info, warn, error, dpanic, panic or fatal", s.Logging.setLevel), "Log level of one component: controller, autoscaler, activator, webhook, queueproxy (of new pods), hpaautoscaler."},
		}},
		{LeaderElectionName, s.checkLeaderElection, []key{
			{"lease-duration", "60s", duration(&l.LeaseDuration, time.Second, forever, 1), "Time after which a leader that does not renew its lease is replaced: a third of it if its node does not answer either. A change keeps the current leader."},
			{"renew-deadline", "40s", duration(&l.RenewDeadline, time.Second, forever, 1).says("less than lease-duration"), "Time that a leader tries to renew its lease before it gives up. A change keeps the current leader."},
			{"retry-period", "10s", duration(&l.RetryPeriod, 100*time.Millisecond, forever, 1).says("less than renew-deadline / 1.2"), "Time between two renewals, and between two attempts to acquire a lease; a lease that is released or over is acquired at once. A leader renews its lease at least six times in lease-duration. A change keeps the current leader."},
			{"buckets", "1", whole(&l.Buckets, 1, 10), "Number of buckets into which the replicas of a component divide its objects. After a change the controller and the autoscaler restart by themselves."},
			{"map-lease-prefix.<component>", "", each("DNS name, different for each component", l.setPrefix), "Prefix of the leases of a component, controller or autoscaler. Each component has one set of leases, so names of single reconcilers are ignored. After a change the component restarts by itself."},
		}},
		{CertManagerName, nil, []key{
			{"issuerRef", "kind: ClusterIssuer\nname: knative-selfsigned-issuer", structured("YAML {kind, name, group}", s.CertManager.Issuer.set), "Signs certificates of external hosts."},
			{"clusterLocalIssuerRef", "kind: ClusterIssuer\nname: knative-selfsigned-issuer", structured("YAML {kind, name, group}", s.CertManager.ClusterLocalIssuer.set), "Signs certificates of cluster-local hosts."},
			{"systemInternalIssuerRef", "kind: ClusterIssuer\nname: knative-selfsigned-issuer", structured("YAML {kind, name, group}", s.CertManager.SystemInternalIssuer.set), "Signs certificates for TLS between Ebb's components."},
		}},
		{GatewayName, nil, []key{
			{"external-gateways", defaultExternalGateways, gateways(&s.Gateway.External), "Gateways that carry the external hosts of Routes."},
			{"local-gateways", defaultLocalGateways, gateways(&s.Gateway.Local), "Gateways that carry the cluster-local hosts of Routes; the first one's Service is the target of placeholder Services."},
			{"resting-routes", "Disabled", onOff(&s.Gateway.Resting), "Lets hosts whose requests pass activators share one HTTPRoute for each domain; a Route gets its own while gateways send its requests to pods. It was tried on Istio. A revision without HTTPRoutes of its own then has no Service of its name, so `<revision>.<namespace>` does not resolve; an HTTPRoute or a GRPCRoute that names it keeps it, and for all else, such as an Ingress or a VirtualService, the annotation networking.ebb.dev/resting: disabled on its Knative Service, or serving.knative.dev/no-gc on the Revision. Before a version without this setting is installed, set it to Disabled and wait until the metric ebb_resting_routes is 0."},
		}},
		{CourierName, s.checkCourier, courierKeys(&s.Courier)},
		{TracingName, nil, nil}, // deprecated: it may exist and has no effect
	}
}

// featureKeys are the keys of config-features, from the table of the flags.
func featureKeys(s *Snapshot) []key {
	s.Features = rules.DefaultFeatures()
	var rows []key
	for _, f := range rules.FeatureTable {
		words, legal := []rules.Flag{rules.Enabled, rules.Allowed, rules.Disabled}, "Enabled, Allowed or Disabled"
		if f.Key == rules.KeySecurePodDefaults {
			words, legal = append(words, rules.AllowRootBounded), "Enabled, AllowRootBounded or Disabled"
		}
		// The contract says that an unknown word leaves the default.
		set := func(text string) error {
			for _, word := range words {
				if strings.EqualFold(text, string(word)) {
					s.Features[f.Key] = word
				}
			}
			return nil
		}
		rows = append(rows, key{string(f.Key), string(f.Default),
			value{legal: legal + ", in upper or lower case; any other value means the default", set: set}, f.Effect})
	}
	return rows
}

// resourceKeys are the keys <prefix>-{cpu,memory,ephemeral-storage}-{request,limit}.
func resourceKeys(prefix, whose, cpu string, requests, limits *corev1.ResourceList) []key {
	var rows []key
	*requests, *limits = nil, nil
	for _, kind := range []struct {
		suffix string
		into   *corev1.ResourceList
	}{{"request", requests}, {"limit", limits}} {
		for _, r := range []struct {
			name         corev1.ResourceName
			title, older string
		}{{corev1.ResourceCPU, "CPU", "CPU"}, {corev1.ResourceMemory, "Memory", "Memory"},
			{corev1.ResourceEphemeralStorage, "Ephemeral storage", "EphemeralStorage"}} {
			v := quantity(kind.into, r.name)
			if prefix == "queue-sidecar" {
				v = v.older("queueSidecar" + r.older + strings.ToUpper(kind.suffix[:1]) + kind.suffix[1:])
			}
			k := key{prefix + "-" + string(r.name) + "-" + kind.suffix, "", v, r.title + " " + kind.suffix + " of " + whose + "."}
			if r.name == corev1.ResourceCPU && kind.into == requests {
				k.Default = cpu
			}
			rows = append(rows, k)
		}
	}
	return rows
}
