package names

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
)

// Startup is what a Revision means for its pods until they answer.
type Startup struct {
	// CPU is the CPU limit of the serving container until then, in thousandths of a CPU, if its own
	// is lower. 0 leaves the container its own.
	CPU int64
	// asked is the annotation, nil without one.
	asked *resource.Quantity
}

func (s Startup) validate(limits rules.Autoscaling) *apis.FieldError {
	most := resource.NewMilliQuantity(limits.StartupCPUMax, resource.DecimalSI)
	if s.asked == nil || s.asked.Cmp(*most) <= 0 {
		return nil
	}
	err := apis.ErrOutOfBoundsValue(s.asked.String(), 0, most.String(), StartupCPUAnnotation)
	err.Details = "startup-cpu-max in ConfigMap config-autoscaler says so"
	return err
}

func (r *reader) startup(a *rules.Autoscaling) Startup {
	s := Startup{CPU: a.StartupCPU}
	list := corev1.ResourceList{}
	r.quantity(StartupCPUAnnotation, list, corev1.ResourceCPU)
	if asked, given := list[corev1.ResourceCPU]; given {
		s.asked, s.CPU = &asked, a.StartupCPUMax
		// A quantity may be too large for thousandths.
		if asked.Cmp(*resource.NewMilliQuantity(a.StartupCPUMax, resource.DecimalSI)) < 0 {
			s.CPU = asked.MilliValue()
		}
	}
	s.CPU = min(s.CPU, a.StartupCPUMax)
	return s
}

// StartupLimit says for a pod which container has more CPU while it starts. Low is the CPU limit of
// the container, High the one that it starts with, in thousandths of a CPU.
type StartupLimit struct {
	Container string
	Low, High int64
}

// String is StartupLimitAnnotation, CONTAINER=LOW:HIGH. A ValidatingAdmissionPolicy compares the
// quantities as texts, so they are written as Kubernetes writes them.
func (l StartupLimit) String() string {
	return l.Container + "=" + MilliCPU(l.Low) + ":" + MilliCPU(l.High)
}

// MilliCPU writes thousandths of a CPU as Kubernetes does.
func MilliCPU(milli int64) string {
	return resource.NewMilliQuantity(milli, resource.DecimalSI).String()
}

// ParseStartupLimit reads StartupLimitAnnotation. Tenants can write it, so anything but what String
// writes is refused.
func ParseStartupLimit(text string) (StartupLimit, error) {
	var l StartupLimit
	container, limits, named := strings.Cut(text, "=")
	low, high, both := strings.Cut(limits, ":")
	if !named || !both || len(text) > 2*maxQuantity {
		return l, fmt.Errorf("%q is not CONTAINER=LIMIT:LIMIT", shortened(text))
	}
	l.Container = container
	for to, text := range map[*int64]string{&l.Low: low, &l.High: high} {
		if len(text) > 16 || hugeExponent.MatchString(text) {
			return StartupLimit{}, fmt.Errorf("%q is no quantity of CPU", shortened(text))
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return StartupLimit{}, fmt.Errorf("%q is no quantity of CPU: %w", text, err)
		}
		*to = quantity.MilliValue()
	}
	if l.Low <= 0 || l.High <= l.Low || l.String() != text {
		return StartupLimit{}, fmt.Errorf("%q does not raise the limit of a container", text)
	}
	return l, nil
}
