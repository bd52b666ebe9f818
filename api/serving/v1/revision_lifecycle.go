package v1

import (
	"strings"

	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
)

// Conditions of a Revision. Active is for information only: a Revision without pods is Ready all
// the same.
const (
	RevisionConditionReady              = apis.ConditionReady
	RevisionConditionResourcesAvailable = apis.ConditionType("ResourcesAvailable")
	RevisionConditionContainerHealthy   = apis.ConditionType("ContainerHealthy")
	RevisionConditionActive             = apis.ConditionType("Active")
)

// Reasons of a Revision's conditions.
const (
	ReasonResolvingDigests         = "ResolvingDigests"
	ReasonDeploying                = "Deploying"
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	ReasonContainerMissing         = "ContainerMissing"
)

func revisionConditions() apis.ConditionSet {
	return apis.NewLivingConditionSet(RevisionConditionResourcesAvailable, RevisionConditionContainerHealthy)
}

// GetGroupVersionKind names the kind for owner references.
func (*Revision) GetGroupVersionKind() schema.GroupVersionKind {
	return SchemeGroupVersion.WithKind("Revision")
}

// GetConditionSet returns the conditions of this kind.
func (*Revision) GetConditionSet() apis.ConditionSet { return revisionConditions() }

// GetStatus returns the part of the status that all kinds share.
func (r *Revision) GetStatus() *duckv1.Status { return &r.Status.Status }

// IsReady tells whether the current generation was reconciled and is Ready.
func (r *Revision) IsReady() bool {
	return r.Status.ObservedGeneration == r.Generation && r.Status.GetCondition(RevisionConditionReady).IsTrue()
}

// IsFailed tells whether the current generation was reconciled and is not Ready for good.
func (r *Revision) IsFailed() bool {
	return r.Status.ObservedGeneration == r.Generation && r.Status.GetCondition(RevisionConditionReady).IsFalse()
}

// RoutingState says whether a Route leads to the Revision; without the label it is pending.
func (r *Revision) RoutingState() names.RoutingState {
	if state := names.RoutingState(r.Labels[names.RoutingStateLabel]); state != "" {
		return state
	}
	return names.RoutingPending
}

// ServingContainer is the container that requests go to: the only one, or the only one with a port;
// nil when there is none.
func (rs *RevisionSpec) ServingContainer() *corev1.Container {
	if len(rs.Containers) == 1 {
		return &rs.Containers[0]
	}
	for i := range rs.Containers {
		if len(rs.Containers[i].Ports) != 0 {
			return &rs.Containers[i]
		}
	}
	return nil
}

// Protocol is what the serving container speaks: h2c when its port is named so.
func (rs *RevisionSpec) Protocol() autoscalingv1alpha1.ProtocolType {
	if c := rs.ServingContainer(); c != nil && len(c.Ports) > 0 && c.Ports[0].Name == string(autoscalingv1alpha1.ProtocolH2C) {
		return autoscalingv1alpha1.ProtocolH2C
	}
	return autoscalingv1alpha1.ProtocolHTTP1
}

// Port is the serving container's port.
func (rs *RevisionSpec) Port() int32 {
	if c := rs.ServingContainer(); c != nil && len(c.Ports) > 0 && c.Ports[0].ContainerPort != 0 {
		return c.Ports[0].ContainerPort
	}
	return names.DefaultUserPort
}

// InitializeConditions makes every condition that is not set Unknown.
func (rs *RevisionStatus) InitializeConditions() {
	revisionConditions().Manage(rs).InitializeConditions()
}

// MissingImageMessage says why the image of a container cannot be found.
func MissingImageMessage(image, message string) string {
	return fmt.Sprintf("Unable to fetch image %q: failed to resolve image to digest: %s", image, message)
}

// The words around what a container said last, in the message of ContainerHealthy.
const (
	ContainerFailedWith = "Container failed with: "
	ContainerLastWords  = ". Its last words: "
)

// knownOfAFailure is what Kubernetes knows of a container's failure. Anything else is the
// container's own.
var knownOfAFailure = regexp.MustCompile(`^` + ContainerFailedWith + `(container "[^"]+" ended with exit code \d+ and said nothing|` +
	`\w+ \(container "[^"]+", exit code \d+\)|OOMKilled \(container "[^"]+", exit code \d+\): it took more memory .*|` +
	`container "[^"]+" was ended with exit code \d+, because its \w+ probe failed.*)$`)

// WithoutLastWords returns the message without what the container said, for those who must not read
// its log. It is "" if nothing is left.
func WithoutLastWords(message string) string {
	message, _, _ = strings.Cut(message, ContainerLastWords)
	if knownOfAFailure.MatchString(message) {
		return message
	}
	return ""
}
