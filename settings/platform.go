package settings

import (
	"encoding/json"
	"log/slog"
	"regexp"
	"strings"
	"text/template"
	"time"

	"sigs.k8s.io/yaml"
)

// Observability is config-observability.
type Observability struct {
	EnableVarLogCollection bool
	RevisionURLTemplate    string // with ${REVISION_UID}
	RequestLogTemplate     string // Go template, see DefaultRequestLog
	EnableRequestLog       bool
	EnableProbeRequestLog  bool
	Metrics                Export // of Ebb's components
	RequestMetrics         Export // of queue-proxy
	RuntimeProfiling       bool   // pprof on port 8008
	RuntimeExportInterval  time.Duration
	Tracing                Tracing
	ColdStartHeader        bool // responses to requests that waited for a pod tell how long each step took
}

// Export says where metrics go.
type Export struct {
	Protocol string        // none, prometheus, http/protobuf, grpc
	Endpoint string        // OTLP target
	Interval time.Duration // 0 = the exporter's default
	Runtime  time.Duration // least time between two exports of the Go runtime's metrics; set by Store.MetricsExport
}

// Tracing says where spans go and how many.
type Tracing struct {
	Protocol     string // none, http/protobuf, grpc, stdout
	Endpoint     string
	SamplingRate float64 // 0..1
}

// DefaultRequestLog writes one JSON object a request, in the field names of the HttpRequest log
// type that log collectors understand.
const DefaultRequestLog = `{"httpRequest": {"requestMethod": "{{.Request.Method}}", "requestUrl": "{{js .Request.RequestURI}}", ` +
	`"requestSize": "{{.Request.ContentLength}}", "status": {{.Response.Code}}, "responseSize": "{{.Response.Size}}", ` +
	`"userAgent": "{{js .Request.UserAgent}}", "remoteIp": "{{js .Request.RemoteAddr}}", "serverIp": "{{.Revision.PodIP}}", ` +
	`"referer": "{{js .Request.Referer}}", "latency": "{{.Response.Latency}}s", "protocol": "{{.Request.Proto}}"}, ` +
	`"traceId": "{{.TraceID}}"}`

func readObservability(r *reader) Observability {
	export := func(prefix string) Export {
		e := Export{
			Protocol: r.oneOf(prefix+"metrics-protocol", "none", "none", "prometheus", "http/protobuf", "grpc"),
			Endpoint: r.text(prefix+"metrics-endpoint", ""),
		}
		if v := r.text(prefix+"metrics-export-interval", ""); v != "" {
			e.Interval = r.duration(prefix+"metrics-export-interval", 0, time.Millisecond, forever, false)
		}
		r.endpoint(prefix+"metrics-endpoint", e.Protocol, e.Endpoint)
		return e
	}
	o := Observability{
		EnableVarLogCollection: r.boolean("logging.enable-var-log-collection", false),
		RevisionURLTemplate:    r.text("logging.revision-url-template", ""),
		RequestLogTemplate:     r.text("logging.request-log-template", ""),
		EnableRequestLog:       r.boolean("logging.enable-request-log", false),
		EnableProbeRequestLog:  r.boolean("logging.enable-probe-request-log", false),
		Metrics:                export(""),
		RequestMetrics:         export("request-"),
		RuntimeProfiling:       r.oneOf("runtime-profiling", "disabled", "enabled", "disabled") == "enabled",
		RuntimeExportInterval:  r.duration("runtime-export-interval", 15*time.Second, time.Millisecond, forever, false),
		Tracing: Tracing{
			Protocol: r.oneOf("tracing-protocol", "none", "none", "http/protobuf", "grpc", "stdout"),
			Endpoint: r.text("tracing-endpoint", ""),
			SamplingRate: r.number("tracing-sampling-rate", 0,
				func(f float64) bool { return f >= 0 && f <= 1 }, "0 to 1"),
		},
		ColdStartHeader: r.oneOf("cold-start-header", "disabled", "enabled", "disabled") == "enabled",
	}
	if o.RequestLogTemplate == "" {
		o.RequestLogTemplate = DefaultRequestLog
	} else if _, err := template.New("request log").Parse(o.RequestLogTemplate); err != nil {
		r.fault("logging.request-log-template", o.RequestLogTemplate, "is not a Go template: %v", err)
	}
	r.endpoint("tracing-endpoint", o.Tracing.Protocol, o.Tracing.Endpoint)
	return o
}

