package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"ebb.dev/ebb/standby"
)

// Sidecar is what queue-proxy is told: its environment (contract section 5.1), the variables of
// which stand nowhere else. The controller begins with NewSidecar and writes Env into the pods of a
// revision, and queue-proxy calls ReadSidecar.
type Sidecar struct {
	Place
	Ports
	Limits
	Health
	Sleep
	Reports
	Secrets

	LogLevel      string
	LogConfig     string // of zap; read by KServe's agent, into which KServe copies the environment
	Observability Observability
	TLS           SidecarTLS
	RootCA        string // PEM of further authorities for what queue-proxy connects to
	CertDir       string // of tls.crt and tls.key
	DrainQuiet    time.Duration
}

// Place is whose sidecar it is, and where it runs.
type Place struct {
	Namespace, Service, Configuration, Revision string

	Pod, PodUID string
	PodIP       netip.Addr   // invalid if it is not known: then nothing is announced
	NodeIPs     []netip.Addr // the node agent calls from there
}

// Ports are where queue-proxy and the user container listen.
type Ports struct {
	Port, TLSPort, UserPort int // 0 is any free port
	// The other ports differ in tests alone.
	DrainPort, StatPort, MetricsPort, ProfilingPort, StandbyPort int
}

// Health is how queue-proxy finds out whether the containers serve.
type Health struct {
	Probes         []Probe // all must pass; without any the user container's port must accept
	StartupProbes  []Probe // must have passed once before Probes are asked
	LivenessProbes map[string]Probe
	DetectHTTP2    bool // for HTTP probes
}

// Sleep is how the pod may sleep, and when it must not.
type Sleep struct {
	// Standby is the deepest level at which the pod may sleep, nil for never.
	Standby *standby.Level
	// SleepHook and WakeHook are called before the pod sleeps and after it woke, nil for none.
	SleepHook, WakeHook *standby.Hook
	// BusyFor bounds for how long a response may say in HeaderBusy that the program is busy; 0 lets
	// none say it.
	BusyFor time.Duration
}

// Reports are what queue-proxy tells of the pod, and to whom.
type Reports struct {
	Activators string // host:port, "" for no announcements
	Autoscaler string // host:port, "" for no reports
	Told       []ToldMetric
	Records    string // RecordsNone, RecordsAsynchronous or RecordsAll
	// WarmUp is how long the times of requests do not count for a judge of rollouts, from the first
	// that the container gets: its caches are cold, those of another revision's older pods are not.
	WarmUp time.Duration
}

// Secrets are what queue-proxy shows, or is shown.
type Secrets struct {
	// The pod's token is made of Key, that of its namespace, or is Token, or is made of the key in
	// KeyFile, whichever is set first.
	Key, Token, KeyFile string
	DrainToken          string // of the preStop hook
}

// Limits are what both proxies hold the requests of a revision to.
type Limits struct {
	Concurrency int // requests at once in a pod; 0 is no limit
	// 0 is no timeout.
	Timeout, ResponseStartTimeout, IdleTimeout time.Duration
	Handling
}

// Handling is how both proxies handle the requests of a revision, by annotations and settings.
type Handling struct {
	// CutResponses: a response that has begun is cut when a timer fires, instead of ended with a
	// trailer.
	CutResponses bool
}

// Whether a timer ends or cuts a response that has begun, in words.
const (
	ResponseTimeoutEnd = "end"
	ResponseTimeoutCut = "cut"
)

// SidecarTLS is as of package tlsoptions.
type SidecarTLS struct{ MinVersion, MaxVersion, CipherSuites, CurvePreferences string }

// Observability is what queue-proxy needs of config-observability.
type Observability struct {
	EnableRequestLog      bool    `json:"enableRequestLog,omitempty"`
	EnableProbeRequestLog bool    `json:"enableProbeRequestLog,omitempty"`
	RequestLogTemplate    string  `json:"requestLogTemplate,omitempty"`
	RequestMetrics        Export  `json:"requestMetrics"`
	Tracing               Tracing `json:"tracing"`
	RuntimeProfiling      bool    `json:"runtimeProfiling,omitempty"`
}

