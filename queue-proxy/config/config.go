// Package config reads queue-proxy's environment (contract section 5.1) into one value.
//
// Owns: the meaning of the variables. Reads: what it is given. Never: looks at the process's
// environment itself, or at files.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/internal/tlsoptions"
	"ebb.dev/ebb/queue-proxy/internal/probe"
	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/wire"
)

// Config is everything queue-proxy is told.
type Config struct {
	Namespace, Service, Configuration, Revision, Pod string

	PodIP netip.Addr // invalid when not known; then nothing is announced

	Port, TLSPort, UserPort, AdminPort int
	StatPort, MetricsPort, PprofPort   int
	StandbyPort                        int

	Concurrency int // 0: no limit

	Timeout, ResponseStartTimeout, IdleTimeout time.Duration
	// CutResponses: a response that has begun is cut when a timer fires, instead of ended with a
	// trailer.
	CutResponses bool

	// Records says which requests the autoscaler gets records of (wire.RecordsAll and the others).
	Records string

	// Told are the metrics by which the user container tells its load.
	Told []wire.ToldMetric

	// Standby is the deepest level at which the pod may sleep, empty for never.
	Standby string
	PodUID  string
	NodeIPs []netip.Addr
	// LivenessProbes are those that queue-proxy runs for the kubelet, by container.
	LivenessProbes map[string]probe.Spec

	Probes        []probe.Spec // all must pass
	StartupProbes []probe.Spec // must have passed once before Probes are asked
	Activators    string       // host:port, "" for no announcements
	Autoscaler    string       // host:port, "" for no pushes
	KeyFile       string       // holds the namespace's key, from which the pod's token is made
	Token         string       // takes the place of KeyFile: in a pod without volumes, and outside a cluster
	DrainToken    string       // of the preStop hook
	LogLevel      string
	TLS           tlsoptions.Settings
	Observability Observability
	DrainQuiet    time.Duration // no new request for this long: drained
	CertDir       string
	CertInterval  time.Duration // how often it is looked into
	RootCA        string        // PEM of further authorities for what queue-proxy connects to
}

// Observability is OBSERVABILITY_CONFIG.
type Observability struct {
	EnableRequestLog      bool   `json:"enableRequestLog"`
	EnableProbeRequestLog bool   `json:"enableProbeRequestLog"`
	RequestLogTemplate    string `json:"requestLogTemplate"`
	RequestMetrics        struct {
		Protocol string `json:"protocol"`
		Endpoint string `json:"endpoint"`
		Interval string `json:"interval"`
	} `json:"requestMetrics"`
	Tracing struct {
		Protocol     string  `json:"protocol"`
		Endpoint     string  `json:"endpoint"`
		SamplingRate float64 `json:"samplingRate"`
	} `json:"tracing"`
	RuntimeProfiling bool `json:"runtimeProfiling"`
}

// MemoryLimit is the soft limit of the process. Above it the garbage collector runs more often.
const MemoryLimit = 48 << 20

// Queue-proxy's queue is this many times its concurrency (contract section 5.3), and at most this
// heavy, so that a full queue leaves the garbage collector room.
const (
	WaitingPerSlot = 10
	MostWaitBytes  = MemoryLimit / 2
)

