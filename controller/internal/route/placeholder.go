package route

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/kmeta"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
)

// placeholder is the Service that gives a target its name inside the cluster: an alias of the local gateway.
func placeholder(route *servingv1.Route, name, gatewayHost string) *corev1.Service {
	l := maps.Clone(route.Labels)
	if l == nil {
		l = map[string]string{}
	}
	delete(l, names.VisibilityLabel) // of a placeholder it concerns that target alone, and is the user's to set
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

// inherited leaves out of a parent's annotations what must not travel.
func inherited(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	delete(out, names.LastAppliedAnnotation)
	return out
}

// localTags lists the tags whose placeholder the user has labelled cluster-local.
func (r *reconciler) localTags(route *servingv1.Route, byName map[string]string) (map[string]bool, error) {
	local := map[string]bool{}
	for name, tag := range byName {
		service, err := r.services.Services(route.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		if service.Labels[names.VisibilityLabel] == names.VisibilityClusterLocal {
			local[tag] = true
		}
	}
	return local, nil
}

// placeholders makes the placeholder Services of the targets and removes those of targets that are no more.
func (r *reconciler) placeholders(ctx context.Context, route *servingv1.Route, byName map[string]string, gatewayHost string) error {
	api := r.kube.CoreV1().Services(route.Namespace)
	for name := range byName {
		have, err := r.services.Services(route.Namespace).Get(name)
		found := err == nil
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if found && have.Spec.Type != corev1.ServiceTypeExternalName && metav1.IsControlledBy(have, route) {
			// A cluster address cannot be taken away by an update.
			if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("replace placeholder Service %s/%s: %w", route.Namespace, name, err)
			}
			found = false
		}
		_, _, err = apply.Child(ctx, api, "Service", route, have, found, placeholder(route, name, gatewayHost),
			func(have, want *corev1.Service) {
				if v, ok := have.Labels[names.VisibilityLabel]; ok {
					want.Labels[names.VisibilityLabel] = v
				}
				apply.Metadata(have, want)
				have.Spec.ExternalName, have.Spec.Ports = want.Spec.ExternalName, want.Spec.Ports
			})
		if err != nil {
			return err
		}
	}
	mine, err := r.services.Services(route.Namespace).List(labels.SelectorFromSet(labels.Set{names.RouteLabel: route.Name}))
	if err != nil {
		return err
	}
	for _, service := range mine {
		if _, wanted := byName[service.Name]; wanted || !metav1.IsControlledBy(service, route) {
			continue
		}
		if err := api.Delete(ctx, service.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete placeholder Service %s/%s: %w", route.Namespace, service.Name, err)
		}
	}
	return nil
}
