package service

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// MakeConfiguration returns the Configuration of a Service. It has the Service's name, template,
// labels, and annotations except those about traffic and kubectl's.
func MakeConfiguration(svc *servingv1.Service) *servingv1.Configuration {
	labels := cloned(svc.Labels)
	labels[names.ServiceLabel] = svc.Name
	labels[names.ServiceUIDLabel] = string(svc.UID)
	annotations := cloned(svc.Annotations, append(names.AsyncAnnotations, names.LastAppliedAnnotation, names.RolloutDurationAnnotation,
		names.RolloutDurationAnnotationAlt, names.RolloutGuardAnnotation, names.RolloutStepsAnnotation, names.RolloutOverruleAnnotation)...)
	// A new Configuration starts with the annotation that its Route leads to it, so its first
	// Revision starts as active. That saves four writes. Later the labeler sets this annotation.
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

// MakeRoute returns the Route of a Service. It has the Service's name and traffic, where "the
// latest" becomes the latest of its own Configuration. Without any traffic, all requests go to the
// latest.
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
			Annotations:     cloned(svc.Annotations, append(names.LiveAnnotations, names.LastAppliedAnnotation)...),
			OwnerReferences: controlledBy(svc),
			// The labeler needs it. Set here, it costs no write.
			Finalizers: []string{names.RouteFinalizer},
		},
		Spec: spec,
	}
}

func controlledBy(svc *servingv1.Service) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(svc, servingv1.SchemeGroupVersion.WithKind("Service"))}
}

// cloned returns a copy of a map without some keys. It is never nil.
func cloned(m map[string]string, without ...string) map[string]string {
	out := make(map[string]string, len(m)+2)
	maps.Copy(out, m)
	for _, key := range without {
		delete(out, key)
	}
	return out
}
