package settings

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/rules"
)

func ptr[T any](v T) *T { return &v }

func list(name corev1.ResourceName, q string) corev1.ResourceList {
	return corev1.ResourceList{name: resource.MustParse(q)}
}

// set is one accepted value of one key and what it does to the Snapshot.
type set struct {
	key, value string
	get        func(*Snapshot) any
	want       any
	bad        string // a value of the same key that is refused; "" = every value is accepted
}

func flagRow(key rules.FlagKey, word string, want rules.Flag) set {
	return set{string(key), word, func(s *Snapshot) any { return s.Features[key] }, want, ""}
}

func table() map[string][]set {
	a := func(f func(Autoscaler) any) func(*Snapshot) any {
		return func(s *Snapshot) any { return f(s.Autoscaler) }
	}
	d := func(f func(Defaults) any) func(*Snapshot) any { return func(s *Snapshot) any { return f(s.Defaults) } }
	c := func(f func(Courier) any) func(*Snapshot) any { return func(s *Snapshot) any { return f(s.Courier) } }
	p := func(f func(Deployment) any) func(*Snapshot) any {
		return func(s *Snapshot) any { return f(s.Deployment) }
	}
	n := func(f func(Network) any) func(*Snapshot) any { return func(s *Snapshot) any { return f(s.Network) } }
	o := func(f func(Observability) any) func(*Snapshot) any {
		return func(s *Snapshot) any { return f(s.Observability) }
	}
	issuer := "kind: Issuer\nname: mine\n"
	gateways := "- class: envoy\n  gateway: a/b\n  service: c/d\n  http-listener-name: web\n"
	refs := []GatewayRef{{Class: "envoy", Gateway: "a/b", Service: "c/d", HTTPListener: "web"}}
	t := map[string][]set{
		AutoscalerName: {
			{"pod-autoscaler-class", "hpa.autoscaling.knative.dev", a(func(a Autoscaler) any { return a.Class }), "hpa.autoscaling.knative.dev", " "},
			{"enable-scale-to-zero", "false", a(func(a Autoscaler) any { return a.EnableScaleToZero }), false, "maybe"},
			{"allow-zero-initial-scale", "true", a(func(a Autoscaler) any { return a.AllowZeroInitialScale }), true, "7"},
			{"initial-scale", "3", a(func(a Autoscaler) any { return a.InitialScale }), int32(3), "0"},
			{"min-scale", "2", a(func(a Autoscaler) any { return a.MinScale }), int32(2), "-1"},
			{"max-scale", "9", a(func(a Autoscaler) any { return a.MaxScale }), int32(9), "1.5"},
			{"max-scale-limit", "0", a(func(a Autoscaler) any { return a.MaxScaleLimit }), int32(0), "5"},
			{"max-scale-up-rate", "10", a(func(a Autoscaler) any { return a.MaxScaleUpRate }), 10.0, "1"},
			{"max-scale-down-rate", "1.5", a(func(a Autoscaler) any { return a.MaxScaleDownRate }), 1.5, "0.5"},
			{"container-concurrency-target-percentage", "0.5", a(func(a Autoscaler) any { return a.ConcurrencyTargetUtilization }), 0.5, "101"},
			{"container-concurrency-target-percentage", "50", a(func(a Autoscaler) any { return a.ConcurrencyTargetUtilization }), 0.5, "0"},
			{"container-concurrency-target-default", "7", a(func(a Autoscaler) any { return a.ConcurrencyTargetDefault }), 7.0, "0.001"},
			{"requests-per-second-target-default", "20.5", a(func(a Autoscaler) any { return a.RequestsPerSecondTarget }), 20.5, "0.001"},
			{"target-burst-capacity", "-1", a(func(a Autoscaler) any { return a.TargetBurstCapacity }), -1.0, "-2"},
			{"activator-capacity", "1", a(func(a Autoscaler) any { return a.ActivatorCapacity }), 1.0, "0.9"},
			{"stable-window", "6s", a(func(a Autoscaler) any { return a.StableWindow }), 6 * time.Second, "5s"},
			{"stable-window", "1h", a(func(a Autoscaler) any { return a.StableWindow }), time.Hour, "7500ms"},
			{"panic-window-percentage", "100", a(func(a Autoscaler) any { return a.PanicWindowPercentage }), 100.0, "0.5"},
			{"panic-threshold-percentage", "50", a(func(a Autoscaler) any { return a.PanicThresholdPercentage }), 50.0, "NaN"},
			{"scale-to-zero-grace-period", "1ms", a(func(a Autoscaler) any { return a.ScaleToZeroGracePeriod }), time.Millisecond, "0s"},
			{"scale-to-zero-pod-retention-period", "1m", a(func(a Autoscaler) any { return a.ScaleToZeroPodRetentionPeriod }), time.Minute, "-1s"},
			{"scale-down-delay", "15m", a(func(a Autoscaler) any { return a.ScaleDownDelay }), 15 * time.Minute, "1500ms"},
			{"scale-up-burst", "20", a(func(a Autoscaler) any { return a.ScaleUpBurst }), 20.0, "0"},
			{"scale-up-per-second", "0.5", a(func(a Autoscaler) any { return a.ScaleUpPerSecond }), 0.5, "0"},
			{"standby", "Auto", a(func(a Autoscaler) any { return a.Standby }), rules.StandbyAuto, "count"},
			{"standby-after", "30s", a(func(a Autoscaler) any { return a.StandbyAfter }), 30 * time.Second, "999ms"},
			{"standby-max", "24h", a(func(a Autoscaler) any { return a.StandbyMax }), 24 * time.Hour, "0s"},
			{"standby-memory", "25", a(func(a Autoscaler) any { return a.StandbyMemory }), 25.0, "101"},
			{"startup-cpu", "1500m", a(func(a Autoscaler) any { return a.StartupCPU }), int64(1500), "5"},
			{"startup-cpu-max", "8", a(func(a Autoscaler) any { return a.StartupCPUMax }), int64(8000), "1e99"},
			{"startup-cpu-grace", "10s", a(func(a Autoscaler) any { return a.StartupCPUGrace }), 10 * time.Second, "2h"},
		},
		DefaultsName: {
			{"revision-timeout-seconds", "600", d(func(d Defaults) any { return d.TimeoutSeconds }), int64(600), "601"},
			{"max-revision-timeout-seconds", "900", d(func(d Defaults) any { return d.MaxTimeoutSeconds }), int64(900), "299"},
			{"revision-response-start-timeout-seconds", "10", d(func(d Defaults) any { return d.ResponseStartTimeoutSeconds }), int64(10), "soon"},
			{"response-timeout-action", "Cut", d(func(d Defaults) any { return d.Handling.CutResponses }), true, "stop"},
			{"revision-idle-timeout-seconds", "20", d(func(d Defaults) any { return d.IdleTimeoutSeconds }), int64(20), "-1"},
			{"revision-cpu-request", "400m", d(func(d Defaults) any { return d.Requests }), list("cpu", "400m"), "much"},
			{"revision-memory-request", "1Mi", d(func(d Defaults) any { return d.Requests }), list("memory", "1Mi"), "-1"},
			{"revision-ephemeral-storage-request", "1Gi", d(func(d Defaults) any { return d.Requests }), list("ephemeral-storage", "1Gi"), "x"},
			{"revision-cpu-limit", "2", d(func(d Defaults) any { return d.Limits }), list("cpu", "2"), "two"},
			{"revision-memory-limit", "2Gi", d(func(d Defaults) any { return d.Limits }), list("memory", "2Gi"), "2 Gi"},
			{"revision-ephemeral-storage-limit", "3Gi", d(func(d Defaults) any { return d.Limits }), list("ephemeral-storage", "3Gi"), "x"},
			{"never-wake-agents", "Bot/1 (x), probe", d(func(d Defaults) any { return d.NeverWakeAgents }), []string{"Bot/1 (x)", "probe"}, "\x01"},
			{"max-waiting", "7", d(func(d Defaults) any { return d.MaxWaiting }), int64(7), "-1"},
			{"max-wait", "1500ms", d(func(d Defaults) any { return d.MaxWait }), 1500 * time.Millisecond, "2h"},
			{"container-name-template", "{{.Name}}-c", d(func(d Defaults) any { return d.ContainerNameTemplate.String() }), "{{.Name}}-c", "{{.Nope}}"},
			{"init-container-name-template", "i", d(func(d Defaults) any { return d.InitContainerNameTemplate.String() }), "i", "Not A Label"},
			{"container-concurrency", "1000", d(func(d Defaults) any { return d.ContainerConcurrency }), int64(1000), "1001"},
			{"container-concurrency-max-limit", "5", d(func(d Defaults) any { return d.ContainerConcurrencyMax }), int64(5), "0"},
			{"allow-container-concurrency-zero", "true", d(func(d Defaults) any { return d.AllowConcurrencyZero }), true, "false"},
			{"enable-service-links", "true", d(func(d Defaults) any { return d.EnableServiceLinks }), ptr(true), ""},
			{"automount-service-account-token", "false", d(func(d Defaults) any { return d.AutomountServiceAccountToken }), ptr(false), ""},
			{"enable-service-links", "default", d(func(d Defaults) any { return d.EnableServiceLinks }), (*bool)(nil), ""},
		},
		DeploymentName: {
			{"queue-sidecar-image", "r/q:1", p(func(d Deployment) any { return d.QueueSidecarImage }), "r/q:1", "a b"},
			{"shim-image", "r/s:1", p(func(d Deployment) any { return d.ShimImage }), "r/s:1", "a b"},
			{"registries-skipping-tag-resolving", "b, a,,a", p(func(d Deployment) any { return d.RegistriesSkippingDigests }), []string{"a", "b"}, ""},
			{"trusted-registries", "b.test:5000, http://a.test", p(func(d Deployment) any { return d.TrustedRegistries }), []string{"b.test:5000", "http://a.test"}, ""},
			{"digest-resolution-timeout", "1s", p(func(d Deployment) any { return d.DigestResolutionTimeout }), time.Second, "0s"},
			{"progress-deadline", "1s", p(func(d Deployment) any { return d.ProgressDeadlineSeconds() }), int32(1), "1500ms"},
			{"deployment-retention-period", "1m", p(func(d Deployment) any { return d.RetentionPeriod }), time.Minute, "59s"},
			{"queue-sidecar-cpu-request", "1m", p(func(d Deployment) any { return d.QueueSidecarRequests }), list("cpu", "1m"), "x"},
			{"queue-sidecar-cpu-limit", "1", p(func(d Deployment) any { return d.QueueSidecarLimits }), list("cpu", "1"), "x"},
			{"queue-sidecar-memory-request", "9Mi", p(func(d Deployment) any { return d.QueueSidecarRequests[corev1.ResourceMemory] }), resource.MustParse("9Mi"), "x"},
			{"queue-sidecar-memory-limit", "9Mi", p(func(d Deployment) any { return d.QueueSidecarLimits }), list("memory", "9Mi"), "x"},
			{"queue-sidecar-ephemeral-storage-request", "1Gi", p(func(d Deployment) any { return d.QueueSidecarRequests[corev1.ResourceEphemeralStorage] }), resource.MustParse("1Gi"), "x"},
			{"queue-sidecar-ephemeral-storage-limit", "1Gi", p(func(d Deployment) any { return d.QueueSidecarLimits }), list("ephemeral-storage", "1Gi"), "x"},
			{"token-key-rotation-days", "90", p(func(d Deployment) any { return d.TokenKeyAge() }), 90 * 24 * time.Hour, "-1"},
			{"queue-sidecar-token-audiences", "b,a", p(func(d Deployment) any { return d.QueueSidecarTokenAudiences }), []string{"a", "b"}, ""},
			{"queue-sidecar-rootca", "pem", p(func(d Deployment) any { return d.QueueSidecarRootCA }), "pem", ""},
			{"queue-sidecar-tls-min-version", "1.3", p(func(d Deployment) any { return d.QueueSidecarTLS.MinVersion }), "1.3", "1.1"},
			{"queue-sidecar-tls-max-version", "1.2", p(func(d Deployment) any { return d.QueueSidecarTLS.MaxVersion }), "1.2", "2"},
			{"queue-sidecar-tls-cipher-suites", "a, b", p(func(d Deployment) any { return d.QueueSidecarTLS.CipherSuites }), "a,b", ""},
			{"queue-sidecar-tls-curve-preferences", "X25519", p(func(d Deployment) any { return d.QueueSidecarTLS.CurvePreferences }), "X25519", ""},
			{"default-affinity-type", "none", p(func(d Deployment) any { return d.DefaultAffinity }), AffinityNone, "spread"},
			{"runtime-class-name", "kata: {selector: {a: b}}", p(func(d Deployment) any { return d.RuntimeClassName(map[string]string{"a": "b"}) }), "kata", "- kata"},
			{"pod-is-always-schedulable", "true", p(func(d Deployment) any { return d.PodIsAlwaysSchedulable }), true, "x"},
		},
		DomainName: {
			{"<domain>", "", func(s *Snapshot) any { return s.Domain.Lookup(nil, "cluster.local") }, "domain", "{selector: 7}"},
		},
		GCName: {
			{"retain-since-create-time", "disabled", func(s *Snapshot) any { return s.GC.RetainSinceCreateTime }, (*time.Duration)(nil), "-1h"},
			{"retain-since-last-active-time", "1h", func(s *Snapshot) any { return s.GC.RetainSinceLastActiveTime }, ptr(time.Hour), "x"},
			{"min-non-active-revisions", "1000", func(s *Snapshot) any { return s.GC.MinNonActiveRevisions }, int64(1000), "1001"},
			{"max-non-active-revisions", "Disabled", func(s *Snapshot) any { return s.GC.MaxNonActiveRevisions }, (*int64)(nil), "19"},
		},
		NetworkName: {
			{"ingress-class", "x", n(func(n Network) any { return n.IngressClass }), "x", " "},
			{"certificate-class", "x", n(func(n Network) any { return n.CertificateClass }), "x", ""},
			{"namespace-wildcard-cert-selector", "matchLabels: {a: b}", n(func(n Network) any { return n.NamespaceWildcardCertSelector }), &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, "matchExpressions: [{key: a, operator: Near}]"},
			{"domain-template", "{{.Name}}--{{.Namespace}}.{{.Domain}}", n(func(n Network) any { return n.DomainTemplate.String() }), "{{.Name}}--{{.Namespace}}.{{.Domain}}", "{{.Nmae}}"},
			{"domain-template", "{{.Name}}.{{index .Labels \"zone\"}}.{{.Domain}}", n(func(n Network) any { return n.DomainTemplate.String() }), "{{.Name}}.{{index .Labels \"zone\"}}.{{.Domain}}", "{{.Name}}/{{.Domain}}"},
			{"tag-template", "{{.Name}}-{{.Tag}}", n(func(n Network) any { return n.TagTemplate.String() }), "{{.Name}}-{{.Tag}}", "{{.Tag}}.{{.Name}}"},
			{"external-domain-tls", "enabled", n(func(n Network) any { return n.ExternalDomainTLS }), true, "on"},
			{"cluster-local-domain-tls", "Enabled", n(func(n Network) any { return n.ClusterLocalDomainTLS }), true, "on"},
			{"system-internal-tls", "Enabled", n(func(n Network) any { return n.SystemInternalTLS }), true, "on"},
			{"http-protocol", "Redirected", n(func(n Network) any { return n.HTTPProtocol }), HTTPRedirected, "tls"},
			{"rollout-duration", "60", n(func(n Network) any { return n.RolloutDuration }), time.Minute, "60s"},
			{"autocreate-cluster-domain-claims", "true", n(func(n Network) any { return n.AutoCreateClusterDomainClaims }), true, "x"},
			{"enable-mesh-pod-addressability", "true", n(func(n Network) any { return n.EnableMeshPodAddressability }), true, "x"},
			{"mesh-compatibility-mode", "enabled", n(func(n Network) any { return n.MeshCompatibilityMode }), "enabled", "x"},
			{"default-external-scheme", "https", n(func(n Network) any { return n.DefaultExternalScheme }), "https", "ftp"},
			{"system-internal-tls-allow-serve-mode", "true", n(func(Network) any { return true }), true, ""},
		},
		ObservabilityName: {
			{"logging.enable-var-log-collection", "true", o(func(o Observability) any { return o.EnableVarLogCollection }), true, "x"},
			{"logging.revision-url-template", "http://l/${REVISION_UID}", o(func(o Observability) any { return o.RevisionURLTemplate }), "http://l/${REVISION_UID}", ""},
			{"logging.request-log-template", "{{.Request.Method}}", o(func(o Observability) any { return o.RequestLogTemplate }), "{{.Request.Method}}", "{{"},
			{"logging.enable-request-log", "true", o(func(o Observability) any { return o.EnableRequestLog }), true, "x"},
			{"logging.enable-probe-request-log", "true", o(func(o Observability) any { return o.EnableProbeRequestLog }), true, "x"},
			{"metrics-protocol", "prometheus", o(func(o Observability) any { return o.Metrics.Protocol }), "prometheus", "grpc"},
			{"metrics-endpoint", "", o(func(o Observability) any { return o.Metrics.Endpoint }), "", "collector:4317"},
			{"metrics-export-interval", "3s", o(func(o Observability) any { return o.Metrics.Interval }), 3 * time.Second, "3"},
			{"request-metrics-protocol", "prometheus", o(func(o Observability) any { return o.RequestMetrics.Protocol }), "prometheus", "udp"},
			{"request-metrics-endpoint", "", o(func(o Observability) any { return o.RequestMetrics.Endpoint }), "", "c:1"},
			{"request-metrics-export-interval", "3s", o(func(o Observability) any { return o.RequestMetrics.Interval }), 3 * time.Second, "x"},
			{"runtime-profiling", "enabled", o(func(o Observability) any { return o.RuntimeProfiling }), true, "on"},
			{"runtime-export-interval", "1s", o(func(o Observability) any { return o.RuntimeExportInterval }), time.Second, "x"},
			{"tracing-protocol", "stdout", o(func(o Observability) any { return o.Tracing.Protocol }), "stdout", "grpc"},
			{"tracing-endpoint", "", o(func(o Observability) any { return o.Tracing.Endpoint }), "", "c:1"},
			{"cold-start-header", "enabled", o(func(o Observability) any { return o.ColdStartHeader }), true, "on"},
			{"tracing-sampling-rate", "0.25", o(func(o Observability) any { return o.Tracing.SamplingRate }), 0.25, "1.1"},
		},
		LoggingName: {
			{"zap-logger-config", `{"level":"warn","encoding":"json"}`, func(s *Snapshot) any { return s.Logging.LevelOf("controller") }, slog.LevelWarn, `{"level":"loud"}`},
			{"loglevel.<component>", "debug", func(s *Snapshot) any { return s.Logging.LevelOf("component") }, slog.LevelDebug, "loud"},
		},
		LeaderElectionName: {
			{"lease-duration", "2m", func(s *Snapshot) any { return s.LeaderElection.LeaseDuration }, 2 * time.Minute, "40s"},
			{"renew-deadline", "20s", func(s *Snapshot) any { return s.LeaderElection.RenewDeadline }, 20 * time.Second, "12s"},
			{"retry-period", "2s", func(s *Snapshot) any { return s.LeaderElection.RetryPeriod }, 2 * time.Second, "x"},
			{"buckets", "10", func(s *Snapshot) any { return s.LeaderElection.Buckets }, uint32(10), "11"},
			{"map-lease-prefix.<component>", "other", func(s *Snapshot) any { return s.LeaderElection.LeasePrefixes }, map[string]string{"component": "other"}, "not a name"},
		},
		CertManagerName: {
			{"issuerRef", issuer, func(s *Snapshot) any { return s.CertManager.Issuer }, IssuerRef{Name: "mine", Kind: "Issuer"}, "kind: Issuer"},
			{"clusterLocalIssuerRef", issuer, func(s *Snapshot) any { return s.CertManager.ClusterLocalIssuer }, IssuerRef{Name: "mine", Kind: "Issuer"}, "[]"},
			{"systemInternalIssuerRef", issuer, func(s *Snapshot) any { return s.CertManager.SystemInternalIssuer }, IssuerRef{Name: "mine", Kind: "Issuer"}, "nmae: x"},
		},
		GatewayName: {
			{"external-gateways", gateways, func(s *Snapshot) any { return s.Gateway.External }, refs, "- class: x\n  gateway: noslash\n  service: a/b"},
			{"local-gateways", gateways, func(s *Snapshot) any { return s.Gateway.Local }, refs, "[]"},
			{"resting-routes", "Enabled", func(s *Snapshot) any { return s.Gateway.Resting }, true, "perhaps"},
		},
		CourierName: {
			{"enabled", "true", c(func(c Courier) any { return c.Enabled }), true, "perhaps"},
			{"nats-url", "nats://nats.messaging:4222", c(func(c Courier) any { return c.NATS }), "nats://nats.messaging:4222", "http://nats"},
			{"nats-replicas", "3", c(func(c Courier) any { return c.Replicas }), int32(3), "0"},
			{"sync", "false", c(func(c Courier) any { return c.Synced }), false, "often"},
			{"store-bytes", "1073741824", c(func(c Courier) any { return c.Bytes }), int64(1 << 30), "1"},
			{"max-body", "1", c(func(c Courier) any { return c.MaxBody }), int64(1), "-1"},
			{"max-result", "1", c(func(c Courier) any { return c.MaxResult }), int64(1), "1e9"},
			{"queue-calls", "7", c(func(c Courier) any { return c.QueueCalls }), int32(7), "0"},
			{"concurrency", "7", c(func(c Courier) any { return c.Concurrency }), int32(7), "0"},
			{"attempts", "7", c(func(c Courier) any { return c.Attempts }), int32(7), "0"},
			{"first-backoff", "2s", c(func(c Courier) any { return c.FirstBackoff }), 2 * time.Second, "10m"},
			{"longest-backoff", "1m", c(func(c Courier) any { return c.MaxBackoff }), time.Minute, "1ms"},
			{"attempt-timeout", "1m", c(func(c Courier) any { return c.AttemptTimeout }), time.Minute, "0s"},
			{"keep-queued", "1m", c(func(c Courier) any { return c.KeepQueued }), time.Minute, "0s"},
			{"keep-results", "1m", c(func(c Courier) any { return c.KeepResults }), time.Minute, "0s"},
			{"keep-dead", "1m", c(func(c Courier) any { return c.KeepDead }), time.Minute, "0s"},
			{"results-per-namespace", "7", c(func(c Courier) any { return c.ResultsOfOne }), int32(7), "0"},
			{"max-hops", "2", c(func(c Courier) any { return c.Hops }), int32(2), "0"},
			{"callback-networks", "10.1.0.0/16, fd00::/8", c(func(c Courier) any { return fmt.Sprint(c.Callbacks) }), "[10.1.0.0/16 fd00::/8]", "10.1.0.0"},
		},
	}
	for _, row := range rules.FeatureTable {
		t[FeaturesName] = append(t[FeaturesName], flagRow(row.Key, "allowed", rules.Allowed))
	}
	t[FeaturesName] = append(t[FeaturesName],
		flagRow(rules.KeySecurePodDefaults, "allowrootbounded", rules.AllowRootBounded),
		flagRow(rules.KeyMultiContainer, "perhaps", rules.Enabled),
		flagRow(rules.KeyMultiContainer, "DISABLED", rules.Disabled))
	return t
}

