package process

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
)

// run plays the autoscaler, the Deployment controller, the garbage collector and the kubelet for a
// step.
func (g *ground) run() {
	g.collect()
	g.issue()
	g.accept()
	for _, pa := range all[autoscalingv1alpha1.PodAutoscaler](g, autoscalers) {
		d := get[appsv1.Deployment](g, deployments, names.Deployment(pa.Name))
		class := pa.Annotations[names.ClassAnnotation]
		if d == nil && g.putsAway && class != names.ClassHPA && pa.DeletionTimestamp.IsZero() {
			g.decide(pa, g.wants(pa), 0) // whoever makes it is told the scale
		}
		if d == nil || !pa.DeletionTimestamp.IsZero() || !d.DeletionTimestamp.IsZero() {
			continue
		}
		want := g.wants(pa)
		if class == names.ClassHPA {
			want = ptr.Deref(d.Spec.Replicas, 1)
		}
		up := g.podsFor(pa.Name, d, want)
		g.deployment(d, want, up)
		if class != names.ClassHPA {
			g.decide(pa, want, up)
		}
	}
}

// collect plays the garbage collector: what an object owned goes after it, also what was made for
// it since.
func (g *ground) collect() {
	var owned []*metav1.PartialObjectMetadata
	resources := map[types.UID]schema.GroupResource{}
	for _, resource := range []schema.GroupResource{services, configurations, routesResource, revisions, autoscalers, domainMappings,
		deployments, hpas, httpRoutes, coreServices, endpointSlices, certificates, listenerSets} {
		for _, object := range all[metav1.PartialObjectMetadata](g, resource) {
			resources[object.UID] = resource
			owned = append(owned, object)
		}
	}
	for _, object := range owned {
		owner := metav1.GetControllerOfNoCopy(object)
		if owner != nil && resources[owner.UID].Resource == "" {
			g.store.Remove(resources[object.UID], "ns", object.Name)
		}
	}
}

func upOnce(pa *autoscalingv1alpha1.PodAutoscaler) bool {
	return pa.Status.IsScaleTargetInitialized() || pa.Annotations[names.InitializedAnnotation] == "true" || startsAtZero(pa)
}

func startsAtZero(pa *autoscalingv1alpha1.PodAutoscaler) bool {
	return pa.Annotations[names.InitialScaleAnnotation] == "0"
}

// gaveUp is what the autoscaler does with a revision that does not come up (autoscaler/zero).
const gaveUp = 10*time.Minute + 30*time.Second

// wants is the scale of a revision: one pod until it was up, in its first minute, while requests
// come, and for a minimum scale.
func (g *ground) wants(pa *autoscalingv1alpha1.PodAutoscaler) int32 {
	age := time.Since(pa.CreationTimestamp.Time)
	active := pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive)
	switch {
	case !upOnce(pa):
		if active.IsFalse() || age > gaveUp {
			return 0
		}
		return 1
	case pa.Annotations[names.MinScaleAnnotation] == "1" && pa.Spec.Reachability != autoscalingv1alpha1.ReachabilityUnreachable,
		age < time.Minute && pa.Annotations[names.InitializedAnnotation] == "" && !startsAtZero(pa),
		!g.requests[pa.Name].IsZero() && time.Since(g.requests[pa.Name]) < time.Minute:
		return 1
	}
	return 0
}

// podsFor plays the ReplicaSet and the kubelet: a pod is ready after five seconds, or as long after
// its container runs as that takes. It returns how many are.
func (g *ground) podsFor(revision string, d *appsv1.Deployment, want int32) (up int32) {
	live := 0
	for _, pod := range g.pods(revision) {
		switch uid := names.RevisionUIDLabel; {
		case pod.Labels[uid] != d.Spec.Template.Labels[uid]: // of a revision that had the name
			g.store.Remove(pods, "ns", pod.Name)
			continue
		case pod.Status.Phase == corev1.PodFailed: // nobody deletes it
			continue
		case want == 0:
			g.store.Remove(pods, "ns", pod.Name)
			continue
		case g.lacking != "" && !ready(pod):
			g.put(pods, "v1", "Pod", lacks(pod, g.lacking))
		case g.takes > 0 && !ready(pod) && time.Since(runsSince(pod)) < g.takes:
			g.put(pods, "v1", "Pod", runs(pod))
		case time.Since(pod.CreationTimestamp.Time) > 5*time.Second && !ready(pod):
			pod = pod.DeepCopy()
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			g.put(pods, "v1", "Pod", pod)
		}
		live++
		if ready(pod) {
			up++
		}
	}
	if want > 0 && live == 0 && g.noPods == "" {
		pod := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Status: corev1.PodStatus{Phase: corev1.PodPending}}
		pod.Namespace, pod.Name = "ns", fmt.Sprintf("%s-%d", revision, time.Now().UnixNano())
		g.put(pods, "v1", "Pod", pod)
	}
	return up
}

