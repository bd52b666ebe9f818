package v1alpha1

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/wire"
)

// ServiceView is what is known of one Service at one moment. Its name and namespace are those of
// the Service.
//
// In a list it is short: no Series and no History in Revisions, no ColdStarts, Refusals and Calls,
// and a Series of MaxListPoints.
type ServiceView struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Now Now `json:"now"`
	// Series is the sum over the revisions. It has no P50Ms and P99Ms: those of several revisions
	// have no sum.
	Series Series `json:"series"`
	// Revisions are those that the autoscaler decides for, by name. How the requests are divided
	// among them is in the status of the Service.
	Revisions []RevisionView `json:"revisions"`
	// ColdStarts are the newest requests that waited for a pod from zero, the newest first.
	ColdStarts []ColdStart `json:"coldStarts,omitempty"`
	// Refusals are the newest requests that got no pod, the newest first. Equal ones are counted.
	Refusals []Refusal `json:"refusals,omitempty"`
	// Calls are the newest requests that there are records of, the newest first.
	Calls []Call `json:"calls,omitempty"`
}

// ServiceViewList is a list of short views, by namespace and name.
type ServiceViewList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []ServiceView `json:"items"`
}

// Now is the load of the last ten seconds, and the pods.
type Now struct {
	// Time is when this was put together; in a list, when something of it last changed. Absent in
	// Revisions.
	Time time.Time `json:"time,omitzero"`
	// RequestsPerSecond counts requests that arrived.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
	// P50Ms and P99Ms are percentiles of the time from the arrival of a request to the end of its
	// response, in milliseconds. They are those of a histogram: at most 19 % off, and at least
	// 0.26 and at most 275 000. Absent if no request ended.
	P50Ms *float64 `json:"p50Ms,omitempty"`
	P99Ms *float64 `json:"p99Ms,omitempty"`
	// SuccessRatio is the share of requests that were answered with a status below 500, 0 to 1.
	// Absent if no request ended.
	SuccessRatio *float64 `json:"successRatio,omitempty"`
	// InFlight is the average number of requests in the pods and activators. Queued is how many of
	// them wait for a pod.
	InFlight float64 `json:"inFlight"`
	Queued   float64 `json:"queued"`

	Replicas Replicas `json:"replicas"`
}

// Replicas are numbers of pods.
type Replicas struct {
	// Wanted is how many pods there are to be, those asleep included.
	Wanted int32 `json:"wanted"`
	// Ready pods take requests. Starting ones exist, and are neither ready nor asleep nor ending.
	Ready    int32 `json:"ready"`
	Starting int32 `json:"starting"`
	// Asleep pods wake up when they are needed.
	Asleep int32 `json:"asleep"`
}

// RevisionView is what is known of one revision.
type RevisionView struct {
	Name string `json:"name"`
	Now  Now    `json:"now"`
	// Decision is the newest one. Absent before there was one.
	Decision *Decision `json:"decision,omitempty"`
	// History are the runs of equal decisions, the oldest first; the last one is Decision. Not in a
	// list.
	History []Decision `json:"history,omitempty"`
	// Series is the last ten minutes. Not in a list.
	Series *Series `json:"series,omitempty"`
	// Judged is what a judge of rollouts counts, while one asks. Not in a list.
	Judged *Judged `json:"judged,omitempty"`
	// Nodes are those with pods of the revision that do not answer, by name. Not in a list.
	Nodes []SilentNode `json:"nodes,omitempty"`
}

// SilentNode is a node that does not answer, as the revision's autoscaler sees it.
type SilentNode struct {
	Name string `json:"name"`
	// Pods is how many of the revision's are there.
	Pods int32 `json:"pods"`
	// State is "doubted", "silent" or "lost", Since since when.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Reason says who asked, and what speaks for it or against it.
	Reason string `json:"reason"`
}