func with(name, key, value string) map[string]map[string]string {
	data := map[string]string{strings.NewReplacer("<", "", ">", "").Replace(key): value}
	if name == DeploymentName && key != "queue-sidecar-image" && key != "queueSidecarImage" {
		data["queue-sidecar-image"] = "x"
	}
	return map[string]map[string]string{name: data}
}

func TestEveryKeySetsItsField(t *testing.T) {
	covered := map[string]bool{}
	for name, rows := range table() {
		for _, row := range rows {
			covered[name+" "+row.key] = true
			t.Run(name+"/"+row.key+"="+row.value, func(t *testing.T) {
				s, err := Parse(with(name, row.key, row.value))
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(row.want, row.get(s)); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
				if row.bad == "" {
					return
				}
				data := with(name, row.key, row.bad)
				if s, err = Parse(data); err == nil {
					t.Fatalf("%q was accepted: %v", row.bad, row.get(s))
				}
				if s != nil {
					t.Error("a Snapshot came with the error")
				}
				if !strings.Contains(err.Error(), "ConfigMap "+name+": key ") {
					t.Errorf("the error does not name map and key: %v", err)
				}
				if one := ParseOne(name, data[name]); one == nil || one.Error() != err.Error() {
					t.Errorf("ParseOne says %v, Parse says %v", one, err)
				}
			})
		}
	}
	for _, one := range sections(&Snapshot{}) {
		for _, k := range one.keys {
			if !covered[one.name+" "+k.name] {
				t.Errorf("no row for %s %s", one.name, k.name)
			}
		}
	}
}

