package v1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// ConfigurationConditionReady is the only condition of a Configuration.
const ConfigurationConditionReady = apis.ConditionReady

// Reasons of a Configuration's condition.
const (
	ReasonRevisionFailed  = "RevisionFailed"
	ReasonRevisionDeleted = "RevisionDeleted"
)

func configurationConditions() apis.ConditionSet { return apis.NewLivingConditionSet() }

// GetGroupVersionKind names the kind for owner references.
func (*Configuration) GetGroupVersionKind() schema.GroupVersionKind {
	return SchemeGroupVersion.WithKind("Configuration")
}

// GetConditionSet returns the conditions of this kind.
func (*Configuration) GetConditionSet() apis.ConditionSet { return configurationConditions() }

// GetStatus returns the part of the status that all kinds share.
func (c *Configuration) GetStatus() *duckv1.Status { return &c.Status.Status }

// IsFailed tells whether the current generation was reconciled and is not Ready for good.
func (c *Configuration) IsFailed() bool {
	return c.Status.ObservedGeneration == c.Generation && c.Status.GetCondition(ConfigurationConditionReady).IsFalse()
}

// InitializeConditions makes every condition that is not set Unknown.
func (cs *ConfigurationStatus) InitializeConditions() {
	configurationConditions().Manage(cs).InitializeConditions()
}
