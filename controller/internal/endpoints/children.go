package endpoints

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/kmeta"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/wire"
)

// ManagedBy is a label's value: with it, Kubernetes' own controllers leave an EndpointSlice alone.
const ManagedBy = "ebb-controller"

const (
	managedBy      = ManagedBy
	appProtocolH2C = "kubernetes.io/h2c"
)

func isH2C(pa *autoscalingv1alpha1.PodAutoscaler) bool {
	return pa.Spec.ProtocolType == autoscalingv1alpha1.ProtocolH2C
}

func portName(pa *autoscalingv1alpha1.PodAutoscaler) string {
	if isH2C(pa) {
		return "http2"
	}
	return "http"
}

func owner(pa *autoscalingv1alpha1.PodAutoscaler) []metav1.OwnerReference {
	return []metav1.OwnerReference{*kmeta.NewControllerRef(pa)}
}

func childLabels(pa *autoscalingv1alpha1.PodAutoscaler, kind string) map[string]string {
	labels := make(map[string]string, len(pa.Labels)+3)
	maps.Copy(labels, pa.Labels)
	labels[names.ServerlessServiceLabel] = pa.Name
	labels[names.ServiceTypeLabel] = kind
	return labels
}

// sliceName returns the name of the i-th EndpointSlice of an address type. The first IPv4 one has
// the revision's name.
func sliceName(revision string, kind discoveryv1.AddressType, i int) string {
	suffix := ""
	if kind == discoveryv1.AddressTypeIPv6 {
		suffix = "-ipv6"
	}
	if i > 0 {
		suffix += fmt.Sprintf("-endpoints-%d", i+1)
	}
	if suffix == "" {
		return revision
	}
	return names.Child(revision, suffix)
}

func servicePort(name string, port, target int32, app *string) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(target), AppProtocol: app}
}

// publicService returns the Service that gateways and clients use. It has no selector; its
// EndpointSlices are written here.
func publicService(pa *autoscalingv1alpha1.PodAutoscaler) *corev1.Service {
	first := servicePort("http", 80, wire.PortHTTP1, nil)
	if isH2C(pa) {
		first = servicePort("http2", 81, wire.PortH2C, ptr.To(appProtocolH2C))
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: names.PublicService(pa.Name), Namespace: pa.Namespace, Labels: childLabels(pa, names.ServiceTypePublic),
			Annotations: maps.Clone(pa.Annotations), OwnerReferences: owner(pa),
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{first, servicePort("https", 443, wire.PortTLS, nil)}},
	}
}

// privateService returns the Service whose EndpointSlices, which Kubernetes writes, list the
// revision's pods. It is headless: nobody needs its address, which would cost rules on every node.
func privateService(pa *autoscalingv1alpha1.PodAutoscaler) *corev1.Service {
	target, literal, app := int32(wire.PortHTTP1), "http-istio", (*string)(nil)
	if isH2C(pa) {
		target, literal, app = wire.PortH2C, "http2-istio", ptr.To(appProtocolH2C)
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: names.PrivateService(pa.Name), Namespace: pa.Namespace, Labels: childLabels(pa, names.ServiceTypePrivate),
			Annotations: maps.Clone(pa.Annotations), OwnerReferences: owner(pa),
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone,
			Selector:  map[string]string{names.RevisionUIDLabel: pa.Labels[names.RevisionUIDLabel]},
			Ports: []corev1.ServicePort{
				servicePort(portName(pa), 80, target, app),
				servicePort("https", 443, wire.PortTLS, nil),
				servicePort("http-autometric", wire.PortMetrics, wire.PortMetrics, nil),
				servicePort("http-usermetric", wire.PortUserMetrics, wire.PortUserMetrics, nil),
				servicePort(literal, target, target, app),
			},
		},
	}
}
