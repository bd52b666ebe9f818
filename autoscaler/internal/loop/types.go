// Package loop runs the decision for every revision that this process owns.
//
// Owns: the load series, the decision state and the history of each revision. Each revision belongs to one
// shard, and only that shard's goroutine touches it.
// Reads: stats by Report, scrapes and probes by callback, PodAutoscalers and pods by Source and
// Pods when told that they changed.
// Writes: orders to its Actor; nothing else leaves it.
// Never: talks to the API server or a pod, or blocks on anything but its inbox and its clock.
package loop

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
)

// Key names a revision, and the PodAutoscaler of the same name.
type Key = types.NamespacedName

// Spec is what a PodAutoscaler asks for, resolved with the ConfigMap. It is immutable.
type Spec struct {
	UID        types.UID
	Generation int64
	// Target is the object that is scaled.
	Target Target
	// Service and Configuration label the metrics; Service also owns the budget of scale-ups.
	Service, Configuration string
	H2C                    bool

	Decide      decide.Config
	Zero        zero.Config
	Algorithm   window.Algorithm
	PanicWindow time.Duration
	// Scraped is false when the activators see all traffic.
	Scraped bool
	// Adaptive switches the learned target on.
	Adaptive bool
	// ScaleUp bounds how many pods the service may add.
	ScaleUp Bounds

	// Found is what the status said when the Spec was made; it counts only on adoption.
	Found Found
}

// Target is the scale target of a PodAutoscaler.
type Target struct{ APIVersion, Kind, Name string }

// Found is what another process, or an earlier life of this one, left behind.
type Found struct {
	// Desired is the scale last reported, -1 for none.
	Desired int32
	Zero    zero.State
	// Learned is what a lesson found out; it is as good as whoever wrote it.
	Learned decide.Learned
}

// Counts are the pods of one revision by state.
type Counts struct {
	Ready, NotReady, Pending, Terminating int32
}

// Running is how many pods count against the scale target's replicas.
func (c Counts) Running() int32 { return c.Ready + c.NotReady - c.Terminating }

// Sample is one accepted stat.
type Sample struct {
	Key      Key
	Reporter string
	Report   decide.Report
	// Completed and BusySeconds come from the pods alone.
	Completed, BusySeconds float64
	// Timestamp is the reporter's, in milliseconds, 0 when not given.
	Timestamp int64
	// OutOfTurn says that the reporter's regular report will count the same requests.
	OutOfTurn bool
	Arrived   time.Time
}

// Scrape is the outcome of one scrape of a revision's pods.
type Scrape struct {
	// Failed says that too few pods answered; the rest does not count then.
	Failed bool
	Report decide.Report
	// Completed and BusySeconds are summed over the pods like Report.
	Completed, BusySeconds float64
}

// Status is what the PodAutoscaler's status shall say. It is comparable; the decision goes along with it.
type Status struct {
	Generation      int64
	Active          zero.Condition
	ActiveReason    string
	Initialized     bool
	Populated       bool
	Desired, Actual int32
	Proxied         bool
	Activators      int32
	// Learned is what the last lesson that ended found out, nothing while none has.
	Learned decide.Learned
}

// Order is what an Actor shall bring about. A later order for the same revision replaces an earlier one.
type Order struct {
	Key    Key
	UID    types.UID
	Target Target
	// Scale says that Replicas is to be written; From is what was there as far as is known, -1 if not.
	Scale          bool
	Replicas, From int32
	// Verify asks to read the scale first, because the number of pods does not fit what was written.
	Verify bool
	// Urgent orders go first, before those that add pods: somebody waits at zero pods.
	Urgent bool
	Status Status
	Counts Counts

	Decision decide.Decision
	Step     zero.Step
	// Since is when the news arrived that led to this order.
	Since time.Time
}

// Rule is the rule that brought the final value about.
func (o Order) Rule() string { return rule(o.Decision, o.Step) }

// Reason is the sentence that goes with Rule.
func (o Order) Reason() string { return reason(o.Decision, o.Step) }

func rule(d decide.Decision, s zero.Step) string {
	if s.Rule != "" {
		return s.Rule
	}
	return d.Rule.String()
}

func reason(d decide.Decision, s zero.Step) string {
	if s.Reason != "" {
		return s.Reason + " (" + d.Reason() + ")"
	}
	return d.Reason()
}

// Source knows the PodAutoscalers.
type Source interface {
	// Spec returns nil when there is none, or it is not this process's to decide.
	Spec(key Key) *Spec
}

// Pods counts pods.
type Pods interface {
	Count(key Key) Counts
}

// Actor carries orders out. Act does not block.
type Actor interface {
	Act(Order)
}

// Scraper asks pods for their stats. Scrape does not block and calls done once, from any goroutine.
type Scraper interface {
	Scrape(key Key, young time.Duration, done func(Scrape))
}

// Prober asks who answers at a revision's public service. Probe does not block and calls done once.
type Prober interface {
	Probe(key Key, h2c bool, done func(zero.Probe))
}