// endpoint checks that a protocol that sends has somewhere to send to, and the others have not.
func (r *reader) endpoint(key, protocol, endpoint string) {
	sends := protocol == "http/protobuf" || protocol == "grpc"
	switch {
	case sends && endpoint == "":
		r.fault(key, "", "must be set when the protocol is %q", protocol)
	case protocol == "none" && endpoint != "":
		r.fault(key, endpoint, "is set, but the protocol is \"none\"")
	case strings.ContainsAny(endpoint, " \t\n"):
		r.fault(key, endpoint, "%q is not an address", endpoint)
	}
}

// Logging is config-logging.
type Logging struct {
	Level  slog.Level            // of components without a level of their own
	Levels map[string]slog.Level // by component
	Raw    string                // zap-logger-config as written, handed to queue-proxy as SERVING_LOGGING_CONFIG
}

// LevelOf is the log level of one component.
func (l Logging) LevelOf(component string) slog.Level {
	if level, ok := l.Levels[component]; ok {
		return level
	}
	return l.Level
}

// logLevel reads zap's level words; dpanic, panic and fatal are as silent as it gets.
func logLevel(word string) (slog.Level, bool) {
	switch strings.ToLower(word) {
	case "debug":
		return slog.LevelDebug, true
	case "info", "":
		return slog.LevelInfo, true
	case "warn", "warning":
		return slog.LevelWarn, true
	case "error":
		return slog.LevelError, true
	case "dpanic", "panic", "fatal":
		return slog.LevelError + 4, true
	}
	return slog.LevelInfo, false
}

func readLogging(r *reader) Logging {
	l := Logging{Level: slog.LevelInfo, Raw: r.text("zap-logger-config", "")}
	if l.Raw != "" {
		var zap struct {
			Level string `json:"level"`
		}
		if err := json.Unmarshal([]byte(l.Raw), &zap); err != nil {
			r.fault("zap-logger-config", l.Raw, "is not a JSON object: %v", err)
		} else if level, ok := logLevel(zap.Level); ok {
			l.Level = level
		} else {
			r.fault("zap-logger-config", l.Raw, "level %q is not one of debug, info, warn, error, dpanic, panic, fatal", zap.Level)
		}
	}
	for key, word := range r.data {
		component, ok := strings.CutPrefix(key, "loglevel.")
		if !ok || strings.TrimSpace(word) == "" {
			continue
		}
		level, ok := logLevel(strings.TrimSpace(word))
		if !ok {
			r.fault(key, word, "%q is not one of debug, info, warn, error, dpanic, panic, fatal", word)
			continue
		}
		if l.Levels == nil {
			l.Levels = map[string]slog.Level{}
		}
		l.Levels[component] = level
	}
	return l
}

// LeaderElection is config-leader-election.
type LeaderElection struct {
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	Buckets                                   uint32            // per component
	LeasePrefixes                             map[string]string // component -> lease name prefix
}

func readLeaderElection(r *reader) LeaderElection {
	l := LeaderElection{
		LeaseDuration: r.duration("lease-duration", time.Minute, time.Second, forever, false),
		RenewDeadline: r.duration("renew-deadline", 40*time.Second, time.Second, forever, false),
		RetryPeriod:   r.duration("retry-period", 10*time.Second, 100*time.Millisecond, forever, false),
		Buckets:       uint32(r.integer("buckets", 1, 1, 10)),
	}
	if l.RenewDeadline >= l.LeaseDuration {
		r.fault("renew-deadline", "", "%v must be less than lease-duration, which is %v", l.RenewDeadline, l.LeaseDuration)
	}
	if float64(l.RetryPeriod)*1.2 >= float64(l.RenewDeadline) {
		r.fault("retry-period", "", "%v must be less than renew-deadline, which is %v, divided by 1.2",
			l.RetryPeriod, l.RenewDeadline)
	}
	for key, value := range r.data {
		if reconciler, ok := strings.CutPrefix(key, "map-lease-prefix."); ok {
			if l.LeasePrefixes == nil {
				l.LeasePrefixes = map[string]string{}
			}
			prefix := strings.TrimSpace(value)
			if prefix != "" && (len(prefix) > 200 || !dnsDomain.MatchString(prefix)) {
				r.fault(key, value, "%q cannot begin the name of a lease, expected a DNS name", prefix)
				continue
			}
			l.LeasePrefixes[reconciler] = prefix
		}
	}
	if p := l.LeasePrefixes; p["controller"] != "" && p["controller"] == p["autoscaler"] {
		r.fault("map-lease-prefix.autoscaler", p["autoscaler"], "is the prefix of the controller, too: they would take each other's leases")
	}
	return l
}

