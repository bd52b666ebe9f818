package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Route gives hosts to Revisions and splits requests between them.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rt,categories=all;knative;serving
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=".status.url"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
type Route struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Where requests go.
	// +optional
	Spec RouteSpec `json:"spec,omitempty"`
	// What was observed; written by the controller.
	// +optional
	Status RouteStatus `json:"status,omitempty"`
}

// TrafficTarget is one Revision's (or one Configuration's newest Revision's) share of the requests.
type TrafficTarget struct {
	// A name that gives this target a host of its own, "<tag>-<route>.<namespace>.<domain>" unless
	// configured otherwise.
	// +optional
	Tag string `json:"tag,omitempty"`
	// The Revision that gets the share. Either this or the newest Ready Revision of a
	// Configuration.
	// +optional
	RevisionName string `json:"revisionName,omitempty"`
	// The Configuration whose newest Ready Revision gets the share. Not allowed in a Service, which
	// has only one.
	// +optional
	ConfigurationName string `json:"configurationName,omitempty"`
	// Whether the share follows the newest Ready Revision; true exactly when revisionName is empty.
	// +optional
	LatestRevision *bool `json:"latestRevision,omitempty"`
	// The share in percent. All shares together are 100.
	// +optional
	Percent *int64 `json:"percent,omitempty"`
	// The tag's host; only in a status.
	// +optional
	URL *apis.URL `json:"url,omitempty"`
}

// RouteSpec says where requests go.
type RouteSpec struct {
	// The shares. Empty in a Service means everything to the newest Ready Revision.
	// +optional
	Traffic []TrafficTarget `json:"traffic,omitempty"`
}

// RouteStatusFields are the fields that Routes and Services share.
type RouteStatusFields struct {
	// Where clients reach it.
	// +optional
	URL *apis.URL `json:"url,omitempty"`
	// Where clients inside the cluster reach it.
	// +optional
	Address *duckv1.Addressable `json:"address,omitempty"`
	// The shares as they are, resolved to Revisions.
	// +optional
	Traffic []TrafficTarget `json:"traffic,omitempty"`
}

// RouteStatus is what was observed of a Route.
type RouteStatus struct {
	duckv1.Status     `json:",inline"`
	RouteStatusFields `json:",inline"`
}

// RouteList is a list of Routes.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type RouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Route `json:"items"`
}
