package settings

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"ebb.dev/ebb/internal/otlp"
)

// Observability is config-observability.
type Observability struct {
	EnableVarLogCollection bool
	RevisionURLTemplate    string // with ${REVISION_UID}
	RequestLogTemplate     string // Go template, see DefaultRequestLog
	EnableRequestLog       bool
	EnableProbeRequestLog  bool
	Metrics                otlp.Export // of Ebb's components
	RequestMetrics         otlp.Export // of queue-proxy
	RuntimeProfiling       bool        // pprof on port 8008
	RuntimeExportInterval  time.Duration
	Tracing                Tracing
	ColdStartHeader        bool // responses to requests that waited for a pod tell how long each step took
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

func (s *Snapshot) checkObservability(r *reader) {
	o := &s.Observability
	if o.RequestLogTemplate == "" {
		o.RequestLogTemplate = DefaultRequestLog
	}
	r.endpoint("metrics-endpoint", o.Metrics.Protocol, o.Metrics.Endpoint)
	r.endpoint("request-metrics-endpoint", o.RequestMetrics.Protocol, o.RequestMetrics.Endpoint)
	r.endpoint("tracing-endpoint", o.Tracing.Protocol, o.Tracing.Endpoint)
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
	Raw    string                // zap-logger-config as written, for KServe's agent
}

// LevelOf is the log level of one component.
func (l Logging) LevelOf(component string) slog.Level {
	if level, ok := l.Levels[component]; ok {
		return level
	}
	return l.Level
}

// levels are zap's words. The last three log as little as possible.
const levels = "debug, info, warn, error, dpanic, panic, fatal"

func logLevel(word string) (slog.Level, error) {
	switch strings.ToLower(word) {
	case "debug":
		return slog.LevelDebug, nil
	case "info", "":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	case "dpanic", "panic", "fatal":
		return slog.LevelError + 4, nil
	}
	return 0, fmt.Errorf("level %q is not one of %s", word, levels)
}

func (l *Logging) setZap(text string) error {
	var zap struct {
		Level string `json:"level"`
	}
	if err := json.Unmarshal([]byte(text), &zap); err != nil {
		return fmt.Errorf("is not a JSON object: %w", err)
	}
	level, err := logLevel(zap.Level)
	if err == nil {
		l.Level, l.Raw = level, text
	}
	return err
}

func (l *Logging) setLevel(component, word string) error {
	level, err := logLevel(word)
	if err != nil || word == "" {
		return err
	}
	if l.Levels == nil {
		l.Levels = map[string]slog.Level{}
	}
	l.Levels[component] = level
	return nil
}

// checkLogging leaves Raw empty when it is not set: every pod would have it.
func (s *Snapshot) checkLogging(r *reader) {
	if !r.has("zap-logger-config") {
		s.Logging.Raw = ""
	}
}

// LeaderElection is config-leader-election.
type LeaderElection struct {
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	Buckets                                   uint32            // per component
	LeasePrefixes                             map[string]string // component -> lease name prefix
}

func (l *LeaderElection) setPrefix(component, prefix string) error {
	if prefix != "" && (len(prefix) > 200 || !dnsDomain.MatchString(prefix)) {
		return fmt.Errorf("%q cannot begin the name of a lease, expected a DNS name", prefix)
	}
	if l.LeasePrefixes == nil {
		l.LeasePrefixes = map[string]string{}
	}
	l.LeasePrefixes[component] = prefix
	return nil
}

func (s *Snapshot) checkLeaderElection(r *reader) {
	l := &s.LeaderElection
	if l.RenewDeadline >= l.LeaseDuration {
		r.fault("renew-deadline", "", "%v must be less than lease-duration, which is %v", l.RenewDeadline, l.LeaseDuration)
	}
	if float64(l.RetryPeriod)*1.2 >= float64(l.RenewDeadline) {
		r.fault("retry-period", "", "%v must be less than renew-deadline, which is %v, divided by 1.2",
			l.RetryPeriod, l.RenewDeadline)
	}
	if p := l.LeasePrefixes; p["controller"] != "" && p["controller"] == p["autoscaler"] {
		r.fault("map-lease-prefix.autoscaler", p["autoscaler"], "is also the prefix of the controller: each would take the other's leases")
	}
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

func (ref *IssuerRef) set(text string) error {
	var given IssuerRef
	if err := unmarshal(text, &given, "YAML of the form {kind: ClusterIssuer, name: my-issuer}"); err != nil {
		return err
	}
	if given.Name == "" {
		return errors.New("names no issuer")
	}
	given.Kind = cmp.Or(given.Kind, "Issuer")
	*ref = given
	return nil
}

// Gateway is config-gateway: the Gateways that carry the hosts of Routes.
type Gateway struct {
	External []GatewayRef // public hosts
	Local    []GatewayRef // <route>.<namespace>.svc.<cluster domain>
	// Resting lets hosts that are served by activators share an HTTPRoute (decision 20).
	Resting bool
}

// GatewayRef is one Gateway and the Service in front of its pods.
type GatewayRef struct {
	Class        string `json:"class"`              // GatewayClass
	Gateway      string `json:"gateway"`            // namespace/name
	Service      string `json:"service"`            // namespace/name
	HTTPListener string `json:"http-listener-name"` // section name of the plain listener; "" = any
	// SupportedFeatures are the Gateway API features that the class implements beyond the core.
	SupportedFeatures []string `json:"supported-features"`
}

// Namespace and Name of the Gateway object.
func (g GatewayRef) Namespace() string { ns, _, _ := strings.Cut(g.Gateway, "/"); return ns }
func (g GatewayRef) Name() string      { _, n, _ := strings.Cut(g.Gateway, "/"); return n }

// ServiceNamespace and ServiceName of the Service in front of the Gateway's pods.
func (g GatewayRef) ServiceNamespace() string { ns, _, _ := strings.Cut(g.Service, "/"); return ns }
func (g GatewayRef) ServiceName() string      { _, n, _ := strings.Cut(g.Service, "/"); return n }

var namespacedName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// gateways takes a list of Gateways.
func gateways(to *[]GatewayRef) value {
	legal := "YAML list of {class, gateway: namespace/name, service: namespace/name, http-listener-name, supported-features}"
	return structured(legal, func(text string) error {
		var refs []GatewayRef
		if err := unmarshal(text, &refs, "a YAML list of {class, gateway, service}"); err != nil {
			return err
		}
		if len(refs) == 0 {
			return errors.New("names no Gateway")
		}
		for i, ref := range refs {
			switch {
			case ref.Class == "":
				return fmt.Errorf("entry %d has no class", i)
			case !namespacedName.MatchString(ref.Gateway):
				return fmt.Errorf("entry %d: gateway %q is not namespace/name", i, ref.Gateway)
			case !namespacedName.MatchString(ref.Service):
				return fmt.Errorf("entry %d: service %q is not namespace/name", i, ref.Service)
			}
			refs[i].SupportedFeatures = sorted(ref.SupportedFeatures)
		}
		*to = refs
		return nil
	})
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