// Judged is how the requests of a revision ended in the last seconds, by who is to blame, and how
// its pods start.
type Judged struct {
	// Seconds are at most MaxSeconds, the oldest first. One is missing if no pod answered; what
	// came in that time is in a later one.
	Seconds []Second `json:"seconds,omitempty"`
	// Uncounted is how many of the asked pods have a queue-proxy that does not count.
	Uncounted int32 `json:"uncounted,omitempty"`
	// StartingSeconds is for how long the slowest of the pods that are not ready yet has been
	// starting, from the time at which it had a node.
	StartingSeconds float64 `json:"startingSeconds,omitempty"`
}

// Second is what the pods have counted since the one before.
type Second struct {
	At time.Time `json:"at"`
	// Good requests the program answered, Failed ones it is to blame for. The client's mistakes are
	// good; what was refused or waited in vain, and what came by a tag, is neither.
	Good   uint64 `json:"good"`
	Failed uint64 `json:"failed"`
	// Buckets counts by how long the program took, from FirstBucket on. The first of all ends at
	// 0.26 ms, each further one at √2 times the end of the one before. Requests to a pod in its
	// first ten seconds are not in them.
	FirstBucket int      `json:"firstBucket,omitempty"`
	Buckets     []uint64 `json:"buckets,omitempty"`
	// Senders are the good and the failed requests by 16 drawers, of which the sender of a request
	// has one by a hash of its address. Empty ones at the end are left out, and requests whose
	// sender is not known.
	Senders [][2]uint64 `json:"senders,omitempty"`
	// Tagged are the good and the failed requests that came by a tag.
	Tagged [2]uint64 `json:"tagged,omitzero"`
}

// Latency returns the counts of all buckets.
func (s *Second) Latency() (l wire.Latency) {
	for i, n := range s.Buckets {
		if bucket := s.FirstBucket + i; bucket >= 0 && bucket < len(l) {
			l[bucket] = uint32(min(n, math.MaxUint32))
		}
	}
	return l
}

// Decision is a run of equal decisions: same scale by the same rule. Its inputs are those of the
// last one.
type Decision struct {
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Times int       `json:"times"`
	// Want is the scale that was decided on, Formula what the load alone asks for. Want is -1 if
	// nothing is known yet.
	Want    int32 `json:"want"`
	Formula int32 `json:"formula"`
	// Written is false if the scale was left as it was found.
	Written bool `json:"written"`
	// Rule is the step that set the final value, Reason the sentence that goes with it.
	Rule   string `json:"rule"`
	Reason string `json:"reason"`

	// Metric is "concurrency", in requests, or "rps", in requests per second. It is the unit of the
	// next five fields.
	Metric string `json:"metric"`
	// Stable and Panic are the averages over the two windows, Burst the load of the newest second.
	Stable float64 `json:"stable"`
	Panic  float64 `json:"panic"`
	Burst  float64 `json:"burst"`
	// Target is the load aimed for in a pod, Capacity what it can take.
	Target   float64 `json:"target"`
	Capacity float64 `json:"capacity"`

	// StablePods, PanicPods and BurstPods are the numbers of pods that these loads ask for.
	StablePods int32 `json:"stablePods"`
	PanicPods  int32 `json:"panicPods"`
	BurstPods  int32 `json:"burstPods"`
	// Panicking is true while the scale follows the panic window.
	Panicking bool `json:"panicking"`
	// Queued is the number of requests that waited, Ready the number of ready pods.
	Queued float64 `json:"queued"`
	Ready  int32   `json:"ready"`
	// Incomplete is true if load may be missing in the averages.
	Incomplete bool `json:"incomplete"`
	// ExcessBurst is the spare capacity; below 0, requests go through activators.
	ExcessBurst float64 `json:"excessBurst"`
	// Limits bound the scale.
	Limits Limits `json:"limits"`
	// Standby says how many pods stay asleep, and why. Absent without standby.
	Standby *Standby `json:"standby,omitempty"`
}

