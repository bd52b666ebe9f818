package fleet

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// objects are the Service and its Revisions, as the controller leaves them.
func (s *service) objects(t time.Time) []any {
	svc := &servingv1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name, Generation: 1, CreationTimestamp: metav1.NewTime(t.Add(-72 * time.Hour))}}
	svc.Spec.Template.Spec.Containers = []corev1.Container{{Image: "registry.example/" + s.key()}}
	svc.Status.URL = &apis.URL{Scheme: "http", Host: s.name + "." + s.namespace + ".example.com"}
	changed := apis.VolatileTime{Inner: metav1.NewTime(t.Add(-40 * time.Minute))}
	is := func(kind apis.ConditionType, reason, message string) apis.Condition {
		c := apis.Condition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: changed}
		if reason != "" {
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, message
		}
		return c
	}
	objects := []any{svc}
	if s.kind == broken || s.kind == never {
		message := fmt.Sprintf("Revision %q failed with message: the image \"registry.example/%s\" could not be pulled: manifest unknown.", s.name+"-00001", s.key())
		svc.Status.Conditions = append(svc.Status.Conditions, is(servingv1.ServiceConditionConfigurationsReady, "RevisionFailed", message),
			is(apis.ConditionReady, "RevisionFailed", message), is(servingv1.ServiceConditionRoutesReady, "RevisionMissing", "Configuration \""+s.name+"\" does not have any ready Revision."))
		svc.Status.LatestCreatedRevisionName = s.name + "-00001"
	} else {
		svc.Status.LatestReadyRevisionName = s.name + "-00001"
		svc.Status.Conditions = append(svc.Status.Conditions, is(servingv1.ServiceConditionConfigurationsReady, "", ""), is(apis.ConditionReady, "", ""),
			is(servingv1.ServiceConditionRoutesReady, "", ""))
		for name, share := range s.revisions() {
			target := servingv1.TrafficTarget{RevisionName: name, Percent: ptr.To(int64(share * 100)), LatestRevision: ptr.To(false)}
			if share < 0.5 {
				target.Tag = "next"
			}
			svc.Status.Traffic = append(svc.Status.Traffic, target)
		}
	}
	for name := range s.revisions() {
		r := &servingv1.Revision{TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Revision"},
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, CreationTimestamp: svc.CreationTimestamp, Labels: map[string]string{names.ServiceLabel: s.name}}}
		r.Spec.Containers = svc.Spec.Template.Spec.Containers
		switch s.kind {
		case broken, never:
			r.Status.Conditions = append(r.Status.Conditions, is(servingv1.RevisionConditionContainerHealthy, "ImagePullFailed", "the image \"registry.example/"+s.key()+"\" could not be pulled: manifest unknown."))
		default:
			r.Status.Conditions = append(r.Status.Conditions, is(apis.ConditionReady, "", ""))
		}
		objects = append(objects, r)
	}
	return objects
}

// events answers with the changes of a PodAutoscaler, of those that want to read them.
func (f *Fleet) events(w http.ResponseWriter, r *http.Request, namespace string) {
	selector := fields.ParseSelectorOrDie(r.URL.Query().Get("fieldSelector"))
	list := corev1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}, Items: []corev1.Event{}}
	for _, s := range f.services {
		for name := range s.revisions() {
			if s.namespace != namespace || !selector.Matches(fields.Set{"involvedObject.kind": "PodAutoscaler", "involvedObject.name": name}) {
				continue
			}
			runs := s.history(time.Now())
			for i, d := range slices.Backward(runs) {
				if i == 0 || runs[i-1].Want == d.Want {
					continue
				}
				reason := "ScaledUp"
				if d.Want < runs[i-1].Want {
					reason = "ScaledDown"
				}
				list.Items = append(list.Items, corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%d", name, i), UID: types.UID(fmt.Sprint(name, i))},
					InvolvedObject: corev1.ObjectReference{Kind: "PodAutoscaler", Name: name, Namespace: namespace}, Reason: reason, Type: "Normal",
					Message: fmt.Sprintf("from %d to %d pods: %s", runs[i-1].Want, d.Want, d.Reason), LastTimestamp: metav1.NewTime(d.First)})
			}
		}
	}
	write(w, list)
}

// system are Ebb's components and the nodes.
func system() (objects []any) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: names.SystemNamespace, Name: name, Labels: map[string]string{"app.kubernetes.io/version": "v0.1.0"}}
	}
	template := func(name, cpu, asked, most string, env ...corev1.EnvVar) corev1.PodTemplateSpec {
		c := corev1.Container{Name: name, Image: "registry.example/ebb/" + name + ":v0.1.0", Env: env}
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(asked)}
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(most)}
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
	}
	for i, name := range []string{"activator", "autoscaler", "controller", "webhook"} {
		d := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta(name)}
		d.Spec.Replicas = ptr.To(int32(2))
		d.Spec.Template = template(name, []string{"100m", "50m", "50m", "20m"}[i], []string{"60Mi", "64Mi", "64Mi", "32Mi"}[i], []string{"800Mi", "1000Mi", "1000Mi", "200Mi"}[i])
		if name == "activator" {
			d.Spec.Template = template(name, "100m", "60Mi", "800Mi", corev1.EnvVar{Name: "EBB_HOLD_REQUESTS", Value: "10000"}, corev1.EnvVar{Name: "EBB_HOLD_BYTES", Value: "419430400"})
		}
		d.Status.AvailableReplicas = 2
		if name == "webhook" {
			d.Status.AvailableReplicas = 1
		}
		objects = append(objects, d)
	}
	agent := &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: meta("node-agent")}
	agent.Spec.Template = template("node-agent", "5m", "16Mi", "64Mi")
	agent.Status.NumberAvailable, agent.Status.DesiredNumberScheduled = 3, 3
	objects = append(objects, agent)
	for i := range 3 {
		n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("worker-%c", 'a'+i)}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi")}
		if i < 2 {
			n.Status.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: ptr.To(int64(8 << 30))}
		}
		n.Spec.Unschedulable = i == 2
		objects = append(objects, n)
	}
	return objects
}

// Broken names the Service that cannot start, of which nobody tells a load.
const Broken = "checkout"

// Names are those of all Services, as namespace/name, in order.
func (f *Fleet) Names() (all []string) {
	for _, s := range f.services {
		all = append(all, strings.Join([]string{s.namespace, s.name}, "/"))
	}
	return all
}
