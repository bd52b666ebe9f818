package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// DomainMapping gives a service the domain that is the mapping's name.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=dm,categories=all;knative;serving
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=".status.url"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
type DomainMapping struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the domain leads to.
	// +optional
	Spec DomainMappingSpec `json:"spec,omitempty"`
	// What was observed; written by the controller.
	// +optional
	Status DomainMappingStatus `json:"status,omitempty"`
}

// SecretTLS names a Secret with a certificate for the domain.
type SecretTLS struct {
	// The Secret's name, in the mapping's namespace.
	SecretName string `json:"secretName"`
}

// DomainMappingSpec says what the domain leads to.
type DomainMappingSpec struct {
	// What the domain leads to: a Service or Route, or anything else with an address of that kind.
	Ref duckv1.KReference `json:"ref"`
	// A certificate that somebody else looks after.
	// +optional
	TLS *SecretTLS `json:"tls,omitempty"`
}

// DomainMappingStatus is what was observed of a DomainMapping.
type DomainMappingStatus struct {
	duckv1.Status `json:",inline"`

	// Where clients reach it.
	// +optional
	URL *apis.URL `json:"url,omitempty"`
	// The same as an address.
	// +optional
	Address *duckv1.Addressable `json:"address,omitempty"`
}

// DomainMappingList is a list of DomainMappings.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type DomainMappingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []DomainMapping `json:"items"`
}
