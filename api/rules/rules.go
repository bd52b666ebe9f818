// Package rules declares what defaulting and validation need to know besides the object itself: the
// part of the installation's settings that they depend on (filled by the settings folder), and the
// request they judge.
//
// Owns: Config and Request. Reads: nothing. Writes: nothing. Never: decides; the kinds do, in their
// own packages.
package rules

import (
	"text/template"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Defaults are the values of ConfigMap config-defaults.
type Defaults struct {
	// All in seconds. 0 is off for the response start and idle timeouts.
	RevisionTimeoutSeconds              int64
	MaxRevisionTimeoutSeconds           int64
	RevisionResponseStartTimeoutSeconds int64
	RevisionIdleTimeoutSeconds          int64

	// Resources of a user container that asks for none; nil leaves them unset.
	RevisionCPURequest              *resource.Quantity
	RevisionCPULimit                *resource.Quantity
	RevisionMemoryRequest           *resource.Quantity
	RevisionMemoryLimit             *resource.Quantity
	RevisionEphemeralStorageRequest *resource.Quantity
	RevisionEphemeralStorageLimit   *resource.Quantity

	// Go templates over the object's metadata (metav1.ObjectMeta).
	ContainerNameTemplate     *template.Template
	InitContainerNameTemplate *template.Template

	ContainerConcurrency          int64
	ContainerConcurrencyMaxLimit  int64
	AllowContainerConcurrencyZero bool
	// EnableServiceLinks nil leaves the field of the pod spec unset.
	EnableServiceLinks *bool
}

// Autoscaling are the values of ConfigMap config-autoscaler that decide which annotations are
// refused.
type Autoscaling struct {
	// Class is the default of autoscaling.knative.dev/class.
	Class                 string
	AllowZeroInitialScale bool
	MinScale              int32
	MaxScale              int32
	// MaxScaleLimit is the largest max-scale that may be asked for; 0 is no limit.
	MaxScaleLimit int32
}

// Config is the part of the installation's settings that rules depend on.
type Config struct {
	Defaults    Defaults
	Features    Features
	Autoscaling Autoscaling
	// ClusterDomain is the cluster's own DNS domain, for example "cluster.local".
	ClusterDomain string
}

// Operation is what a request does to an object.
type Operation string

const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
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
