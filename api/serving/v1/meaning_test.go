package v1

import (
	"math"
	"testing"
	"time"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/wire"
)

func TestAnAnnotationCountsBeforeTheSetting(t *testing.T) {
	for _, c := range []struct {
		annotation string
		setting    bool
		want       bool
	}{
		{"", false, false}, {"", true, true}, {"end", true, false}, {"cut", false, true},
		{"junk", true, true}, {"junk", false, false}, // admission refuses it; it reads as absent
	} {
		r := &Revision{}
		if c.annotation != "" {
			r.Annotations = map[string]string{names.ResponseTimeoutActionAnnotation: c.annotation}
		}
		m := r.Meaning(&rules.Config{Defaults: rules.Defaults{Handling: wire.Handling{CutResponses: c.setting}}})
		if m.Limits.CutResponses != c.want {
			t.Errorf("%+v: got %v", c, m.Limits.CutResponses)
		}
	}
}

// A number that was stored before admission bounded it must not become a negative timeout.
func TestLimitsOfARevision(t *testing.T) {
	config := &rules.Config{Defaults: rules.Defaults{ContainerConcurrency: 7, TimeoutSeconds: 300, ResponseStartTimeoutSeconds: 60, IdleTimeoutSeconds: 30}}
	long := (1 << 30) * time.Second
	for _, c := range []struct {
		number *int64
		want   wire.Limits
	}{
		{nil, wire.Limits{Concurrency: 7, Timeout: 300 * time.Second}},
		{new(int64(0)), wire.Limits{}},
		{new(int64(5)), wire.Limits{Concurrency: 5, Timeout: 5 * time.Second, ResponseStartTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second}},
		{new(int64(-1)), wire.Limits{}},
		{new(int64(math.MaxInt64)), wire.Limits{Concurrency: 1 << 20, Timeout: long, ResponseStartTimeout: long, IdleTimeout: long}},
	} {
		r := &Revision{Spec: RevisionSpec{ContainerConcurrency: c.number, TimeoutSeconds: c.number, ResponseStartTimeoutSeconds: c.number, IdleTimeoutSeconds: c.number}}
		if got := r.Meaning(config).Limits; got != c.want {
			t.Errorf("%v: got %+v, want %+v", c.number, got, c.want)
		}
	}
}

func TestPodInfoIsEnabledForAllOrAllowedAndAskedFor(t *testing.T) {
	for _, c := range []struct {
		flag  rules.Flag
		asked string
		want  bool
	}{
		{rules.Enabled, "", true}, {rules.Enabled, "disabled", true}, {rules.Allowed, "", false}, {rules.Allowed, "true", false},
		{rules.Allowed, "enabled", true}, {rules.Disabled, "enabled", false}, {"", "enabled", false},
	} {
		r := &Revision{}
		r.Annotations = map[string]string{names.FeaturePodInfoAnnotation: c.asked}
		if got := r.Meaning(&rules.Config{Features: rules.Features{rules.KeyQueueProxyMountPodInfo: c.flag}}).PodInfo; got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