func TestOlderSpellingsCountUnlessTheKeyIsSet(t *testing.T) {
	for _, one := range sections(&Snapshot{}) {
		for _, k := range one.keys {
			for _, row := range table()[one.name] {
				for _, old := range k.legacy {
					if row.key == k.name {
						checkOlderSpelling(t, one.name, k, old, row)
					}
				}
			}
		}
	}
}

func checkOlderSpelling(t *testing.T, configMap string, k key, old string, row set) {
	t.Helper()
	s, err := Parse(with(configMap, old, row.value))
	if err != nil {
		t.Errorf("%s: %v", old, err)
		return
	}
	if d := cmp.Diff(row.want, row.get(s)); d != "" {
		t.Errorf("%s (-want +got):\n%s", old, d)
	}
	if k.Default == "" {
		return
	}
	both := with(configMap, old, row.value)
	both[configMap][k.name] = k.Default
	s, err = Parse(both)
	if err != nil {
		t.Errorf("%s next to %s: %v", old, k.name, err)
		return
	}
	if d := cmp.Diff(row.get(Default()), row.get(s)); d != "" {
		t.Errorf("%s wins over %s:\n%s", old, k.name, d)
	}
}

func TestEveryFaultIsReportedAtOnce(t *testing.T) {
	_, err := Parse(map[string]map[string]string{
		AutoscalerName: {"min-scale": "x", "stable-window": "1s"}, NetworkName: {"http-protocol": "y"},
	})
	for _, want := range []string{"min-scale", "stable-window", "http-protocol"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
}

func TestConfigDeploymentMustNameTheSidecar(t *testing.T) {
	if err := ParseOne(DeploymentName, map[string]string{}); err == nil || !strings.Contains(err.Error(), "queue-sidecar-image") {
		t.Errorf("got %v", err)
	}
	if _, err := Parse(nil); err != nil {
		t.Errorf("absent maps mean their defaults, got %v", err)
	}
}

// KServe tells its users to set its own image there, and manifests of Knative have Knative's.
func TestTheSidecarIsNoOtherProgram(t *testing.T) {
	for image, foreign := range map[string]bool{
		"kserve/qpext:latest": true, "localhost:5000/qpext": true, "example.test/kserve/qpext@sha256:00": true,
		"gcr.io/knative-releases/knative.dev/serving/cmd/queue:v1.20.0@sha256:00": true,
		"ko.local/queue-39be6f1d08a095bd076a71d288d295b6:latest":                  true,
		"dev.local/ebb/queue-proxy:dev":                                           false, "localhost:5000/mirror/qp": false, "example.test/qpext/queue-proxy:1": false,
	} {
		err := ParseOne(DeploymentName, map[string]string{"queue-sidecar-image": image})
		if (err != nil) != foreign || foreign && !strings.Contains(err.Error(), "another program") {
			t.Errorf("%s: %v", image, err)
		}
	}
}

func TestMaxScaleObeysItsLimit(t *testing.T) {
	if err := ParseOne(AutoscalerName, map[string]string{"max-scale-limit": "5", "max-scale": "5"}); err != nil {
		t.Error(err)
	}
	for _, v := range []string{"0", "6"} {
		if err := ParseOne(AutoscalerName, map[string]string{"max-scale-limit": "5", "max-scale": v}); err == nil {
			t.Errorf("max-scale %s was accepted under max-scale-limit 5", v)
		}
	}
}

func TestDomainLookup(t *testing.T) {
	s, err := Parse(map[string]map[string]string{DomainName: {
		"default.org": "", "b.com": "selector: {app: shop}", "a.com": "selector: {app: shop}",
		"precise.com": "selector: {app: shop, tier: gold}\ntype: wildcard", "_example": "ignored",
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ labels, want, why string }{
		{"", "default.org", "no selector matches"},
		{"app=shop", "a.com", "equal selectors: first by name"},
		{"app=shop,tier=gold", "precise.com", "largest selector"},
		{"app=other", "default.org", "no selector matches"},
	} {
		labels := map[string]string{}
		for _, l := range strings.Split(row.labels, ",") {
			if k, v, ok := strings.Cut(l, "="); ok {
				labels[k] = v
			}
		}
		if got := s.Domain.Lookup(labels, "cluster.local"); got != row.want {
			t.Errorf("%q: got %s, want %s: %s", row.labels, got, row.want, row.why)
		}
	}
	if got := (Domain{}).Lookup(nil, "my.cluster"); got != "svc.my.cluster" {
		t.Errorf("without any domain: %s", got)
	}
}

func TestTemplatesAreBounded(t *testing.T) {
	s, err := Parse(map[string]map[string]string{NetworkName: {"domain-template": `{{.Name}}{{index .Annotations "x"}}.{{.Domain}}`}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Network.DomainTemplate.Expand(DomainValues{Name: "a", Domain: "b",
		Annotations: map[string]string{"x": strings.Repeat("y", 300)}})
	if err == nil {
		t.Error("a name of 300 bytes was made")
	}
	if _, err := (Template{}).Expand(nil); err == nil {
		t.Error("the zero template made a name")
	}
}

func TestAnEditedExampleIsRefused(t *testing.T) {
	for name, m := range readShipped(t) {
		if _, ok := m.Data[ExampleKey]; !ok {
			continue
		}
		m.Data[ExampleKey] += "# more\n"
		if err := VerifyExample(name, m.Annotations, m.Data); err == nil {
			t.Errorf("%s: an edited _example was accepted", name)
		}
		if err := VerifyExample(name, nil, m.Data); err != nil {
			t.Errorf("%s: without a checksum: %v", name, err)
		}
	}
}

func TestStoreWakesWaiters(t *testing.T) {
	store := NewStore(nil)
	old, replaced := store.Current()
	select {
	case <-replaced:
		t.Fatal("replaced before anything happened")
	default:
	}
	newer := Default()
	store.Set(newer)
	<-replaced
	if store.Load() != newer || old == newer {
		t.Error("the newer Snapshot is not there")
	}
}

// The seeds are short, and one ConfigMap is read, not all: Go's fuzzer minimizes each input that
// reaches something new by trying every part of it that could be left out, which for a few hundred
// bytes takes the minute it has for that, and nothing else is tried meanwhile.
func FuzzParse(f *testing.F) {
	const long = 80
	for name, rows := range table() {
		for _, row := range rows {
			for _, value := range []string{row.value, row.bad} {
				if len(value) <= long {
					f.Add(name, row.key, value)
				}
			}
		}
	}
	f.Add(GatewayName, "local-gateways", "[{class: c, gateway: a/b, service: a/c, supported-features: [d]}]")
	f.Fuzz(func(t *testing.T, name, key, value string) {
		data := map[string]string{key: value, "queue-sidecar-image": "x"}
		s := Default()
		for _, one := range sections(s) {
			if one.name == name {
				one.read(data)
			}
		}
		Warnings(name, data)
		if ParseOne(name, data) == nil {
			s.Domain.Lookup(map[string]string{key: value}, "cluster.local")
			_, _ = s.Network.DomainTemplate.Expand(DomainValues{Name: value})
			_, _ = s.Network.TagTemplate.Expand(TagValues{Name: value})
		}
	})
}
