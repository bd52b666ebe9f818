package service

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// MakeConfiguration is the Configuration of a Service: same name, the Service's template, its labels and annotations but for
// those that concern only traffic or kubectl.
func MakeConfiguration(svc *servingv1.Service) *servingv1.Configuration {
	labels := cloned(svc.Labels)
	labels[names.ServiceLabel] = svc.Name
	labels[names.ServiceUIDLabel] = string(svc.UID)
	annotations := cloned(svc.Annotations, names.LastAppliedAnnotation, names.RolloutDurationAnnotation,
		names.RolloutDurationAnnotationAlt)
	// A new Configuration says from the start that its Route leads to it, so its first Revision is made as active: four writes
	// less until it is Ready. From then on this annotation is the labeler's.
	if slices.ContainsFunc(MakeRoute(svc).Spec.Traffic, func(t servingv1.TrafficTarget) bool { return t.ConfigurationName != "" }) {
		annotations[names.RoutesAnnotation] = svc.Name
	}
	return &servingv1.Configuration{
		ObjectMeta: metav1.ObjectMeta{
			Name: svc.Name, Namespace: svc.Namespace, Labels: labels,
			Annotations:     annotations,
			OwnerReferences: controlledBy(svc),
		},
		Spec: *svc.Spec.ConfigurationSpec.DeepCopy(),
	}
}

// MakeRoute is the Route of a Service: same name, the Service's traffic with "the latest" spelled out as the latest of its own
// Configuration. No traffic at all means everything to the latest.
func MakeRoute(svc *servingv1.Service) *servingv1.Route {
	labels := cloned(svc.Labels)
	labels[names.ServiceLabel] = svc.Name
	spec := *svc.Spec.RouteSpec.DeepCopy()
	if len(spec.Traffic) == 0 {
		all, latest := int64(100), true
		spec.Traffic = []servingv1.TrafficTarget{{Percent: &all, LatestRevision: &latest}}
	}
	for i := range spec.Traffic {
		if spec.Traffic[i].RevisionName == "" {
			spec.Traffic[i].ConfigurationName = svc.Name
		}
	}
	return &servingv1.Route{
		ObjectMeta: metav1.ObjectMeta{
			Name: svc.Name, Namespace: svc.Namespace, Labels: labels,
			Annotations:     cloned(svc.Annotations, names.LastAppliedAnnotation),
			OwnerReferences: controlledBy(svc),
			// The labeler's; given at birth it costs no write.
			Finalizers: []string{names.RouteFinalizer},
		},
		Spec: spec,
	}
}

func controlledBy(svc *servingv1.Service) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(svc, servingv1.SchemeGroupVersion.WithKind("Service"))}
}

// cloned copies a map, never nil, without some keys.
func cloned(m map[string]string, without ...string) map[string]string {
	out := make(map[string]string, len(m)+2)
	maps.Copy(out, m)
	for _, key := range without {
		delete(out, key)
	}
	return out
}
