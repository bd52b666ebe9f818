package revision

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
)

// MakePodAutoscaler returns the PodAutoscaler of a revision.
func MakePodAutoscaler(rev *servingv1.Revision, reach autoscalingv1alpha1.Reachability) *autoscalingv1alpha1.PodAutoscaler {
	pa := &autoscalingv1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{
			Name: names.PodAutoscaler(rev.Name), Namespace: rev.Namespace,
			Labels: childLabels(rev), Annotations: childAnnotations(rev),
			OwnerReferences: controlledBy(rev),
		},
		Spec: autoscalingv1alpha1.PodAutoscalerSpec{
			ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: names.Deployment(rev.Name)},
			Reachability:   reach,
			ProtocolType:   rev.Spec.Protocol(),
		},
	}
	if cc := rev.Spec.ContainerConcurrency; cc != nil {
		pa.Spec.ContainerConcurrency = *cc
	}
	return pa
}

// reachability returns whether min-scale counts.
//
//	routing state  could not start, and never has    reachability
//	reserve        -                                 Unreachable
//	any            yes                               Unreachable: min-scale must not restart broken pods forever
//	active         no                                Reachable
//	pending        no                                unknown
//
// A revision that was up once stays reachable when its pods fail, because they may recover.
func reachability(rev *servingv1.Revision, neverStarted bool) autoscalingv1alpha1.Reachability {
	state := names.RoutingState(rev.Labels[names.RoutingStateLabel])
	switch {
	case state == names.RoutingReserve || neverStarted:
		return autoscalingv1alpha1.ReachabilityUnreachable
	case state == names.RoutingActive:
		return autoscalingv1alpha1.ReachabilityReachable
	}
	return autoscalingv1alpha1.ReachabilityUnknown
}

// mergePodAutoscaler updates a PodAutoscaler. It has the Revision's autoscaling annotations and no
// others, so min-scale that is removed from a Revision is removed here. Class and metric are never
// removed, because an autoscaler of another class would not know the object any more. Nor is the
// mark that the revision had its initial pods.
func mergePodAutoscaler(have, want *autoscalingv1alpha1.PodAutoscaler) {
	annotations := apply.Keys(have.Annotations, want.Annotations)
	for _, key := range []string{names.ClassAnnotation, names.MetricAnnotation, names.InitializedAnnotation} {
		if value, had := have.Annotations[key]; had && annotations[key] == "" {
			annotations[key] = value
		}
	}
	have.Annotations = annotations
	have.Labels = apply.Keys(have.Labels, want.Labels)
	have.Spec = want.Spec
}
