package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// PodAutoscaler asks that the pods of one Revision follow its load.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=kpa;pa,categories=knative-internal;autoscaling
// +kubebuilder:printcolumn:name="DesiredScale",type=integer,JSONPath=".status.desiredScale"
// +kubebuilder:printcolumn:name="ActualScale",type=integer,JSONPath=".status.actualScale"
// +kubebuilder:printcolumn:name="Asleep",type=string,JSONPath=".status.asleep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Rule",type=string,JSONPath=".status.decision.rule"
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=".status.mode",priority=1
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=".status.decision.reason",priority=1
type PodAutoscaler struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What scales and within which limits; written by the controller.
	// +optional
	Spec PodAutoscalerSpec `json:"spec,omitempty"`
	// What was decided and observed; written by the autoscaler.
	// +optional
	Status PodAutoscalerStatus `json:"status,omitempty"`
}

// Reachability says whether a Route leads to the Revision.
type Reachability string

const (
	// ReachabilityUnknown: not decided yet; treated as reachable.
	ReachabilityUnknown Reachability = ""
	// ReachabilityReachable: a Route leads to it.
	ReachabilityReachable Reachability = "Reachable"
	// ReachabilityUnreachable: no Route leads to it, so minimum scales do not hold.
	ReachabilityUnreachable Reachability = "Unreachable"
)

// ProtocolType is what the user container speaks.
type ProtocolType string

const (
	// ProtocolHTTP1 is HTTP/1.1.
	ProtocolHTTP1 ProtocolType = "http1"
	// ProtocolH2C is HTTP/2 without TLS, by prior knowledge.
	ProtocolH2C ProtocolType = "h2c"
)

// PodAutoscalerSpec says what scales and within which limits. The rest is in the autoscaling
// annotations.
type PodAutoscalerSpec struct {
	// The most requests one pod handles at once; 0 is no limit.
	// +optional
	ContainerConcurrency int64 `json:"containerConcurrency,omitempty"`
	// What to scale: an object of the same namespace with a scale subresource.
	ScaleTargetRef corev1.ObjectReference `json:"scaleTargetRef"`
	// Whether a Route leads to the Revision.
	// +optional
	Reachability Reachability `json:"reachability,omitempty"`
	// What the user container speaks.
	ProtocolType ProtocolType `json:"protocolType"`
}

// Mode says which endpoints the Revision's public Service lists.
type Mode string

const (
	// ModeServe: its own ready pods.
	ModeServe Mode = "Serve"
	// ModeProxy: activators, which hold requests until a pod is there.
	ModeProxy Mode = "Proxy"
)

// Decision is the autoscaler's last decision that changed something, and why.
type Decision struct {
	// When it was made.
	Time metav1.MicroTime `json:"time"`
	// How many pods are wanted.
	Desired int32 `json:"desired"`
	// The rule that decided, one word.
	Rule string `json:"rule"`
	// Why, in a sentence with the figures.
	Reason string `json:"reason"`
	// The figures the decision rests on, by name.
	// +optional
	Inputs map[string]string `json:"inputs,omitempty"`
}

// LearnedTarget is what the autoscaler found out about a pod where the target is to be learned. The
// figures are texts, as there are no fractions in the API.
type LearnedTarget struct {
	// When the lesson ended.
	Time metav1.Time `json:"time"`
	// The concurrency from which on requests only queue in a pod; with a throughput of 0 one at
	// which they were seen not to.
	Concurrency string `json:"concurrency"`
	// Requests a second of a pod at that concurrency; 0 if it could not be told from when on they
	// queue.
	Throughput string `json:"throughput"`
}

// PodAutoscalerStatus is what was decided and observed.
type PodAutoscalerStatus struct {
	duckv1.Status `json:",inline"`

	// The Service that clients of the Revision reach.
	// +optional
	ServiceName string `json:"serviceName,omitempty"`
	// The Service of the Revision's own pods.
	// +optional
	MetricsServiceName string `json:"metricsServiceName,omitempty"`
	// Wanted pods.
	// +optional
	DesiredScale *int32 `json:"desiredScale,omitempty"`
	// Ready pods.
	// +optional
	ActualScale *int32 `json:"actualScale,omitempty"`
	// Pods that sleep. They are not ready.
	// +optional
	AsleepReplicas *int32 `json:"asleepReplicas,omitempty"`
	// How they sleep, such as "2 frozen, 1 warm without node agent".
	// +optional
	Asleep string `json:"asleep,omitempty"`
	// How long pods were idle before they were needed again, such as "1m20s=3.2 4m=1". The number
	// is a weight: newer times weigh more.
	// +optional
	IdleTimes string `json:"idleTimes,omitempty"`
	// Which endpoints the public Service lists.
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// How many activators the public Service lists in mode Proxy; 0 is all.
	// +optional
	NumActivators int32 `json:"numActivators,omitempty"`
	// The last decision that changed something, and why.
	// +optional
	Decision *Decision `json:"decision,omitempty"`
	// What is known of a pod where the target is to be learned; written when a lesson ends.
	// +optional
	Learned *LearnedTarget `json:"learned,omitempty"`
}

// PodAutoscalerList is a list of PodAutoscalers.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type PodAutoscalerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []PodAutoscaler `json:"items"`
}
