package v1

import (
	corev1 "k8s.io/api/core/v1"
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

// IsReady tells whether the current generation was reconciled and is Ready.
func (s *Service) IsReady() bool {
	return s.Status.ObservedGeneration == s.Generation && s.Status.GetCondition(ServiceConditionReady).IsTrue()
}

// IsFailed tells whether the current generation was reconciled and is not Ready for good.
func (s *Service) IsFailed() bool {
	return s.Status.ObservedGeneration == s.Generation && s.Status.GetCondition(ServiceConditionReady).IsFalse()
}

// InitializeConditions makes every condition that is not set Unknown.
func (ss *ServiceStatus) InitializeConditions() {
	serviceConditions().Manage(ss).InitializeConditions()
}

// MarkConfigurationNotOwned says that a Configuration of the Service's name belongs to somebody else.
func (ss *ServiceStatus) MarkConfigurationNotOwned(name string) {
	serviceConditions().Manage(ss).MarkFalse(ServiceConditionConfigurationsReady, ReasonNotOwned,
		"There is an existing Configuration %q that we do not own.", name)
}

// MarkRouteNotOwned says that a Route of the Service's name belongs to somebody else.
func (ss *ServiceStatus) MarkRouteNotOwned(name string) {
	serviceConditions().Manage(ss).MarkFalse(ServiceConditionRoutesReady, ReasonNotOwned,
		"There is an existing Route %q that we do not own.", name)
}

// MarkConfigurationNotReconciled says that the Configuration's status is not of its current generation.
func (ss *ServiceStatus) MarkConfigurationNotReconciled() {
	serviceConditions().Manage(ss).MarkUnknown(ServiceConditionConfigurationsReady, ReasonOutOfDate,
		"The Configuration is still working to reflect the latest desired specification.")
}

// MarkRouteNotReconciled says that the Route's status is not of its current generation.
func (ss *ServiceStatus) MarkRouteNotReconciled() {
	serviceConditions().Manage(ss).MarkUnknown(ServiceConditionRoutesReady, ReasonOutOfDate,
		"The Route is still working to reflect the latest desired specification.")
}

// MarkRevisionNameTaken says that the Revision name the template asks for is in use for something else.
func (ss *ServiceStatus) MarkRevisionNameTaken(name string) {
	serviceConditions().Manage(ss).MarkFalse(ServiceConditionRoutesReady, ReasonRevisionNameTaken,
		"The revision name %q is taken by a conflicting Revision, so traffic will not be migrated", name)
}

// MarkTrafficNotMigrated says that the Route does not yet lead to the latest ready Revision.
func (ss *ServiceStatus) MarkTrafficNotMigrated() {
	serviceConditions().Manage(ss).MarkUnknown(ServiceConditionRoutesReady, ReasonTrafficNotMigrated,
		"Traffic is not yet migrated to the latest revision.")
}

// PropagateConfigurationStatus takes over what the Service shows of its Configuration.
func (ss *ServiceStatus) PropagateConfigurationStatus(cs *ConfigurationStatus) {
	ss.ConfigurationStatusFields = cs.ConfigurationStatusFields
	mirror(serviceConditions().Manage(ss), ServiceConditionConfigurationsReady, cs.GetCondition(ConfigurationConditionReady))
}

// PropagateRouteStatus takes over what the Service shows of its Route.
func (ss *ServiceStatus) PropagateRouteStatus(rs *RouteStatus) {
	ss.RouteStatusFields = *rs.RouteStatusFields.DeepCopy()
	mirror(serviceConditions().Manage(ss), ServiceConditionRoutesReady, rs.GetCondition(RouteConditionReady))
}

// mirror makes condition t read like source, another object's condition; nothing known yet changes nothing.
func mirror(manager apis.ConditionManager, t apis.ConditionType, source *apis.Condition) {
	if source == nil {
		return
	}
	switch source.Status {
	case corev1.ConditionTrue:
		// The reason of a True condition is kept: it says for example that TLS is not enabled.
		manager.MarkTrueWithReason(t, source.Reason, "%s", source.Message)
	case corev1.ConditionFalse:
		manager.MarkFalse(t, source.Reason, "%s", source.Message)
	default:
		manager.MarkUnknown(t, source.Reason, "%s", source.Message)
	}
}
