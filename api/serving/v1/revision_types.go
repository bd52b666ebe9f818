package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Revision is one immutable version of a service: its pods, their limits and their timeouts.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rev,categories=all;knative;serving
// +kubebuilder:printcolumn:name="Config Name",type=string,JSONPath=".metadata.labels['serving\\.knative\\.dev/configuration']"
// +kubebuilder:printcolumn:name="Generation",type=string,JSONPath=".metadata.labels['serving\\.knative\\.dev/configurationGeneration']"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Actual Replicas",type=integer,JSONPath=".status.actualReplicas"
// +kubebuilder:printcolumn:name="Desired Replicas",type=integer,JSONPath=".status.desiredReplicas"
type Revision struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What runs. It never changes.
	// +optional
	Spec RevisionSpec `json:"spec,omitempty"`
	// What was observed; written by the controller.
	// +optional
	Status RevisionStatus `json:"status,omitempty"`
}

// RevisionTemplateSpec is a Revision without an identity.
type RevisionTemplateSpec struct {
	// Labels and annotations of the Revision; its name, when the user wants to choose it.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec RevisionSpec `json:"spec,omitempty"`
}

// RevisionSpec is a pod's spec and how requests reach it.
type RevisionSpec struct {
	corev1.PodSpec `json:",inline"`

	// The most requests one pod handles at once; 0 is no limit.
	// +optional
	ContainerConcurrency *int64 `json:"containerConcurrency,omitempty"`
	// The longest a request may take, in seconds, from its arrival to the first byte of the
	// response.
	// +optional
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`
	// The longest a request may wait, in seconds, for the response to begin.
	// +optional
	ResponseStartTimeoutSeconds *int64 `json:"responseStartTimeoutSeconds,omitempty"`
	// The longest a request or its response may stay without a byte moving, in seconds.
	// +optional
	IdleTimeoutSeconds *int64 `json:"idleTimeoutSeconds,omitempty"`
}

// ContainerStatus is what a container's image was resolved to.
type ContainerStatus struct {
	// The container's name.
	// +optional
	Name string `json:"name,omitempty"`
	// The image by digest; empty where the registry is not asked.
	// +optional
	ImageDigest string `json:"imageDigest,omitempty"`
}

// RevisionStatus is what was observed of a Revision.
type RevisionStatus struct {
	duckv1.Status `json:",inline"`

	// Where the Revision's logs are shown.
	// +optional
	LogURL string `json:"logUrl,omitempty"`
	// The resolved images of the containers, in the order of the spec.
	// +optional
	ContainerStatuses []ContainerStatus `json:"containerStatuses,omitempty"`
	// The images of the init containers, in the order of the spec.
	// +optional
	InitContainerStatuses []ContainerStatus `json:"initContainerStatuses,omitempty"`
	// Ready pods.
	// +optional
	ActualReplicas *int32 `json:"actualReplicas,omitempty"`
	// Wanted pods.
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
}

// RevisionList is a list of Revisions.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type RevisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Revision `json:"items"`
}
