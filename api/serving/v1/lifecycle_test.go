package v1

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/conditions"
)

func conditionText(c *apis.Condition) string {
	if c == nil {
		return "none"
	}
	return string(c.Status) + " " + c.Reason
}

func deployment(progressing corev1.ConditionStatus, reason string, failed bool) *appsv1.DeploymentStatus {
	ds := &appsv1.DeploymentStatus{}
	if progressing != "" {
		ds.Conditions = append(ds.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: progressing, Reason: reason})
	}
	if failed {
		ds.Conditions = append(ds.Conditions, appsv1.DeploymentCondition{
			Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota",
		})
	}
	return ds
}

// The two tables above PropagateDeploymentStatus and PropagateAutoscalerStatus, row by row.
func TestRevisionFollowsDeploymentAndAutoscaler(t *testing.T) {
	type pa = autoscalingv1alpha1.PodAutoscalerStatus
	initialized := func(s *pa) { s.ServiceName = "r"; s.MarkScaleTargetInitialized() }
	for _, test := range []struct {
		name                     string
		deployment               *appsv1.DeploymentStatus
		autoscaler               func(*pa)
		resources, healthy, want string
	}{
		{"all is well", deployment("True", "", false), func(s *pa) { initialized(s); s.MarkActive() }, "True ", "True ", "True "},
		{"scaled to zero is well", deployment("True", "", false), func(s *pa) { initialized(s); s.MarkInactive("NoTraffic", "") }, "True ", "True ", "True "},
		{"pods are awaited", deployment("True", "", false), func(s *pa) { s.MarkActivating("Queued", "") }, "Unknown Deploying", "Unknown ", "Unknown Deploying"},
		{"nothing is known", deployment("", "", false), func(*pa) {}, "Unknown Deploying", "Unknown ", "Unknown Deploying"},
		{"the initial scale was never reached", deployment("True", "", false), func(s *pa) { s.MarkInactive("TimedOut", "") },
			"False ProgressDeadlineExceeded", "Unknown ", "False ProgressDeadlineExceeded"},
		{"the deadline passed", deployment("False", "ProgressDeadlineExceeded", false), func(s *pa) { s.MarkActivating("Queued", "") },
			"False ProgressDeadlineExceeded", "Unknown ", "False ProgressDeadlineExceeded"},
		{"the quota is used up", deployment("True", "", true), func(s *pa) { s.MarkActivating("Queued", "") },
			"False FailedCreate", "Unknown ", "False FailedCreate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var rs RevisionStatus
			rs.InitializeConditions()
			var ps pa
			ps.InitializeConditions()
			test.autoscaler(&ps)
			rs.PropagateDeploymentStatus(test.deployment)
			rs.PropagateAutoscalerStatus(&ps)
			for _, c := range []struct {
				t    apis.ConditionType
				want string
			}{{RevisionConditionResourcesAvailable, test.resources}, {RevisionConditionContainerHealthy, test.healthy}, {RevisionConditionReady, test.want}} {
				if got := conditionText(rs.GetCondition(c.t)); got != c.want {
					t.Errorf("%s is %q, want %q", c.t, got, c.want)
				}
			}
			if active := rs.GetCondition(RevisionConditionActive); active.Severity != apis.ConditionSeverityInfo && !active.IsTrue() {
				t.Errorf("Active has severity %q", active.Severity)
			}
		})
	}
}

func TestReplicasAppearTogether(t *testing.T) {
	var rs RevisionStatus
	one, zero := int32(1), int32(0)
	rs.PropagateAutoscalerStatus(&autoscalingv1alpha1.PodAutoscalerStatus{DesiredScale: &one})
	if rs.ActualReplicas != nil || rs.DesiredReplicas != nil {
		t.Error("half of the figures is shown")
	}
	rs.PropagateAutoscalerStatus(&autoscalingv1alpha1.PodAutoscalerStatus{DesiredScale: &one, ActualScale: &zero})
	if *rs.ActualReplicas != 0 || *rs.DesiredReplicas != 1 {
		t.Errorf("got %d of %d", *rs.ActualReplicas, *rs.DesiredReplicas)
	}
}

func TestServiceRollsUp(t *testing.T) {
	var s Service
	s.Status.InitializeConditions()
	configuration, route := &ConfigurationStatus{}, &RouteStatus{}
	configuration.InitializeConditions()
	configuration.SetLatestCreatedRevisionName("a")
	configuration.SetLatestReadyRevisionName("a")
	route.InitializeConditions()
	route.MarkTrafficAssigned()
	route.MarkIngressReady()
	s.Status.PropagateConfigurationStatus(configuration)
	s.Status.PropagateRouteStatus(route)
	if got := conditionText(s.Status.GetCondition(ServiceConditionReady)); got != "Unknown " {
		t.Errorf("with a certificate unknown it is %q", got)
	}
	route.MarkTLSNotEnabled(ExternalTLSNotEnabledMessage)
	s.Status.PropagateRouteStatus(route)
	if !s.Status.GetCondition(ServiceConditionReady).IsTrue() {
		t.Errorf("it is %v", s.Status.GetCondition(ServiceConditionReady))
	}
	configuration.MarkLatestCreatedFailed("b", "no such image")
	s.Status.PropagateConfigurationStatus(configuration)
	ready := s.Status.GetCondition(ServiceConditionReady)
	if ready.Reason != ReasonRevisionFailed || ready.Message != `Revision "b" failed with message: no such image.` {
		t.Errorf("it is %v", ready)
	}
	for i := 1; i < len(s.Status.Conditions); i++ {
		if s.Status.Conditions[i-1].Type > s.Status.Conditions[i].Type {
			t.Errorf("conditions are out of order: %v", s.Status.Conditions)
		}
	}
}

func TestANewGenerationIsUnknownUntilReconciled(t *testing.T) {
	var s Service
	s.Generation, s.Status.ObservedGeneration = 2, 1
	s.Status.InitializeConditions()
	s.Status.MarkRouteNotOwned("x")
	conditions.BeginGeneration(&s)
	if got := conditionText(s.Status.GetCondition(ServiceConditionReady)); got != "Unknown NewObservedGenFailure" {
		t.Errorf("got %q", got)
	}
	s.Status.ObservedGeneration = 2
	s.Status.MarkRouteNotOwned("x")
	before := s.Status.DeepCopy()
	conditions.BeginGeneration(&s)
	if got := conditionText(s.Status.GetCondition(ServiceConditionReady)); got != "False NotOwned" {
		t.Errorf("got %q", got)
	}
	s.Status.MarkTrafficNotMigrated()
	s.Status.MarkRouteNotOwned("x")
	conditions.KeepTransitionTimes(&before.Status, &s.Status.Status)
	for _, c := range before.Conditions {
		if now := s.Status.GetCondition(c.Type); !now.LastTransitionTime.Inner.Equal(&c.LastTransitionTime.Inner) {
			t.Errorf("%s seems to have changed", c.Type)
		}
	}
}