// Parse reads the environment. Its error names every variable that cannot be used.
func Parse(getenv func(string) string) (*Config, error) {
	r := reader{getenv: getenv}
	c := &Config{
		Namespace:            r.text("SERVING_NAMESPACE"),
		Service:              getenv("SERVING_SERVICE"),
		Configuration:        getenv("SERVING_CONFIGURATION"),
		Revision:             r.text("SERVING_REVISION"),
		Pod:                  r.text("SERVING_POD"),
		Port:                 r.number("QUEUE_SERVING_PORT", wire.PortHTTP1, 65535),
		TLSPort:              r.number("QUEUE_SERVING_TLS_PORT", wire.PortTLS, 65535),
		UserPort:             r.number("USER_PORT", 8080, 65535),
		AdminPort:            r.number("EBB_DRAIN_PORT", wire.PortDrain, 65535),
		StatPort:             r.number("EBB_STAT_PORT", wire.PortMetrics, 65535),
		MetricsPort:          r.number("EBB_METRICS_PORT", wire.PortUserMetrics, 65535),
		PprofPort:            r.number("EBB_PPROF_PORT", wire.PortProfiling, 65535),
		StandbyPort:          r.number("EBB_STANDBY_PORT", standby.Port, 65535),
		Standby:              r.level("EBB_STANDBY"),
		PodUID:               getenv("EBB_POD_UID"),
		NodeIPs:              r.addresses("EBB_NODE_IPS"),
		Concurrency:          min(r.number("CONTAINER_CONCURRENCY", 0, math.MaxInt), 1<<20),
		Timeout:              r.seconds("REVISION_TIMEOUT_SECONDS"),
		ResponseStartTimeout: r.seconds("REVISION_RESPONSE_START_TIMEOUT_SECONDS"),
		IdleTimeout:          r.seconds("REVISION_IDLE_TIMEOUT_SECONDS"),
		CutResponses:         r.action("RESPONSE_TIMEOUT_ACTION") == "cut",
		Activators:           getenv("EBB_ACTIVATORS"),
		Autoscaler:           getenv("EBB_AUTOSCALER"),
		KeyFile:              getenv("EBB_KEY_FILE"),
		Token:                r.token(),
		DrainToken:           getenv("EBB_DRAIN_TOKEN"),
		LogLevel:             getenv("SERVING_LOGGING_LEVEL"),
		DrainQuiet:           r.duration("EBB_DRAIN_QUIET", 5*time.Second),
		CertDir:              getenv("EBB_CERT_DIR"),
		CertInterval:         time.Minute,
		RootCA:               getenv("ROOT_CA"),
		TLS:                  tlsoptions.Read(getenv, "QUEUE_PROXY_TLS_"),
	}
	if c.CertDir == "" {
		c.CertDir = "/var/lib/knative/certs"
	}
	if ip := getenv("SERVING_POD_IP"); ip != "" {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			r.fault("SERVING_POD_IP", err.Error())
		}
		c.PodIP = addr
	}
	if text := getenv("OBSERVABILITY_CONFIG"); text != "" {
		if err := json.Unmarshal([]byte(text), &c.Observability); err != nil {
			r.fault("OBSERVABILITY_CONFIG", err.Error())
		}
		if i := c.Observability.RequestMetrics.Interval; i != "" {
			if _, err := time.ParseDuration(i); err != nil {
				r.fault("OBSERVABILITY_CONFIG", err.Error())
			}
		}
	}
	c.Probes = r.probes("SERVING_READINESS_PROBE", c.UserPort)
	if len(c.Probes) == 0 {
		c.Probes = []probe.Spec{probe.TCP(c.UserPort)}
	}
	c.Told = r.told("EBB_TOLD_METRICS")
	c.Records = r.records("EBB_RECORDS")
	c.LivenessProbes = r.livenessProbes("EBB_LIVENESS_PROBES", c.UserPort)
	c.StartupProbes = r.probes("EBB_STARTUP_PROBE", c.UserPort)
	if r.boolean("ENABLE_HTTP2_AUTO_DETECTION") {
		for _, probes := range [][]probe.Spec{c.Probes, c.StartupProbes} {
			for i := range probes {
				probes[i].DetectHTTP2()
			}
		}
	}
	return c, errors.Join(r.faults...)
}

type reader struct {
	getenv func(string) string
	faults []error
}

func (r *reader) fault(name, why string) {
	r.faults = append(r.faults, fmt.Errorf("environment variable %s: %s", name, why))
}

