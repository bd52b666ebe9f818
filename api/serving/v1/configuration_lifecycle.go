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

// IsReady tells whether the current generation was reconciled and is Ready.
func (c *Configuration) IsReady() bool {
	return c.Status.ObservedGeneration == c.Generation && c.Status.GetCondition(ConfigurationConditionReady).IsTrue()
}

// IsFailed tells whether the current generation was reconciled and is not Ready for good.
func (c *Configuration) IsFailed() bool {
	return c.Status.ObservedGeneration == c.Generation && c.Status.GetCondition(ConfigurationConditionReady).IsFalse()
}

// InitializeConditions makes every condition that is not set Unknown.
func (cs *ConfigurationStatus) InitializeConditions() {
	configurationConditions().Manage(cs).InitializeConditions()
}

// SetLatestCreatedRevisionName records the Revision of the current template; a new one is not Ready yet.
func (cs *ConfigurationStatus) SetLatestCreatedRevisionName(name string) {
	cs.LatestCreatedRevisionName = name
	if cs.LatestReadyRevisionName != name {
		configurationConditions().Manage(cs).MarkUnknown(ConfigurationConditionReady, "", "")
	}
}

// SetLatestReadyRevisionName records the newest Ready Revision; with it the Configuration is Ready when it is the
// Revision of the current template.
func (cs *ConfigurationStatus) SetLatestReadyRevisionName(name string) {
	cs.LatestReadyRevisionName = name
	if cs.LatestReadyRevisionName == cs.LatestCreatedRevisionName {
		configurationConditions().Manage(cs).MarkTrue(ConfigurationConditionReady)
	}
}

// MarkRevisionCreationFailed says why no Revision of the current template could be made.
func (cs *ConfigurationStatus) MarkRevisionCreationFailed(message string) {
	configurationConditions().Manage(cs).MarkFalse(ConfigurationConditionReady, ReasonRevisionFailed,
		"Revision creation failed with message: %s.", message)
}

// MarkLatestCreatedFailed says why the Revision of the current template is not Ready.
func (cs *ConfigurationStatus) MarkLatestCreatedFailed(name, message string) {
	configurationConditions().Manage(cs).MarkFalse(ConfigurationConditionReady, ReasonRevisionFailed,
		"Revision %q failed with message: %s.", name, message)
}

// MarkLatestReadyDeleted says that the Revision that was Ready is gone.
func (cs *ConfigurationStatus) MarkLatestReadyDeleted() {
	configurationConditions().Manage(cs).MarkFalse(ConfigurationConditionReady, ReasonRevisionDeleted,
		"Revision %q was deleted.", cs.LatestReadyRevisionName)
}