// CertManager is config-certmanager: who signs which kind of certificate.
type CertManager struct {
	Issuer, ClusterLocalIssuer, SystemInternalIssuer IssuerRef
}

// IssuerRef names a cert-manager Issuer or ClusterIssuer.
type IssuerRef struct {
	Name  string `json:"name"`
	Kind  string `json:"kind,omitempty"`
	Group string `json:"group,omitempty"`
}

func readCertManager(r *reader) CertManager {
	issuer := func(key string) IssuerRef {
		ref := IssuerRef{Name: "knative-selfsigned-issuer", Kind: "ClusterIssuer"}
		text, key, ok := r.lookup(key)
		if !ok || text == "" {
			return ref
		}
		var given IssuerRef
		if err := yaml.UnmarshalStrict([]byte(text), &given); err != nil {
			r.fault(key, text, "is not YAML of the form {kind: ClusterIssuer, name: my-issuer}: %v", err)
			return ref
		}
		if given.Name == "" {
			r.fault(key, text, "names no issuer")
			return ref
		}
		if given.Kind == "" {
			given.Kind = "Issuer"
		}
		return given
	}
	return CertManager{
		Issuer: issuer("issuerRef"), ClusterLocalIssuer: issuer("clusterLocalIssuerRef"),
		SystemInternalIssuer: issuer("systemInternalIssuerRef"),
	}
}

// Gateway is config-gateway: the Gateways that carry the hosts of Routes.
type Gateway struct {
	External []GatewayRef // public hosts
	Local    []GatewayRef // <route>.<namespace>.svc.<cluster domain>
}

// GatewayRef is one Gateway and the Service in front of its pods.
type GatewayRef struct {
	Class             string   // GatewayClass
	Gateway           string   // namespace/name
	Service           string   // namespace/name
	HTTPListener      string   // section name of the plain listener; "" = any
	SupportedFeatures []string // Gateway API feature names that the class implements beyond the core
}

// Namespace and Name of the Gateway object.
func (g GatewayRef) Namespace() string { ns, _, _ := strings.Cut(g.Gateway, "/"); return ns }
func (g GatewayRef) Name() string      { _, n, _ := strings.Cut(g.Gateway, "/"); return n }

// ServiceNamespace and ServiceName of the Service in front of the Gateway's pods.
func (g GatewayRef) ServiceNamespace() string { ns, _, _ := strings.Cut(g.Service, "/"); return ns }
func (g GatewayRef) ServiceName() string      { _, n, _ := strings.Cut(g.Service, "/"); return n }

var namespacedName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

func readGateway(r *reader) Gateway {
	list := func(key, def string) []GatewayRef {
		text, key, ok := r.lookup(key)
		if !ok || text == "" {
			text = def
		}
		var entries []struct {
			Class             string   `json:"class"`
			Gateway           string   `json:"gateway"`
			Service           string   `json:"service"`
			HTTPListener      string   `json:"http-listener-name"`
			SupportedFeatures []string `json:"supported-features"`
		}
		if err := yaml.UnmarshalStrict([]byte(text), &entries); err != nil {
			r.fault(key, text, "is not a YAML list of {class, gateway, service}: %v", err)
			return nil
		}
		if len(entries) == 0 {
			r.fault(key, text, "names no Gateway")
		}
		var refs []GatewayRef
		for i, e := range entries {
			switch {
			case e.Class == "":
				r.fault(key, text, "entry %d has no class", i)
			case !namespacedName.MatchString(e.Gateway):
				r.fault(key, text, "entry %d: gateway %q is not namespace/name", i, e.Gateway)
			case !namespacedName.MatchString(e.Service):
				r.fault(key, text, "entry %d: service %q is not namespace/name", i, e.Service)
			default:
				refs = append(refs, GatewayRef{Class: e.Class, Gateway: e.Gateway, Service: e.Service,
					HTTPListener: e.HTTPListener, SupportedFeatures: sorted(e.SupportedFeatures)})
			}
		}
		return refs
	}
	return Gateway{
		External: list("external-gateways", defaultExternalGateways),
		Local:    list("local-gateways", defaultLocalGateways),
	}
}

const (
	defaultExternalGateways = `- class: istio
  gateway: knative-serving/ebb-external
  service: knative-serving/ebb-external-istio
  supported-features:
  - HTTPRouteRequestTimeout
  - ListenerSet
`
	defaultLocalGateways = `- class: istio
  gateway: knative-serving/ebb-local
  service: knative-serving/ebb-local-istio
  supported-features:
  - HTTPRouteRequestTimeout
  - ListenerSet
`
)
