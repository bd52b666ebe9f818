package v1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Conditions of a Service.
const (
	ServiceConditionReady               = apis.ConditionReady
	ServiceConditionConfigurationsReady = apis.ConditionType("ConfigurationsReady")
	ServiceConditionRoutesReady         = apis.ConditionType("RoutesReady")
)

// Reasons of a Service's conditions.
const (
	ReasonNotOwned           = "NotOwned"
	ReasonOutOfDate          = "OutOfDate"
	ReasonRevisionNameTaken  = "RevisionNameTaken"
	ReasonTrafficNotMigrated = "TrafficNotMigrated"
)

func serviceConditions() apis.ConditionSet {
	return apis.NewLivingConditionSet(ServiceConditionConfigurationsReady, ServiceConditionRoutesReady)
}

// GetGroupVersionKind names the kind for owner references.
func (*Service) GetGroupVersionKind() schema.GroupVersionKind {
	return SchemeGroupVersion.WithKind("Service")
}

// GetConditionSet returns the conditions of this kind.
func (*Service) GetConditionSet() apis.ConditionSet { return serviceConditions() }

// GetStatus returns the part of the status that all kinds share.
func (s *Service) GetStatus() *duckv1.Status { return &s.Status.Status }

// InitializeConditions makes every condition that is not set Unknown.
func (ss *ServiceStatus) InitializeConditions() {
	serviceConditions().Manage(ss).InitializeConditions()
}
