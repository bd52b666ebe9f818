package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Configuration holds the template of which it makes a Revision each time the template changes.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=config;cfg,categories=all;knative;serving
// +kubebuilder:printcolumn:name="LatestCreated",type=string,JSONPath=".status.latestCreatedRevisionName"
// +kubebuilder:printcolumn:name="LatestReady",type=string,JSONPath=".status.latestReadyRevisionName"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
type Configuration struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The template of the Revisions to make.
	// +optional
	Spec ConfigurationSpec `json:"spec,omitempty"`
	// What was observed; written by the controller.
	// +optional
	Status ConfigurationStatus `json:"status,omitempty"`
}

// ConfigurationSpec holds the template of Revisions.
type ConfigurationSpec struct {
	// The Revision to make. Naming it (metadata.name, prefixed with the Service's name and a dash)
	// is optional.
	// +optional
	Template RevisionTemplateSpec `json:"template"`
}

// ConfigurationStatusFields are the fields that Configurations and Services share.
type ConfigurationStatusFields struct {
	// The newest Revision that was ever Ready.
	// +optional
	LatestReadyRevisionName string `json:"latestReadyRevisionName,omitempty"`
	// The Revision made of the current template.
	// +optional
	LatestCreatedRevisionName string `json:"latestCreatedRevisionName,omitempty"`
}

// ConfigurationStatus is what was observed of a Configuration.
type ConfigurationStatus struct {
	duckv1.Status             `json:",inline"`
	ConfigurationStatusFields `json:",inline"`
}

// ConfigurationList is a list of Configurations.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type ConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Configuration `json:"items"`
}