// deployment writes the scale of a Deployment, then its status.
func (g *ground) deployment(have *appsv1.Deployment, want, up int32) {
	if ptr.Deref(have.Spec.Replicas, 1) != want {
		d := have.DeepCopy()
		d.Spec.Replicas = &want
		g.put(deployments, "apps/v1", "Deployment", d)
		have = get[appsv1.Deployment](g, deployments, have.Name)
	}
	d := have.DeepCopy()
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: want, ReadyReplicas: up}
	if want > 0 && up == 0 && g.noPods != "" {
		d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: g.noPods}}
	}
	d.Status.Conditions = append(d.Status.Conditions, progress(have, want, up)...)
	if !equality.Semantic.DeepEqual(have.Status, d.Status) {
		g.put(deployments, "apps/v1", "Deployment", d)
	}
}

// progress is what a Deployment says of its progress, if it says something. One that has come to
// have all its pods goes on to say so when it is scaled: only its first pods miss a deadline.
func progress(d *appsv1.Deployment, want, up int32) []appsv1.DeploymentCondition {
	const complete = "NewReplicaSetAvailable"
	late := d.CreationTimestamp.Add(10 * time.Minute)
	switch was := slices.IndexFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Reason == complete }); {
	case was >= 0:
		return d.Status.Conditions[was : was+1]
	case want == up:
		return []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: complete, LastUpdateTime: metav1.Now()}}
	case time.Now().After(late):
		return []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
			Reason: "ProgressDeadlineExceeded", Message: d.Name + " has timed out progressing", LastUpdateTime: metav1.NewTime(late)}}
	}
	return nil
}

// decide plays the autoscaler's status.
func (g *ground) decide(have *autoscalingv1alpha1.PodAutoscaler, want, up int32) {
	pa := have.DeepCopy()
	s, initialized := &pa.Status, upOnce(have)
	s.ObservedGeneration, s.ServiceName, s.MetricsServiceName = pa.Generation, pa.Name, pa.Name+"-private"
	s.InitializeConditions()
	s.DesiredScale, s.ActualScale = &want, &up
	if initialized || up > 0 {
		s.MarkScaleTargetInitialized()
		s.MarkSKSReady()
	}
	switch {
	case want == 0 && !initialized:
		s.MarkInactive("TimedOut", "The target could not be activated.")
	case want == 0:
		s.MarkInactive("NoTraffic", "The target is not receiving traffic.")
	case up > 0:
		s.MarkActive()
	default:
		s.MarkActivating("Queued", "Requests to the target are being buffered as resources are provisioned.")
	}
	if g.canRest {
		s.Mode = autoscalingv1alpha1.ModeProxy
		if up > 0 && time.Now().Before(g.busyUntil[pa.Name]) {
			s.Mode = autoscalingv1alpha1.ModeServe
		}
	}
	if !equality.Semantic.DeepEqual(have.Status, pa.Status) {
		g.put(autoscalers, "autoscaling.internal.knative.dev/v1alpha1", "PodAutoscaler", pa)
	}
}

// lacks is the status of a pod whose container cannot be created.
func lacks(pod *corev1.Pod, words string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "user-container",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: words}}}}
	return pod
}

// runs is the status of a pod whose container runs and is not ready.
func runs(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	since := runsSince(pod)
	pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodRunning, []corev1.ContainerStatus{{Name: "user-container",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}}}}
	return pod
}

// runsSince is since when the container of a pod runs, or now.
func runsSince(pod *corev1.Pod) time.Time {
	if s := pod.Status.ContainerStatuses; len(s) > 0 && s[0].State.Running != nil {
		return s[0].State.Running.StartedAt.Time
	}
	return time.Now()
}

// evicted is the status of a pod that its node had no place for. The object stays.
func evicted(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory.",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}}
	return pod
}

// routedTo returns the revisions that a gateway sends requests of a host to.
func (g *ground) routedTo(host string) []string {
	by := g.ask(gatewayOf(host), host, "").by
	slices.Sort(by)
	return by
}
