package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
)

// Conditions of a PodAutoscaler.
const (
	PodAutoscalerConditionReady                  = apis.ConditionReady
	PodAutoscalerConditionActive                 = apis.ConditionType("Active")
	PodAutoscalerConditionScaleTargetInitialized = apis.ConditionType("ScaleTargetInitialized")
	PodAutoscalerConditionSKSReady               = apis.ConditionType("SKSReady")
	// PodAutoscalerConditionStartupCPULimited exists, and is True, only if the last pods that
	// started did not get the CPU that they should have until they answer, or did not give it
	// back. It does not count for Ready.
	PodAutoscalerConditionStartupCPULimited = apis.ConditionType("StartupCPULimited")
)

// Reasons of a PodAutoscaler's conditions.
const (
	ReasonNotOwned     = "NotOwned"
	ReasonFailedCreate = "FailedCreate"
	ReasonNotReady     = "NotReady"

	// ReasonResizeRefused: the API server does not change a pod's limit, because of a
	// ResourceQuota, a LimitRange or the pod itself. ReasonResizeUnsupported: it cannot.
	// ReasonResizeNotDone: the node does not.
	ReasonResizeRefused     = "ResizeRefused"
	ReasonResizeUnsupported = "ResizeUnsupported"
	ReasonResizeNotDone     = "ResizeNotDone"
)

// RuleHPA is the rule of all decisions of the class hpa.autoscaling.knative.dev.
const RuleHPA = "horizontal-pod-autoscaler"

func podAutoscalerConditions() apis.ConditionSet {
	return apis.NewLivingConditionSet(PodAutoscalerConditionActive, PodAutoscalerConditionScaleTargetInitialized,
		PodAutoscalerConditionSKSReady)
}

// GetGroupVersionKind names the kind for owner references.
func (*PodAutoscaler) GetGroupVersionKind() schema.GroupVersionKind {
	return SchemeGroupVersion.WithKind("PodAutoscaler")
}

// GetConditionSet returns the conditions of this kind.
func (*PodAutoscaler) GetConditionSet() apis.ConditionSet { return podAutoscalerConditions() }

// GetStatus returns the part of the status that all kinds share.
func (pa *PodAutoscaler) GetStatus() *duckv1.Status { return &pa.Status.Status }

// Class is the autoscaler class that looks after the object; fallback is the configured default.
func (pa *PodAutoscaler) Class(fallback string) string {
	if class := pa.Annotations[names.ClassAnnotation]; class != "" {
		return class
	}
	return fallback
}

// IsReady tells whether all conditions are True.
func (s *PodAutoscalerStatus) IsReady() bool {
	return s.GetCondition(PodAutoscalerConditionReady).IsTrue()
}

// IsScaleTargetInitialized tells whether the initial scale was reached once.
func (s *PodAutoscalerStatus) IsScaleTargetInitialized() bool {
	return s.GetCondition(PodAutoscalerConditionScaleTargetInitialized).IsTrue()
}

// InitializeConditions makes every condition that is not set Unknown.
func (s *PodAutoscalerStatus) InitializeConditions() {
	podAutoscalerConditions().Manage(s).InitializeConditions()
}

// MarkActive says that pods are wanted and there.
func (s *PodAutoscalerStatus) MarkActive() {
	podAutoscalerConditions().Manage(s).MarkTrue(PodAutoscalerConditionActive)
}

// MarkActivating says that pods are wanted and not there yet.
func (s *PodAutoscalerStatus) MarkActivating(reason, message string) {
	podAutoscalerConditions().Manage(s).MarkUnknown(PodAutoscalerConditionActive, reason, "%s", message)
}

// MarkInactive says why no pods are wanted.
func (s *PodAutoscalerStatus) MarkInactive(reason, message string) {
	podAutoscalerConditions().Manage(s).MarkFalse(PodAutoscalerConditionActive, reason, "%s", message)
}

// MarkScaleTargetInitialized says that the initial scale was reached once. It is never taken back.
func (s *PodAutoscalerStatus) MarkScaleTargetInitialized() {
	podAutoscalerConditions().Manage(s).MarkTrue(PodAutoscalerConditionScaleTargetInitialized)
}

// MarkScaleTargetNotInitialized says what the initial scale waits for.
func (s *PodAutoscalerStatus) MarkScaleTargetNotInitialized(reason, message string) {
	podAutoscalerConditions().Manage(s).MarkUnknown(PodAutoscalerConditionScaleTargetInitialized, reason, "%s", message)
}

// MarkSKSReady says that the public Service has endpoints.
func (s *PodAutoscalerStatus) MarkSKSReady() {
	podAutoscalerConditions().Manage(s).MarkTrue(PodAutoscalerConditionSKSReady)
}

// MarkSKSNotReady says why the public Service has no endpoints of its own.
func (s *PodAutoscalerStatus) MarkSKSNotReady(message string) {
	podAutoscalerConditions().Manage(s).MarkUnknown(PodAutoscalerConditionSKSReady, ReasonNotReady, "%s", message)
}

// MarkStartupCPULimited says why pods start with other CPU than they should.
func (s *PodAutoscalerStatus) MarkStartupCPULimited(reason, message string) {
	podAutoscalerConditions().Manage(s).SetCondition(apis.Condition{Type: PodAutoscalerConditionStartupCPULimited,
		Status: corev1.ConditionTrue, Severity: apis.ConditionSeverityInfo, Reason: reason, Message: message})
}

// ClearStartupCPULimited says that they do not.
func (s *PodAutoscalerStatus) ClearStartupCPULimited() {
	_ = podAutoscalerConditions().Manage(s).ClearCondition(PodAutoscalerConditionStartupCPULimited) // it fails only for conditions that count
}

// MarkResourceNotOwned says that an object the PodAutoscaler needs belongs to somebody else.
func (s *PodAutoscalerStatus) MarkResourceNotOwned(kind, name string) {
	podAutoscalerConditions().Manage(s).MarkFalse(PodAutoscalerConditionActive, ReasonNotOwned,
		"There is an existing %s %q that we do not own.", kind, name)
}

// MarkResourceFailedCreation says that an object the PodAutoscaler needs could not be made.
func (s *PodAutoscalerStatus) MarkResourceFailedCreation(kind, name string) {
	podAutoscalerConditions().Manage(s).MarkFalse(PodAutoscalerConditionActive, ReasonFailedCreate,
		"Failed to create %s %q.", kind, name)
}
