package route

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/kmeta"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
)

// placeholder returns the Service that gives a target its name inside the cluster. It is an alias
// of the local gateway.
func placeholder(route *servingv1.Route, name, gatewayHost string) *corev1.Service {
	l := map[string]string{}
	maps.Copy(l, route.Labels)
	delete(l, names.VisibilityLabel) // on a placeholder, the user sets it for that target alone
	l[names.RouteLabel] = route.Name
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: route.Namespace, Labels: l, Annotations: inherited(route.Annotations),
			OwnerReferences: []metav1.OwnerReference{*kmeta.NewControllerRef(route)},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: gatewayHost, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http2", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(80),
				AppProtocol: ptr.To("kubernetes.io/h2c")}},
		},
	}
}

// inherited returns the annotations that children have too. It is never nil.
func inherited(annotations map[string]string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, annotations)
	for _, key := range append(names.AsyncAnnotations, names.LastAppliedAnnotation) {
		delete(out, key)
	}
	return out
}

// localTags lists the tags with a placeholder that the user has labeled cluster-local.
func (r *reconciler) localTags(route *servingv1.Route, byName map[string]string) (map[string]bool, error) {
	local := map[string]bool{}
	for name, tag := range byName {
		service, found, err := apply.Found(r.services.Services(route.Namespace).Get(name))
		if err != nil {
			return nil, err
		}
		if found && service.Labels[names.VisibilityLabel] == names.VisibilityClusterLocal {
			local[tag] = true
		}
	}
	return local, nil
}

// placeholders makes the placeholder Services of the targets exist, and deletes those of former
// targets. Those that are there lead to another gateway only if move is set: it must follow first.
func (r *reconciler) placeholders(ctx context.Context, route *servingv1.Route, byName map[string]string, gatewayHost string, move bool) error {
	api := r.kube.CoreV1().Services(route.Namespace)
	wanted := map[string]bool{}
	for name := range byName {
		wanted[name] = true
		have, found, err := apply.Found(r.services.Services(route.Namespace).Get(name))
		if err != nil {
			return err
		}
		if found && have.Spec.Type != corev1.ServiceTypeExternalName && metav1.IsControlledBy(have, route) {
			// An update cannot remove a cluster address.
			if err := apply.Delete(ctx, api, "Service", have, metav1.DeleteOptions{}); err != nil {
				return err
			}
			found = false
		}
		_, _, err = apply.Child(ctx, api, "Service", route, have, found, placeholder(route, name, gatewayHost),
			func(have, want *corev1.Service) {
				if v, ok := have.Labels[names.VisibilityLabel]; ok {
					want.Labels[names.VisibilityLabel] = v
				}
				apply.Metadata(have, want)
				have.Spec.Ports = want.Spec.Ports
				if move || have.Spec.ExternalName == "" {
					have.Spec.ExternalName = want.Spec.ExternalName
				}
			})
		if err != nil {
			return err
		}
	}
	return apply.Prune(ctx, api, "Service", route, r.ownPlaceholders.Of(route.Namespace, route.Name), wanted)
}
