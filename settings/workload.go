package settings

import (
	"math"
	"slices"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/names"
)

// Defaults is config-defaults: what the webhook fills into a revision template.
type Defaults struct {
	TimeoutSeconds              int64
	MaxTimeoutSeconds           int64
	ResponseStartTimeoutSeconds int64 // equals TimeoutSeconds when not set
	IdleTimeoutSeconds          int64 // 0 = off
	// ResponseTimeoutAction is names.ResponseTimeoutEnd or names.ResponseTimeoutCut, for
	// revisions without the annotation.
	ResponseTimeoutAction     string
	Requests                  corev1.ResourceList
	Limits                    corev1.ResourceList
	ContainerNameTemplate     string // Go template over ObjectMeta
	InitContainerNameTemplate string
	ContainerConcurrency      int64
	ContainerConcurrencyMax   int64
	AllowConcurrencyZero      bool
	EnableServiceLinks        *bool // nil = leave the field unset
}

func readDefaults(r *reader) Defaults {
	d := Defaults{
		TimeoutSeconds:            r.integer("revision-timeout-seconds", 300, 1, math.MaxInt32),
		MaxTimeoutSeconds:         r.integer("max-revision-timeout-seconds", 600, 1, math.MaxInt32),
		IdleTimeoutSeconds:        r.integer("revision-idle-timeout-seconds", 0, 0, math.MaxInt32),
		ResponseTimeoutAction:     r.oneOf("response-timeout-action", names.ResponseTimeoutEnd, names.ResponseTimeoutEnd, names.ResponseTimeoutCut),
		ContainerNameTemplate:     r.nonEmpty("container-name-template", "user-container"),
		InitContainerNameTemplate: r.nonEmpty("init-container-name-template", "init-container"),
		ContainerConcurrencyMax:   r.integer("container-concurrency-max-limit", 1000, 1, math.MaxInt32),
		AllowConcurrencyZero:      r.boolean("allow-container-concurrency-zero", true),
	}
	d.ContainerConcurrency = r.integer("container-concurrency", 0, 0, math.MaxInt32)
	d.ResponseStartTimeoutSeconds = r.integer("revision-response-start-timeout-seconds", d.TimeoutSeconds, 0, math.MaxInt32)
	if d.MaxTimeoutSeconds < d.TimeoutSeconds {
		r.fault("max-revision-timeout-seconds", "", "%d is less than revision-timeout-seconds, which is %d",
			d.MaxTimeoutSeconds, d.TimeoutSeconds)
	}
	if d.ContainerConcurrency > d.ContainerConcurrencyMax {
		r.fault("container-concurrency", "", "%d is more than container-concurrency-max-limit, which is %d",
			d.ContainerConcurrency, d.ContainerConcurrencyMax)
	}
	if d.ContainerConcurrency == 0 && !d.AllowConcurrencyZero {
		r.fault("container-concurrency", "", "0 (no limit) needs allow-container-concurrency-zero: \"true\"")
	}
	switch strings.ToLower(r.text("enable-service-links", "false")) {
	case "true":
		yes := true
		d.EnableServiceLinks = &yes
	case "false":
		no := false
		d.EnableServiceLinks = &no
	}
	d.Requests = r.resources("revision-", "-request", nil)
	d.Limits = r.resources("revision-", "-limit", nil)
	for _, key := range []string{"container-name-template", "init-container-name-template"} {
		text := r.text(key, "x")
		t, err := template.New(key).Parse(text)
		if err != nil {
			r.fault(key, text, "is not a Go template: %v", err)
			continue
		}
		name, err := execute(t, metav1.ObjectMeta{Name: "name", Namespace: "namespace"})
		if err != nil {
			r.fault(key, text, "cannot be applied to an object's metadata: %v", err)
		} else if len(name) > 63 || !dnsLabel.MatchString(name) {
			r.fault(key, text, "gives %q, which is not a DNS label", name)
		}
	}
	return d
}

// resources reads <prefix>{cpu,memory,ephemeral-storage}<suffix>; nil when none is set.
func (r *reader) resources(prefix, suffix string, def map[corev1.ResourceName]string) corev1.ResourceList {
	var list corev1.ResourceList
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q := r.quantity(prefix+string(name)+suffix, def[name]); q != nil {
			if list == nil {
				list = corev1.ResourceList{}
			}
			list[name] = *q
		}
	}
	return list
}

// Deployment is config-deployment: what the controller puts around a revision's containers.
type Deployment struct {
	QueueSidecarImage          string
	RegistriesSkippingDigests  []string // sorted host names
	DigestResolutionTimeout    time.Duration
	ProgressDeadline           time.Duration
	QueueSidecarRequests       corev1.ResourceList
	QueueSidecarLimits         corev1.ResourceList
	QueueSidecarTokenAudiences []string // sorted
	QueueSidecarRootCA         string   // PEM
	QueueSidecarTLS            SidecarTLS
	DefaultAffinity            string // AffinityPreferSpread or AffinityNone
	RuntimeClassNames          map[string]RuntimeClass
	PodIsAlwaysSchedulable     bool
}

// SidecarTLS is handed to queue-proxy as QUEUE_PROXY_TLS_*; empty means Go's defaults.
type SidecarTLS struct{ MinVersion, MaxVersion, CipherSuites, CurvePreferences string }

