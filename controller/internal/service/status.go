package service

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// rollUpConfiguration copies what a Service shows of its Configuration.
//
//	Configuration                     ConfigurationsReady
//	spec newer than its status        Unknown OutOfDate
//	Ready                             True
//	not Ready                         False, reason and message of the Configuration
//	else                              Unknown, reason and message of the Configuration
func rollUpConfiguration(svc *servingv1.Service, config *servingv1.Configuration) {
	manager := svc.GetConditionSet().Manage(&svc.Status)
	if config.Generation != config.Status.ObservedGeneration {
		manager.MarkUnknown(servingv1.ServiceConditionConfigurationsReady, servingv1.ReasonOutOfDate,
			"The Configuration is still working to reflect the latest desired specification.")
		return
	}
	svc.Status.ConfigurationStatusFields = config.Status.ConfigurationStatusFields
	copyCondition(manager, servingv1.ServiceConditionConfigurationsReady, readyOf(config.Status.Conditions))
}

// rollUpRoute copies what a Service shows of its Route, by the same rule. In addition, the Service
// is not Ready while a Ready Route does not send its traffic to the right revisions yet.
func rollUpRoute(svc *servingv1.Service, route *servingv1.Route) {
	manager := svc.GetConditionSet().Manage(&svc.Status)
	if route.Generation != route.Status.ObservedGeneration {
		manager.MarkUnknown(servingv1.ServiceConditionRoutesReady, servingv1.ReasonOutOfDate,
			"The Route is still working to reflect the latest desired specification.")
		return
	}
	svc.Status.RouteStatusFields = *route.Status.RouteStatusFields.DeepCopy()
	ready := readyOf(route.Status.Conditions)
	if ready != nil && ready.IsTrue() && !migrated(route, svc.Status.LatestReadyRevisionName) {
		manager.MarkUnknown(servingv1.ServiceConditionRoutesReady, servingv1.ReasonTrafficNotMigrated,
			"Traffic is not yet migrated to the latest revision.")
		return
	}
	copyCondition(manager, servingv1.ServiceConditionRoutesReady, ready)
}

// migrated reports whether the traffic in a Route's status is what its spec asks for, with the
// latest ready revision as "the latest".
func migrated(route *servingv1.Route, latestReady string) bool {
	want := plain(route.Spec.Traffic, latestReady)
	have := plain(route.Status.Traffic, latestReady)
	return equality.Semantic.DeepEqual(want, have)
}

func plain(targets []servingv1.TrafficTarget, latestReady string) []servingv1.TrafficTarget {
	out := make([]servingv1.TrafficTarget, 0, len(targets))
	for _, t := range targets {
		if t.ConfigurationName != "" {
			t.ConfigurationName, t.RevisionName = "", latestReady
		}
		t.URL, t.LatestRevision = nil, nil
		if t.Percent == nil {
			t.Percent = new(int64)
		}
		out = append(out, t)
	}
	return out
}

// tellCause makes Ready show the failure of the Configuration if the Route is not Ready only
// because of it. "The image cannot be pulled" is the cause and "there is no revision" its
// consequence, and people look at Ready first.
//
//	ConfigurationsReady  RoutesReady              Ready
//	False                not True, RevisionMissing as ConfigurationsReady
//	any other            any                      unchanged: the condition that changed last
func tellCause(svc *servingv1.Service) {
	manager := svc.GetConditionSet().Manage(&svc.Status)
	cause := manager.GetCondition(servingv1.ServiceConditionConfigurationsReady)
	routes := manager.GetCondition(servingv1.ServiceConditionRoutesReady)
	if !cause.IsFalse() || routes.IsTrue() || routes.GetReason() != servingv1.ReasonRevisionMissing {
		return
	}
	manager.SetCondition(apis.Condition{Type: servingv1.ServiceConditionReady, Status: cause.Status, Reason: cause.Reason, Message: cause.Message})
}

func readyOf(conditions duckv1.Conditions) *apis.Condition {
	for i := range conditions {
		if conditions[i].Type == apis.ConditionReady {
			return &conditions[i]
		}
	}
	return nil
}

func copyCondition(manager apis.ConditionManager, to apis.ConditionType, from *apis.Condition) {
	switch {
	case from == nil:
		manager.MarkUnknown(to, "", "")
	case from.IsTrue():
		manager.MarkTrue(to)
	case from.IsFalse():
		manager.MarkFalse(to, from.Reason, "%s", from.Message)
	default:
		manager.MarkUnknown(to, from.Reason, "%s", from.Message)
	}
}