// Limits are the bounds of a scale: of the revision, and of one decision by the scaling rates.
type Limits struct {
	Min int32 `json:"min"`
	// Max is 0 if there is none.
	Max int32 `json:"max"`
	// RateLow and RateHigh are 0 before there was load.
	RateLow  int32 `json:"rateLow"`
	RateHigh int32 `json:"rateHigh"`
}

// Standby divides a scale.
type Standby struct {
	Awake  int32  `json:"awake"`
	Asleep int32  `json:"asleep"`
	Reason string `json:"reason"`
}

// Series are points in time, StepSeconds apart. All arrays have the same length, or are absent. A
// null is a point of which nothing is known.
type Series struct {
	// Start is the time of the first point. A point is the average of the step that ends with it.
	Start       time.Time `json:"start"`
	StepSeconds int       `json:"stepSeconds"`
	// Load is the average number of requests in the pods and activators.
	Load              Values `json:"load"`
	RequestsPerSecond Values `json:"requestsPerSecond"`
	Wanted            Values `json:"wanted"`
	Ready             Values `json:"ready"`
	Asleep            Values `json:"asleep"`
	P50Ms             Values `json:"p50Ms,omitempty"`
	P99Ms             Values `json:"p99Ms,omitempty"`
}

// ColdStart is one request that waited for a pod from zero.
type ColdStart struct {
	// At is when the request came.
	At       time.Time `json:"at"`
	Revision string    `json:"revision"`
	Pod      string    `json:"pod"`
	// TraceID is that of the request, if it had one.
	TraceID string `json:"traceID,omitempty"`
	// TotalMs is the time until the response began. The phases sum to it.
	TotalMs float64 `json:"totalMs"`
	Phases  []Phase `json:"phases"`
	// Complete is false if the autoscaler could not say when the pod was asked for and scheduled.
	// That time is in the phase pull.
	Complete bool `json:"complete"`
	// Pulled is true if the node had to pull an image for the pod. It is found out only if the
	// phase pull took a second or more.
	Pulled bool `json:"pulled,omitempty"`
}

// Phase is one step of a cold start: decide, schedule, pull, start, announce or forward. It starts
// StartMs after the request came.
type Phase struct {
	Name       string  `json:"name"`
	StartMs    float64 `json:"startMs"`
	DurationMs float64 `json:"durationMs"`
}

// Refusal is a request, or several equal ones within a short time, that got an answer of Ebb and
// not of a pod's container.
type Refusal struct {
	// At is the time of the newest one.
	At       time.Time `json:"at"`
	Revision string    `json:"revision"`
	// By is "activator" or "pod", Name which one.
	By   string `json:"by"`
	Name string `json:"name"`
	// Status is the HTTP status of the answer, 0 if there was none.
	Status int    `json:"status"`
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
}

// Call is the record of one request that a pod answered.
type Call struct {
	// At is when the request came: to the courier if it is asynchronous, else to the pod.
	At       time.Time `json:"at"`
	Revision string    `json:"revision"`
	Pod      string    `json:"pod"`
	Method   string    `json:"method"`
	// Path has no query.
	Path string `json:"path"`
	// Status is the HTTP status of the answer, 0 if the client left before there was one.
	Status int `json:"status"`
	// WaitedMs is the time until the container got the request, RanMs the time from then until the
	// response ended.
	WaitedMs float64 `json:"waitedMs"`
	RanMs    float64 `json:"ranMs"`
	// ColdMs is the part of the wait in which the pod started; absent if the pod was there. Its
	// phases are those of the cold start with the same pod.
	ColdMs  float64 `json:"coldMs,omitempty"`
	TraceID string  `json:"traceID,omitempty"`
	// ID and Attempt are those of an asynchronous call.
	ID      string `json:"id,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
}

// Event is one line of a watch.
type Event struct {
	// Type is ADDED, MODIFIED, DELETED or BOOKMARK.
	Type   string      `json:"type"`
	Object ServiceView `json:"object"`
}
