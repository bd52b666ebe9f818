package v1

import (
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
)

// Conditions of a Revision. Active is for information only: a Revision without pods is Ready all the same.
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
	ReasonUnschedulable            = "Unschedulable"
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

// ServingContainer is the container that requests go to: the only one, or the only one with a port; nil when
// there is none.
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

// MarkActiveTrue says that the Revision has pods.
func (rs *RevisionStatus) MarkActiveTrue() {
	revisionConditions().Manage(rs).MarkTrue(RevisionConditionActive)
}

// MarkActiveFalse says why the Revision has no pods.
func (rs *RevisionStatus) MarkActiveFalse(reason, message string) {
	revisionConditions().Manage(rs).MarkFalse(RevisionConditionActive, reason, "%s", message)
}

// MarkActiveUnknown says why the Revision's pods are not there yet.
func (rs *RevisionStatus) MarkActiveUnknown(reason, message string) {
	revisionConditions().Manage(rs).MarkUnknown(RevisionConditionActive, reason, "%s", message)
}

// MarkContainerHealthyTrue says that the containers start.
func (rs *RevisionStatus) MarkContainerHealthyTrue() {
	revisionConditions().Manage(rs).MarkTrue(RevisionConditionContainerHealthy)
}

// MarkContainerHealthyTrueWithReason says that the containers start, and what there is to know about it.
func (rs *RevisionStatus) MarkContainerHealthyTrueWithReason(reason, message string) {
	revisionConditions().Manage(rs).MarkTrueWithReason(RevisionConditionContainerHealthy, reason, "%s", message)
}

// MarkContainerHealthyFalse says why the containers do not start.
func (rs *RevisionStatus) MarkContainerHealthyFalse(reason, message string) {
	revisionConditions().Manage(rs).MarkFalse(RevisionConditionContainerHealthy, reason, "%s", message)
}

// MarkContainerHealthyUnknown says why it is not known whether the containers start.
func (rs *RevisionStatus) MarkContainerHealthyUnknown(reason, message string) {
	revisionConditions().Manage(rs).MarkUnknown(RevisionConditionContainerHealthy, reason, "%s", message)
}

// MarkResourcesAvailableTrue says that the pods got what they need.
func (rs *RevisionStatus) MarkResourcesAvailableTrue() {
	revisionConditions().Manage(rs).MarkTrue(RevisionConditionResourcesAvailable)
}

// MarkResourcesAvailableFalse says what the pods did not get.
func (rs *RevisionStatus) MarkResourcesAvailableFalse(reason, message string) {
	revisionConditions().Manage(rs).MarkFalse(RevisionConditionResourcesAvailable, reason, "%s", message)
}

// MarkResourcesAvailableUnknown says what the pods wait for.
func (rs *RevisionStatus) MarkResourcesAvailableUnknown(reason, message string) {
	revisionConditions().Manage(rs).MarkUnknown(RevisionConditionResourcesAvailable, reason, "%s", message)
}

// NotOwnedMessage is the message of ResourcesAvailable for a child that belongs to somebody else.
func NotOwnedMessage(kind, name string) string {
	return fmt.Sprintf("There is an existing %s %q that we do not own.", kind, name)
}

// ExitCodeReason is the reason of ContainerHealthy for a container that ended with an exit code.
func ExitCodeReason(code int32) string { return "ExitCode" + strconv.Itoa(int(code)) }

// ExitCodeMessage is the message that belongs to it; message is the container's termination message.
func ExitCodeMessage(message string) string { return "Container failed with: " + message }

// MissingImageMessage says why the image of a container cannot be found.
func MissingImageMessage(image, message string) string {
	return fmt.Sprintf("Unable to fetch image %q: failed to resolve image to digest: %s", image, message)
}

// PropagateDeploymentStatus takes over what the Deployment knows, by this table (first match):
//
//	ReplicaFailure  Progressing  ResourcesAvailable
//	True            any          False, the failure's reason
//	other           False        False, the reason (ProgressDeadlineExceeded)
//	other           Unknown      Unknown, the reason
//	other           True         True
//	other           none         unchanged
func (rs *RevisionStatus) PropagateDeploymentStatus(ds *appsv1.DeploymentStatus) {
	var progressing, failure *appsv1.DeploymentCondition
	for i := range ds.Conditions {
		switch ds.Conditions[i].Type {
		case appsv1.DeploymentProgressing:
			progressing = &ds.Conditions[i]
		case appsv1.DeploymentReplicaFailure:
			failure = &ds.Conditions[i]
		}
	}
	switch {
	case failure != nil && failure.Status == corev1.ConditionTrue:
		rs.MarkResourcesAvailableFalse(failure.Reason, failure.Message)
	case progressing == nil:
	case progressing.Status == corev1.ConditionFalse:
		rs.MarkResourcesAvailableFalse(progressing.Reason, progressing.Message)
	case progressing.Status == corev1.ConditionTrue:
		rs.MarkResourcesAvailableTrue()
	default:
		rs.MarkResourcesAvailableUnknown(progressing.Reason, progressing.Message)
	}
}

// PropagateAutoscalerStatus takes over what the PodAutoscaler knows. It is called after
// PropagateDeploymentStatus and only tightens what that found:
//
//	initialized  PA Active  ResourcesAvailable               ContainerHealthy
//	yes          any        as it is; Unknown becomes True   True
//	no           False      False ProgressDeadlineExceeded   as it is
//	no           other      True becomes Unknown Deploying   as it is
//
// Initialized means that the PodAutoscaler has a Service and once had its initial scale. The replica figures
// appear when the PodAutoscaler has both of them.
func (rs *RevisionStatus) PropagateAutoscalerStatus(ps *autoscalingv1alpha1.PodAutoscalerStatus) {
	if ps.ActualScale != nil && ps.DesiredScale != nil {
		actual, desired := *ps.ActualScale, *ps.DesiredScale
		rs.ActualReplicas, rs.DesiredReplicas = &actual, &desired
	}

	active := ps.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive)
	switch {
	case active.IsTrue():
		rs.MarkActiveTrue()
	case active.IsFalse():
		rs.MarkActiveFalse(active.Reason, active.Message)
	case active != nil:
		rs.MarkActiveUnknown(active.Reason, active.Message)
	default:
		rs.MarkActiveUnknown(ReasonDeploying, "")
	}

	resources := rs.GetCondition(RevisionConditionResourcesAvailable)
	switch {
	case ps.IsScaleTargetInitialized() && ps.ServiceName != "":
		if resources.IsUnknown() {
			rs.MarkResourcesAvailableTrue()
		}
		rs.MarkContainerHealthyTrue()
	case active.IsFalse():
		if !resources.IsFalse() {
			rs.MarkResourcesAvailableFalse(ReasonProgressDeadlineExceeded, "Initial scale was never achieved")
		}
	case !resources.IsFalse():
		rs.MarkResourcesAvailableUnknown(ReasonDeploying, "")
	}
}
