package settings

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

// Autoscaler and Defaults are config-autoscaler and config-defaults.
type (
	Autoscaler = rules.Autoscaling
	Defaults   = rules.Defaults
)

func (s *Snapshot) checkAutoscaler(r *reader) {
	a := &s.Autoscaler
	// 0.7 and 70 mean the same: values up to 1 are fractions.
	if a.ConcurrencyTargetUtilization > 1 {
		a.ConcurrencyTargetUtilization /= 100
	}
	if a.InitialScale == 0 && !a.AllowZeroInitialScale {
		r.fault("initial-scale", "0", "0 needs allow-zero-initial-scale: \"true\"")
	}
	if l := a.MaxScaleLimit; l > 0 && (a.MaxScale < 1 || a.MaxScale > l) {
		r.fault("max-scale", "", "%d is out of bounds, expected 1 to %d because max-scale-limit is %d", a.MaxScale, l, l)
	}
	if t := a.ConcurrencyTargetDefault * a.ConcurrencyTargetUtilization; t < names.MinTarget {
		r.fault("container-concurrency-target-default", "", "%v times the utilization %v is %v, expected at least %v requests per pod",
			a.ConcurrencyTargetDefault, a.ConcurrencyTargetUtilization, t, names.MinTarget)
	}
	if a.StartupCPU > a.StartupCPUMax {
		r.fault("startup-cpu", "", "%s is more than startup-cpu-max, which is %s", names.MilliCPU(a.StartupCPU), names.MilliCPU(a.StartupCPUMax))
	}
}

func (s *Snapshot) checkDefaults(r *reader) {
	d := &s.Defaults
	if !r.has("revision-response-start-timeout-seconds") {
		d.ResponseStartTimeoutSeconds = d.TimeoutSeconds
	}
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
}

// Deployment is config-deployment: what the controller puts around a revision's containers.
type Deployment struct {
	QueueSidecarImage          string
	ShimImage                  string   // "" = none
	RegistriesSkippingDigests  []string // sorted host names
	TrustedRegistries          []string // sorted; HOST or http://HOST
	DigestResolutionTimeout    time.Duration
	ProgressDeadline           time.Duration
	QueueSidecarRequests       corev1.ResourceList
	QueueSidecarLimits         corev1.ResourceList
	QueueSidecarTokenAudiences []string // sorted
	TokenKeyRotationDays       uint32
	QueueSidecarRootCA         string // PEM
	QueueSidecarTLS            SidecarTLS
	DefaultAffinity            string // AffinityPreferSpread or AffinityNone
	RuntimeClassNames          map[string]RuntimeClass
	PodIsAlwaysSchedulable     bool
	RetentionPeriod            time.Duration // of the Deployments of revisions at zero; 0 is for ever
}

// TokenKeyAge is the age at which the key of all tokens is replaced, 0 for never.
func (d Deployment) TokenKeyAge() time.Duration {
	return time.Duration(d.TokenKeyRotationDays) * 24 * time.Hour
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

// leastRetention bounds how soon the Deployment of a revision at zero may go.
const leastRetention = time.Minute

func (s *Snapshot) checkDeployment(r *reader) {
	if s.Deployment.QueueSidecarImage == "" && r.data != nil {
		r.fault("queue-sidecar-image", "", "must name the image of queue-proxy")
	}
	if owner := foreignSidecar(s.Deployment.QueueSidecarImage); owner != "" {
		r.fault("queue-sidecar-image", s.Deployment.QueueSidecarImage, "is %s sidecar, another program: pods need queue-proxy of this version of Ebb", owner)
	}
	if d := s.Deployment.RetentionPeriod; d > 0 && d < leastRetention {
		r.fault("deployment-retention-period", d.String(), "%s is less than %s: clients read the Deployment of a revision that has just gone to zero", d, leastRetention)
	}
	if t := s.Deployment.QueueSidecarTLS; t.MinVersion > t.MaxVersion && t.MaxVersion != "" {
		r.fault("queue-sidecar-tls-max-version", t.MaxVersion, "%s is less than queue-sidecar-tls-min-version, which is %s",
			t.MaxVersion, t.MinVersion)
	}
}

// knativeSidecar is how the builds of Knative name the image of its sidecar.
var knativeSidecar = regexp.MustCompile(`(^|/)(queue-[0-9a-f]{32}|knative\.dev/serving/cmd/queue)$`)

// foreignSidecar says whose program an image is that people have had as the sidecar of Knative, ""
// if it may be Ebb's, which may have any name in a mirror.
func foreignSidecar(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name = name[:colon]
	}
	switch {
	case path.Base(name) == "qpext":
		return "KServe's"
	case knativeSidecar.MatchString(name):
		return "Knative's"
	}
	return ""
}

func (d *Deployment) setRuntimeClasses(text string) error {
	var classes map[string]RuntimeClass
	if err := unmarshal(text, &classes, "a YAML map from runtime class to {selector: {label: value}}"); err != nil {
		return err
	}
	for class := range classes {
		if !dnsDomain.MatchString(class) {
			return fmt.Errorf("%q is not the name of a runtime class", class)
		}
	}
	d.RuntimeClassNames = classes
	return nil
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

func (s *Snapshot) checkGC(r *reader) {
	if highest := s.GC.MaxNonActiveRevisions; highest != nil && *highest < s.GC.MinNonActiveRevisions {
		r.fault("max-non-active-revisions", "", "%d is less than min-non-active-revisions, which is %d",
			*highest, s.GC.MinNonActiveRevisions)
	}
}