// token is the pod's own: given, or made of the key of the namespace.
func (r *reader) token() string {
	if key := strings.TrimSpace(r.getenv("EBB_KEY")); key != "" {
		return wire.PodToken([]byte(key), r.getenv("SERVING_REVISION"))
	}
	return r.getenv("EBB_TOKEN")
}

func (r *reader) text(name string) string {
	v := r.getenv(name)
	if v == "" {
		r.fault(name, "is required")
	}
	return v
}

func (r *reader) number(name string, fallback, most int) int {
	text := r.getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		r.fault(name, fmt.Sprintf("%q is not a number from 0 to %d", text, most))
	}
	return n
}

func (r *reader) boolean(name string) bool {
	text := r.getenv(name)
	if text == "" {
		return false
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		r.fault(name, fmt.Sprintf("%q is neither true nor false", text))
	}
	return on
}

// action is what a timer does to a response that has begun: "end" or "cut".
func (r *reader) action(name string) string {
	switch text := r.getenv(name); text {
	case "", "end":
		return "end"
	case "cut":
		return text
	default:
		r.fault(name, fmt.Sprintf("%q is neither end nor cut", text))
		return "end"
	}
}

// records is which requests there are records of.
func (r *reader) records(name string) string {
	switch text := r.getenv(name); text {
	case "":
		return wire.RecordsAsynchronous
	case wire.RecordsNone, wire.RecordsAsynchronous, wire.RecordsAll:
		return text
	default:
		r.fault(name, fmt.Sprintf("%q is neither none, asynchronous nor all", text))
		return wire.RecordsNone
	}
}

// seconds takes any length: admission does not bound every timeout, and 34 years are as good as
// more.
func (r *reader) seconds(name string) time.Duration {
	return time.Duration(min(r.number(name, 0, math.MaxInt), 1<<30)) * time.Second
}

func (r *reader) duration(name string, fallback time.Duration) time.Duration {
	text := r.getenv(name)
	if text == "" {
		return fallback
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		r.fault(name, fmt.Sprintf("%q is not a duration such as 5s", text))
	}
	return d
}

// level reads the name of a level of standby.
func (r *reader) level(name string) string {
	text := r.getenv(name)
	if text == "" {
		return ""
	}
	if _, err := standby.ParseLevel(text); err != nil {
		r.fault(name, err.Error())
	}
	return text
}

// addresses reads addresses that are separated by commas.
func (r *reader) addresses(name string) (out []netip.Addr) {
	text := r.getenv(name)
	if text == "" {
		return nil
	}
	for one := range strings.SplitSeq(text, ",") {
		address, err := netip.ParseAddr(one)
		if err != nil {
			r.fault(name, err.Error())
		}
		out = append(out, address)
	}
	return out
}

func (r *reader) told(name string) []wire.ToldMetric {
	all, err := wire.ReadTold(r.getenv(name))
	if err != nil {
		r.fault(name, err.Error())
	}
	return all
}

// livenessProbes reads an object of probes by the name of their container.
func (r *reader) livenessProbes(name string, port int) map[string]probe.Spec {
	text := r.getenv(name)
	if text == "" {
		return nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		r.fault(name, err.Error())
		return nil
	}
	specs := map[string]probe.Spec{}
	for container, one := range raw {
		probes, err := wire.ReadProbes(string(one), port)
		if err != nil || len(probes) != 1 {
			r.fault(name, fmt.Sprintf("container %s: want one probe: %v", container, err))
			continue
		}
		specs[container] = probe.Spec{Probe: probes[0]}
	}
	return specs
}

// probes reads one probe or an array of them.
func (r *reader) probes(name string, port int) []probe.Spec {
	probes, err := wire.ReadProbes(r.getenv(name), port)
	if err != nil {
		r.fault(name, err.Error())
	}
	var specs []probe.Spec
	for _, p := range probes {
		specs = append(specs, probe.Spec{Probe: p})
	}
	return specs
}
