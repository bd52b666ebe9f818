package decide

import "math"

// Metric is the unit of load that a revision is scaled by.
type Metric uint8

const (
	// Concurrency counts requests in flight.
	Concurrency Metric = iota
	// RequestsPerSecond counts arrivals.
	RequestsPerSecond
	// Told is what the pods tell. Only an Other has it.
	Told
)

func (m Metric) String() string {
	if m == RequestsPerSecond {
		return "requests/s"
	}
	return "concurrent requests"
}

// requestsPerSecondUtilization is the counterpart of container-concurrency-target-percentage.
const requestsPerSecondUtilization = 0.7

// smallestTarget is the minimum, because loads are divided by the target.
const smallestTarget = 0.01

// TargetInput is what the target of one pod is resolved from. Zero stands for "not set".
type TargetInput struct {
	Metric Metric
	// ContainerConcurrency is the revision's hard limit.
	ContainerConcurrency float64
	// Annotation is the revision's own target, UtilizationAnnotation its percentage as a fraction.
	Annotation, UtilizationAnnotation float64
	// ConcurrencyDefault, ConcurrencyUtilization and RequestsPerSecondDefault come from the
	// ConfigMap.
	ConcurrencyDefault, ConcurrencyUtilization, RequestsPerSecondDefault float64
}

// Target returns how much load a pod can take and how much of it the autoscaler aims for.
func Target(in TargetInput) (total, target float64) {
	utilization := in.UtilizationAnnotation
	if in.Metric == RequestsPerSecond {
		total = in.RequestsPerSecondDefault
		if in.Annotation > 0 {
			total = in.Annotation
		}
		if utilization == 0 {
			utilization = requestsPerSecondUtilization
		}
		return total, math.Max(smallestTarget, total*utilization)
	}
	total = in.ConcurrencyDefault
	if in.ContainerConcurrency > 0 {
		total = in.ContainerConcurrency
	}
	if in.Annotation > 0 {
		total = in.Annotation
		if in.ContainerConcurrency > 0 {
			total = math.Min(total, in.ContainerConcurrency)
		}
	}
	if utilization == 0 {
		utilization = in.ConcurrencyUtilization
	}
	return total, math.Max(smallestTarget, total*utilization)
}
