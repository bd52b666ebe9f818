// Package rules declares what defaulting and validation need to know besides the object itself: the
// installation's settings that they depend on, which the settings folder parses, and the request
// they judge.
//
// Owns: Config and Request. Reads: nothing. Writes: nothing. Never: decides; the kinds do, in their
// own packages.
package rules

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/wire"
)

// Defaults is config-defaults: what admission fills into a revision template, and the bounds of it.
type Defaults struct {
	TimeoutSeconds              int64
	MaxTimeoutSeconds           int64
	ResponseStartTimeoutSeconds int64         // equals TimeoutSeconds when not set; 0 = off
	IdleTimeoutSeconds          int64         // 0 = off
	Handling                    wire.Handling // for revisions without its annotations
	// Requests and Limits are for user containers that set none.
	Requests, Limits          corev1.ResourceList
	ContainerNameTemplate     Template // over metav1.ObjectMeta
	InitContainerNameTemplate Template // over metav1.ObjectMeta
	ContainerConcurrency      int64
	ContainerConcurrencyMax   int64
	AllowConcurrencyZero      bool
	// Of new revisions that do not set them; nil = leave the field of the pod spec unset.
	EnableServiceLinks, AutomountServiceAccountToken *bool
	// For revisions without the annotations of names.Cold.
	NeverWakeAgents []string
	MaxWaiting      int64         // requests in one activator; 0 = no limit of its own
	MaxWait         time.Duration // 0 = the revision's timeouts alone
}

// Autoscaling is config-autoscaler.
type Autoscaling struct {
	Class                         string  // of revisions without autoscaling.knative.dev/class
	EnableScaleToZero             bool    // false: at least one pod
	AllowZeroInitialScale         bool    // permits initial-scale 0
	InitialScale                  int32   // pods before a revision counts as initialized
	MinScale                      int32   // pods
	MaxScale                      int32   // pods; 0 = unlimited
	MaxScaleLimit                 int32   // the largest max-scale; 0 = no limit
	MaxScaleUpRate                float64 // at most ready*rate pods per decision
	MaxScaleDownRate              float64 // at least ready/rate pods per decision
	ConcurrencyTargetUtilization  float64 // fraction (0,1]
	ConcurrencyTargetDefault      float64 // concurrent requests per pod
	RequestsPerSecondTarget       float64 // requests per second per pod
	TargetBurstCapacity           float64 // requests; -1 = activator always in the path
	ActivatorCapacity             float64 // concurrent requests per activator
	StableWindow                  time.Duration
	PanicWindowPercentage         float64 // percent of StableWindow
	PanicThresholdPercentage      float64 // percent of ready capacity
	ScaleToZeroGracePeriod        time.Duration
	ScaleToZeroPodRetentionPeriod time.Duration
	ScaleDownDelay                time.Duration
	ScaleUpBurst                  float64 // pods that one service may add at once
	ScaleUpPerSecond              float64 // and for each second that passes
	Standby                       StandbyMode
	StandbyAfter                  time.Duration // idle before it sleeps
	StandbyMax                    time.Duration // asleep before it is deleted
	StandbyMemory                 float64       // percent of the nodes' allocatable memory
	StartupCPU                    int64         // thousandths of a CPU that a pod has until it answers; 0 = its limit
	StartupCPUMax                 int64         // the largest startup-cpu
	StartupCPUGrace               time.Duration // after a pod became ready, before it has its limit again
}

// StandbyMode says how many pods that are not needed sleep instead of being deleted.
type StandbyMode string

const (
	// StandbyOff: none.
	StandbyOff StandbyMode = "off"
	// StandbyAuto: as many as the policy of package keep finds worth their memory.
	StandbyAuto StandbyMode = "auto"
	// StandbyCount: up to a number, for as long as is allowed. Only an annotation says so.
	StandbyCount StandbyMode = "count"
)

// Config is the part of the installation's settings that rules depend on.
type Config struct {
	Defaults    Defaults
	Features    Features
	Autoscaling Autoscaling
	// ProgressDeadline is how long pods may take to become ready.
	ProgressDeadline time.Duration
	// Shim says that the shim has an image, so that templates may ask for it.
	Shim bool
	// ClusterDomain is the cluster's own DNS domain, for example "cluster.local". Only admission
	// sets it, which refuses to map it.
	ClusterDomain string
}

// Operation is what a request does to an object.
type Operation string

const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
)

// Request is what defaulting and validation know besides the object.
type Request[T any] struct {
	Config    *Config
	Operation Operation
	// Subresource is "status" for updates of the status, and "" for the object itself.
	Subresource string
	// Old is the stored object in an update, nil otherwise.
	Old *T
	// User is who asks.
	User string
}
