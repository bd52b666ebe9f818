package reconcile

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/interned"
)

// kubernetesOwn is what the label managed-by of EndpointSlices says that Kubernetes makes of a
// selector.
const kubernetesOwn = "endpointslice-controller.k8s.io"

// Trim is the transform of every cache. It drops what no reconciler reads:
//
//	any kind                      managed fields, which are often half of an object
//	Deployment                    all but its state, and what tells of which input it was made
//	Pod                           all but its state
//	ConfigMap with waiting pages  binary data
//	Service of serving            the manifest that kubectl has applied last
//	PodAutoscaler                 how Ebb's autoscaler decided, and what it says of Ready
//	EndpointSlice of Kubernetes   annotations, owners, and the labels that nobody reads
//
// Otherwise the whole object is there: children are compared with what they are to be, and written.
func Trim(object any) (any, error) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return gone, nil
	}
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	switch o := object.(type) {
	case *corev1.Pod:
		o.Annotations = nil
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName}
		o.Status = corev1.PodStatus{
			Phase: o.Status.Phase, Conditions: o.Status.Conditions, PodIP: o.Status.PodIP,
			Reason: o.Status.Reason, Message: o.Status.Message, StartTime: o.Status.StartTime,
			ContainerStatuses: o.Status.ContainerStatuses, InitContainerStatuses: o.Status.InitContainerStatuses,
		}
	case *corev1.ConfigMap:
		if o.Labels[names.WaitingPageLabel] != "" {
			o.BinaryData = nil
		}
	case *appsv1.Deployment:
		trimDeployment(o)
	case *servingv1.Service: // a user's: only its status is written
		if o.Annotations[names.LastAppliedAnnotation] != "" { // one that is shared has none, and is not written
			delete(o.Annotations, names.LastAppliedAnnotation)
		}
	case *autoscalingv1alpha1.PodAutoscaler: // of the other class, the status is written
		if d := o.Status.Decision; d != nil && d.Rule != autoscalingv1alpha1.RuleHPA && o.Class("") != names.ClassHPA {
			o.Status.Decision = nil
			o.Status.Conditions = read(o.Status.Conditions)
		}
	case *discoveryv1.EndpointSlice:
		if o.Labels[discoveryv1.LabelManagedBy] == kubernetesOwn && o.Labels[names.ServerlessServiceLabel] != "" {
			o.Labels = only(o.Labels, discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, names.ServerlessServiceLabel, names.ServiceTypeLabel, names.RevisionLabel)
			o.Annotations, o.GenerateName, o.OwnerReferences = nil, "", nil
		}
	}
	if _, untyped := object.(*unstructured.Unstructured); !untyped {
		share(object)
	}
	return object, nil
}

// Lists that objects share: nearly all Services have one of a few lists of ports, children have one
// owner, and a Service, its Configuration and its Revision the same containers.
var (
	ports      interned.Lists[corev1.ServicePort]
	containers interned.Lists[corev1.Container]
	owners     interned.Lists[metav1.OwnerReference]
)

// share lets an object have its strings, maps and lists together with others.
func share(object any) {
	var restore []func()
	apart(&restore, &ports, portsOf(object))
	apart(&restore, &containers, containersOf(object))
	if m, ok := object.(metav1.ObjectMetaAccessor); ok {
		if meta, ok := m.GetObjectMeta().(*metav1.ObjectMeta); ok {
			apart(&restore, &owners, &meta.OwnerReferences)
		}
	}
	interned.Object(object)
	for _, one := range restore {
		one()
	}
}

// apart takes a list out of an object until restore, which puts the one in that others have:
// interned writes to what it gets, and others read that.
func apart[E any](restore *[]func(), all *interned.Lists[E], list *[]E) {
	if list != nil {
		shared := all.Same(*list)
		*list = nil
		*restore = append(*restore, func() { *list = shared })
	}
}

func portsOf(object any) *[]corev1.ServicePort {
	if o, ok := object.(*corev1.Service); ok {
		return &o.Spec.Ports
	}
	return nil
}

func containersOf(object any) *[]corev1.Container {
	switch o := object.(type) {
	case *servingv1.Service:
		return &o.Spec.Template.Spec.Containers
	case *servingv1.Configuration:
		return &o.Spec.Template.Spec.Containers
	case *servingv1.Revision:
		return &o.Spec.Containers
	}
	return nil
}

// read returns those conditions of a PodAutoscaler that are read.
func read(all duckv1.Conditions) (kept duckv1.Conditions) {
	for _, c := range all {
		switch c.Type {
		case autoscalingv1alpha1.PodAutoscalerConditionReady, autoscalingv1alpha1.PodAutoscalerConditionSKSReady:
		default:
			kept = append(kept, c)
		}
	}
	return slices.Clip(kept)
}

// trimDeployment leaves what the reconcilers of Revisions read. One that is to be written is read
// anew.
func trimDeployment(d *appsv1.Deployment) {
	d.Labels = only(d.Labels, names.RevisionUIDLabel, names.RevisionLabel, names.DeploymentHashLabel)
	d.Annotations = only(d.Annotations, names.RevisionHashAnnotation, names.PodKeyAnnotation, names.SystemTLSAnnotation)
	template := metav1.ObjectMeta{Annotations: only(d.Spec.Template.Annotations, names.PodKeyAnnotation)}
	d.Spec = appsv1.DeploymentSpec{Replicas: d.Spec.Replicas, ProgressDeadlineSeconds: d.Spec.ProgressDeadlineSeconds,
		Template: corev1.PodTemplateSpec{ObjectMeta: template}}
}

// only returns the entries of a map with these keys.
func only(m map[string]string, keys ...string) map[string]string {
	var out map[string]string
	for _, key := range keys {
		if value, there := m[key]; there {
			if out == nil {
				out = make(map[string]string, len(keys))
			}
			out[key] = value
		}
	}
	return out
}
