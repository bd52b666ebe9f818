package revision

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Cloud Run writes a startup probe of 240 s into each export: a program that listens at once has to
// be ready at once, and one that does not has the 240 s.
func TestALongPeriodKeepsNoPodFromBeingReadyAndEndsNoneSooner(t *testing.T) {
	for what, c := range map[string]struct{ most, period, failures, wantPeriod, wantFailures int32 }{
		"Cloud Run's":                 {startupPeriod, 240, 1, 1, 240},
		"Kubernetes' defaults":        {startupPeriod, 0, 0, 1, 30},
		"one that is short already":   {startupPeriod, 1, 120, 1, 120},
		"a command":                   {commandPeriod, 5, 3, 2, 8},
		"readiness with a short one":  {readinessPeriod, 5, 2, 5, 2},
		"readiness once in an hour":   {readinessPeriod, 3600, 2, 10, 720},
		"numbers that do not fit int": {startupPeriod, math.MaxInt32, math.MaxInt32, 1, math.MaxInt32},
	} {
		p := &corev1.Probe{PeriodSeconds: c.period, FailureThreshold: c.failures}
		atLeastEvery(c.most, p)
		if p.PeriodSeconds != c.wantPeriod || p.FailureThreshold != c.wantFailures {
			t.Errorf("%s: %d failures, one each %d s; want %d, one each %d s", what, p.FailureThreshold, p.PeriodSeconds, c.wantFailures, c.wantPeriod)
		}
	}
}
