// Package loop runs the decision for every revision that this process owns.
//
// Owns: one revision.Revision and the history of each revision. Each revision belongs to one shard,
// and only that shard's goroutine touches it. Reads: stats by Report, scrapes and probes by
// callback, PodAutoscalers and pods through Source and Pods when told that they changed. Writes:
// orders to its Actor; nothing else leaves it. Never: talks to the API server or a pod, or blocks
// on anything but its inbox and its clock.
package loop

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

// Key names a revision, and the PodAutoscaler of the same name.
type Key = types.NamespacedName

// Spec is what a PodAutoscaler asks for, resolved with the ConfigMap. It is immutable.
type Spec struct {
	revision.Config
	// Target is the object that is scaled.
	Target Target
	// Service and Configuration label the metrics.
	Service, Configuration string
	H2C                    bool
	// Found is the state in the status when the Spec was made. It is used on adoption only.
	Found *revision.State
}

// adopted returns the Spec without what is needed for adoption alone.
func (s Spec) adopted() *Spec {
	s.Found = nil
	return &s
}

// Target is the scale target of a PodAutoscaler.
type Target struct{ APIVersion, Kind, Name string }

// Sample is one accepted stat.
type Sample struct {
	Key Key
	revision.Sample
	Arrived time.Time
}

// The refusals of a sample that never reached its revision, of a state that cannot be right, and of
// a value that a pod told.
const (
	UnknownKey   revision.Refusal = "unknown-revision"
	InvalidState revision.Refusal = "invalid-state"
	WrongMetric  revision.Refusal = "wrong-metric"
)

// Order is what an Actor should carry out. A later order for the same revision replaces an earlier
// one.
type Order struct {
	Key    Key
	UID    types.UID
	Target Target
	revision.Outcome
	// Since is when the event arrived that led to this order.
	Since time.Time
}

// Source knows the PodAutoscalers.
type Source interface {
	// Spec returns nil when there is none, or it is not this process's to decide.
	Spec(key Key) *Spec
}

// Pods counts pods.
type Pods interface {
	Count(key Key) revision.Counts
}

// Actor carries orders out. Act does not block.
type Actor interface {
	Act(Order)
}

// Tender tells pods to sleep and to wake. Tend does not block. What it could not do, a later
// call asks for again.
type Tender interface {
	Tend(key Key, s revision.PodOrders, why func() string)
}

// Scraper asks pods for their stats. Scrape does not block and calls done once, from any goroutine.
type Scraper interface {
	Scrape(key Key, young time.Duration, done func(revision.Scrape))
}

// Prober finds out who answers at a revision's public Service. Probe does not block and calls done
// once.
type Prober interface {
	Probe(key Key, h2c bool, done func(zero.Probe))
}
