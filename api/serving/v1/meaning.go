package v1

import (
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/wire"
)

// Meaning returns what the Revision means with these settings. It reads the annotations and limits.
// Admission filled the timeouts that were to have a default. A Revision without one of them keeps
// that meaning when the settings change, and has no such timeout.
func (r *Revision) Meaning(c *rules.Config) names.Spec {
	s, _ := names.Of(r.Annotations, c)
	s.Limits.Concurrency = wire.Slots(ptr.Deref(r.Spec.ContainerConcurrency, c.Defaults.ContainerConcurrency))
	s.Limits.Timeout = wire.Seconds(ptr.Deref(r.Spec.TimeoutSeconds, c.Defaults.TimeoutSeconds))
	s.Limits.ResponseStartTimeout = wire.Seconds(ptr.Deref(r.Spec.ResponseStartTimeoutSeconds, 0))
	s.Limits.IdleTimeout = wire.Seconds(ptr.Deref(r.Spec.IdleTimeoutSeconds, 0))
	return s
}
