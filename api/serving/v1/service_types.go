package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Service is what users apply: a template for Revisions and the traffic that reaches them.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=kservice;ksvc,categories=all;knative;serving
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=".status.url"
// +kubebuilder:printcolumn:name="LatestCreated",type=string,JSONPath=".status.latestCreatedRevisionName"
// +kubebuilder:printcolumn:name="LatestReady",type=string,JSONPath=".status.latestReadyRevisionName"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
type Service struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What to run and how traffic reaches it. A change of the template makes a new Revision.
	// +optional
	Spec ServiceSpec `json:"spec,omitempty"`
	// What was observed; written by the controller.
	// +optional
	Status ServiceStatus `json:"status,omitempty"`
}

// ServiceSpec is a Configuration's and a Route's spec side by side.
type ServiceSpec struct {
	ConfigurationSpec `json:",inline"`
	RouteSpec         `json:",inline"`
}

// ServiceStatus is a Configuration's and a Route's status side by side.
type ServiceStatus struct {
	duckv1.Status             `json:",inline"`
	ConfigurationStatusFields `json:",inline"`
	RouteStatusFields         `json:",inline"`
}

// ServiceList is a list of Services.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type ServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Service `json:"items"`
}
