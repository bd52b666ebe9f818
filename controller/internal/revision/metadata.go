package revision

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// childLabels returns the labels of a Revision's children. They do not have the labels about
// routing, because a change of routing must not change a pod.
func childLabels(rev *servingv1.Revision) map[string]string {
	labels := make(map[string]string, len(rev.Labels)+3)
	maps.Copy(labels, rev.Labels)
	delete(labels, names.RoutingStateLabel)
	delete(labels, names.RouteLabel)
	labels[names.RevisionLabel] = rev.Name
	labels[names.RevisionUIDLabel] = string(rev.UID)
	if labels[names.AppLabel] == "" {
		labels[names.AppLabel] = rev.Name
	}
	return labels
}

// childAnnotations returns the annotations of the PodAutoscaler: the Revision's, without those
// about routing and those that only activators read, which may be long.
func childAnnotations(rev *servingv1.Revision) map[string]string {
	annotations := make(map[string]string, len(rev.Annotations))
	maps.Copy(annotations, rev.Annotations)
	for _, key := range []string{names.LastPinnedAnnotation, names.NoGCAnnotation, names.RoutingStateModifiedAnnotation,
		names.RoutesAnnotation, names.ParkedAnnotation, names.WentBackAnnotation, names.NeededByAnnotation} {
		delete(annotations, key)
	}
	maps.DeleteFunc(annotations, func(key, _ string) bool { return names.IsCold(key) })
	return annotations
}

// podAnnotations returns the annotations of Deployment and pods, without those about autoscaling: a
// change of min-scale restarts no pod.
func podAnnotations(rev *servingv1.Revision) map[string]string {
	annotations := childAnnotations(rev)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return names.IsAutoscaling(key) })
	return annotations
}

func controlledBy(rev *servingv1.Revision) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(rev, servingv1.SchemeGroupVersion.WithKind("Revision"))}
}

func deploymentSelector(rev *servingv1.Revision) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{names.RevisionUIDLabel: string(rev.UID)}}
}

// atZero reports whether a Deployment has no pods and wants none.
func atZero(d *appsv1.Deployment) bool {
	return d.Spec.Replicas != nil && *d.Spec.Replicas == 0 && d.Status.Replicas == 0
}