// RuntimeClass selects the revisions that get a runtimeClassName.
type RuntimeClass struct {
	Selector map[string]string `json:"selector,omitempty"`
}

// Values of Deployment.DefaultAffinity.
const (
	AffinityPreferSpread = "prefer-spread-revision-over-nodes"
	AffinityNone         = "none"
)

func readDeployment(r *reader) Deployment {
	d := Deployment{
		RegistriesSkippingDigests: sorted(r.list("registries-skipping-tag-resolving", "kind.local", "ko.local", "dev.local")),
		DigestResolutionTimeout:   r.duration("digest-resolution-timeout", 10*time.Second, time.Nanosecond, forever, false),
		ProgressDeadline:          r.duration("progress-deadline", 10*time.Minute, time.Second, forever, true),
		QueueSidecarRequests: r.resources("queue-sidecar-", "-request",
			map[corev1.ResourceName]string{corev1.ResourceCPU: "25m"}),
		QueueSidecarLimits:         r.resources("queue-sidecar-", "-limit", nil),
		QueueSidecarTokenAudiences: sorted(r.list("queue-sidecar-token-audiences")),
		QueueSidecarRootCA:         r.text("queue-sidecar-rootca", ""),
		QueueSidecarTLS: SidecarTLS{
			MinVersion:       r.oneOf("queue-sidecar-tls-min-version", "", "1.2", "1.3"),
			MaxVersion:       r.oneOf("queue-sidecar-tls-max-version", "", "1.2", "1.3"),
			CipherSuites:     strings.Join(r.list("queue-sidecar-tls-cipher-suites"), ","),
			CurvePreferences: strings.Join(r.list("queue-sidecar-tls-curve-preferences"), ","),
		},
		DefaultAffinity:        r.oneOf("default-affinity-type", AffinityPreferSpread, AffinityPreferSpread, AffinityNone),
		PodIsAlwaysSchedulable: r.boolean("pod-is-always-schedulable", false),
	}
	image, key, present := r.lookup("queue-sidecar-image")
	switch {
	case image != "" && strings.ContainsAny(image, " \t\n"):
		r.fault(key, image, "%q is not an image reference", image)
	case image == "" && (present || !r.lenient):
		r.fault(key, "", "must name the image of queue-proxy")
	}
	d.QueueSidecarImage = image
	if t := d.QueueSidecarTLS; t.MinVersion > t.MaxVersion && t.MaxVersion != "" {
		r.fault("queue-sidecar-tls-max-version", t.MaxVersion, "%s is less than queue-sidecar-tls-min-version, which is %s",
			t.MaxVersion, t.MinVersion)
	}
	if text, key, ok := r.lookup("runtime-class-name"); ok && text != "" {
		if err := yaml.UnmarshalStrict([]byte(text), &d.RuntimeClassNames); err != nil {
			r.fault(key, text, "is not a YAML map from runtime class to {selector: {label: value}}: %v", err)
			d.RuntimeClassNames = nil
		}
		for class := range d.RuntimeClassNames {
			if !dnsDomain.MatchString(class) {
				r.fault(key, text, "%q is not the name of a runtime class", class)
			}
		}
	}
	return d
}

// RuntimeClassName is the runtime class for an object with these labels: the one whose selector
// names the most labels, and among equals the first by name; "" when none fits.
func (d Deployment) RuntimeClassName(objectLabels map[string]string) string {
	best, size := "", -1
	for class, c := range d.RuntimeClassNames {
		n := len(c.Selector)
		if !labels.SelectorFromSet(c.Selector).Matches(labels.Set(objectLabels)) {
			continue
		}
		if n > size || (n == size && class < best) {
			best, size = class, n
		}
	}
	return best
}

// ProgressDeadlineSeconds is the deadline in the unit of a Deployment.
func (d Deployment) ProgressDeadlineSeconds() int32 {
	return int32(min(int64(d.ProgressDeadline/time.Second), math.MaxInt32))
}

// GC is config-gc. A nil duration or limit is "disabled".
type GC struct {
	RetainSinceCreateTime     *time.Duration
	RetainSinceLastActiveTime *time.Duration
	MinNonActiveRevisions     int64
	MaxNonActiveRevisions     *int64
}

const disabledWord = "disabled"

func readGC(r *reader) GC {
	span := func(key string, def time.Duration) *time.Duration {
		if strings.EqualFold(r.text(key, ""), disabledWord) {
			return nil
		}
		d := r.duration(key, def, 0, forever, false)
		return &d
	}
	g := GC{
		RetainSinceCreateTime:     span("retain-since-create-time", 48*time.Hour),
		RetainSinceLastActiveTime: span("retain-since-last-active-time", 15*time.Hour),
		MinNonActiveRevisions:     r.integer("min-non-active-revisions", 20, 0, math.MaxInt32),
	}
	if !strings.EqualFold(r.text("max-non-active-revisions", ""), disabledWord) {
		n := r.integer("max-non-active-revisions", 1000, 0, math.MaxInt32)
		g.MaxNonActiveRevisions = &n
		if n < g.MinNonActiveRevisions {
			r.fault("max-non-active-revisions", "", "%d is less than min-non-active-revisions, which is %d",
				n, g.MinNonActiveRevisions)
		}
	}
	return g
}

func sorted(s []string) []string {
	if s == nil {
		return nil
	}
	s = slices.Clone(s)
	slices.Sort(s)
	return slices.Compact(s)
}
