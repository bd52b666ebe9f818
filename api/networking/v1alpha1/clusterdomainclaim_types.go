package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterDomainClaim gives the domain that is its name to one namespace.
//
// +genclient
// +genclient:nonNamespaced
// +genclient:noStatus
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cdc,categories=knative-internal;networking
type ClusterDomainClaim struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Who may map the domain.
	// +optional
	Spec ClusterDomainClaimSpec `json:"spec,omitempty"`
}

// ClusterDomainClaimSpec says who may map the domain.
type ClusterDomainClaimSpec struct {
	// The only namespace whose DomainMappings may use the domain.
	Namespace string `json:"namespace"`
}

// ClusterDomainClaimList is a list of ClusterDomainClaims.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type ClusterDomainClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ClusterDomainClaim `json:"items"`
}