// Export says where metrics go.
type Export struct {
	Protocol string `json:"protocol,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Interval string `json:"interval,omitempty"` // a duration; "" is the exporter's default
}

// Tracing says where spans go, and of which part of the requests.
type Tracing struct {
	Protocol     string  `json:"protocol,omitempty"`
	Endpoint     string  `json:"endpoint,omitempty"`
	SamplingRate float64 `json:"samplingRate,omitempty"`
}

// Names of the variables whose values the kubelet fills in.
const (
	EnvPod     = "SERVING_POD"
	EnvPodIP   = "SERVING_POD_IP"
	EnvPodUID  = "EBB_POD_UID"
	EnvNodeIPs = "EBB_NODE_IPS"
	EnvKey     = "EBB_KEY"
)

// DefaultWarmUp is that of a revision that says nothing.
const DefaultWarmUp = 10 * time.Second

// NewSidecar returns what a queue-proxy is told that has no environment.
func NewSidecar() *Sidecar {
	return &Sidecar{
		Ports: Ports{Port: PortHTTP1, TLSPort: PortTLS, UserPort: 8080,
			DrainPort: PortDrain, StatPort: PortMetrics, MetricsPort: PortUserMetrics, ProfilingPort: PortProfiling, StandbyPort: standby.Port},
		Reports: Reports{Records: RecordsAsynchronous, WarmUp: DefaultWarmUp},
		CertDir: "/var/lib/knative/certs", DrainQuiet: 5 * time.Second,
	}
}

// variables are all of the environment. A variable is read after those before it.
func (s *Sidecar) variables() []variable {
	return []variable{
		text("SERVING_NAMESPACE", &s.Namespace).needed(),
		text("SERVING_SERVICE", &s.Service),
		text("SERVING_CONFIGURATION", &s.Configuration),
		text("SERVING_REVISION", &s.Revision).needed(),
		text(EnvPod, &s.Pod).needed(),
		of(EnvPodIP, &s.PodIP, netip.ParseAddr, showAddress),
		text(EnvPodUID, &s.PodUID),
		of(EnvNodeIPs, &s.NodeIPs, readAddresses, showAddresses),
		port("QUEUE_SERVING_PORT", &s.Port),
		port("QUEUE_SERVING_TLS_PORT", &s.TLSPort),
		port("USER_PORT", &s.UserPort),
		port("EBB_DRAIN_PORT", &s.DrainPort).spare(),
		port("EBB_STAT_PORT", &s.StatPort).spare(),
		port("EBB_METRICS_PORT", &s.MetricsPort).spare(),
		port("EBB_PPROF_PORT", &s.ProfilingPort).spare(),
		port("EBB_STANDBY_PORT", &s.StandbyPort).spare(),
		of("CONTAINER_CONCURRENCY", &s.Concurrency, bounded(Slots), strconv.Itoa),
		of("REVISION_TIMEOUT_SECONDS", &s.Timeout, bounded(Seconds), wholeSeconds),
		of("REVISION_RESPONSE_START_TIMEOUT_SECONDS", &s.ResponseStartTimeout, bounded(Seconds), wholeSeconds),
		of("REVISION_IDLE_TIMEOUT_SECONDS", &s.IdleTimeout, bounded(Seconds), wholeSeconds),
		word("RESPONSE_TIMEOUT_ACTION", &s.CutResponses, ResponseTimeoutEnd, ResponseTimeoutCut),
		word("ENABLE_HTTP2_AUTO_DETECTION", &s.DetectHTTP2, "false", "true"),
		of("SERVING_READINESS_PROBE", &s.Probes, s.readProbes, showProbes),
		of("EBB_STARTUP_PROBE", &s.StartupProbes, s.readProbes, showProbes),
		of("EBB_LIVENESS_PROBES", &s.LivenessProbes, s.readProbesByContainer, show),
		of("EBB_TOLD_METRICS", &s.Told, ReadTold, show),
		of("EBB_RECORDS", &s.Records, readRecords, same).spare(),
		of("EBB_STANDBY", &s.Standby, readLevel, showLevel),
		of("EBB_STANDBY_SLEEP_HOOK", &s.SleepHook, readHook, showHook),
		of("EBB_STANDBY_WAKE_HOOK", &s.WakeHook, readHook, showHook),
		of("EBB_BUSY_FOR", &s.BusyFor, readDuration, time.Duration.String).spare(),
		of("EBB_WARM_UP", &s.WarmUp, readDuration, time.Duration.String).spare(),
		text("EBB_ACTIVATORS", &s.Activators),
		text("EBB_AUTOSCALER", &s.Autoscaler),
		text(EnvKey, &s.Key),
		text("EBB_TOKEN", &s.Token),
		text("EBB_KEY_FILE", &s.KeyFile),
		text("EBB_DRAIN_TOKEN", &s.DrainToken),
		text("SERVING_LOGGING_LEVEL", &s.LogLevel),
		text("SERVING_LOGGING_CONFIG", &s.LogConfig),
		of("OBSERVABILITY_CONFIG", &s.Observability, readObservability, show),
		text("QUEUE_PROXY_TLS_MIN_VERSION", &s.TLS.MinVersion),
		text("QUEUE_PROXY_TLS_MAX_VERSION", &s.TLS.MaxVersion),
		text("QUEUE_PROXY_TLS_CIPHER_SUITES", &s.TLS.CipherSuites),
		text("QUEUE_PROXY_TLS_CURVE_PREFERENCES", &s.TLS.CurvePreferences),
		text("ROOT_CA", &s.RootCA),
		text("EBB_CERT_DIR", &s.CertDir).spare(),
		of("EBB_DRAIN_QUIET", &s.DrainQuiet, readDuration, time.Duration.String).spare(),
	}
}

// Env returns the environment as os.Environ has it. A variable whose value is "" is left out, and
// so is a spare one that NewSidecar has: every revision's template lies in etcd and in caches.
func (s *Sidecar) Env() (env []string) {
	usual := NewSidecar().variables()
	for i, v := range s.variables() {
		if text := v.get(); text != "" && !(v.isSpare && text == usual[i].get()) {
			env = append(env, v.name+"="+text)
		}
	}
	return env
}

// ReadSidecar reads the environment. A variable that is "" counts as absent. The error names each
// variable that cannot be used.
func ReadSidecar(getenv func(string) string) (*Sidecar, error) {
	s := NewSidecar()
	var faults []error
	for _, v := range s.variables() {
		err := error(nil)
		if value := getenv(v.name); value != "" {
			err = v.set(value)
		} else if v.isNeeded {
			err = errors.New("is required")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("environment variable %s: %w", v.name, err))
		}
	}
	return s, errors.Join(faults...)
}

// Slots returns a limit of n requests, from 0 to 2^20. Admission does not bound every number, and
// more is as good.
func Slots(n int64) int { return int(min(max(n, 0), 1<<20)) }

// Seconds returns n seconds, from 0 to 2^30, which are 34 years.
func Seconds(n int64) time.Duration { return time.Duration(min(max(n, 0), 1<<30)) * time.Second }
