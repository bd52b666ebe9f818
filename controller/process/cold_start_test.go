package process

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// reconciles counts the reconciles of each reconciler.
type reconciles struct {
	mutex  sync.Mutex
	counts map[string]int
}

func (r *reconciles) of(list []*reconcile.Controller) {
	for _, c := range list {
		inner := c.Reconcile
		c.Reconcile = func(ctx context.Context, key reconcile.Key) (time.Duration, error) {
			r.mutex.Lock()
			r.counts[c.Name]++
			r.mutex.Unlock()
			return inner(ctx, key)
		}
	}
}

func (r *reconciles) take() map[string]int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	was := r.counts
	r.counts = map[string]int{}
	return was
}

// How much the controller does while a revision gets a pod from zero, and loses it: each write of
// Kubernetes and of the autoscaler comes in a moment of its own.
func TestWhatAColdStartCosts(t *testing.T) {
	for what, rests := range map[string]bool{"hosts that rest": true, "HTTPRoutes": false} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGround(t, 1, false)
				if rests {
					g.end()
					g = newRestingGround(t, 1)
				}
				defer g.end()
				g.reconciles = &reconciles{counts: map[string]int{}}
				g.start(g.replicas[0])
				g.pass(30 * time.Second)
				g.hello("dev.local/hello:1", map[string]string{names.InitialScaleAnnotation: "0"})
				g.pass(10 * time.Minute)
				g.coldStart("a-00001") // the first one also makes it initialized
				g.pass(10 * time.Minute)
				g.store.Writes()
				g.reconciles.take()
				g.coldStart("a-00001")
				most := map[string]int{"revision": 9, "endpoints": 6, "hpa": 2, "resting": 4} // the last one looks now and then
				counts, sum, list := g.reconciles.take(), 0, ""
				for _, name := range slices.Sorted(maps.Keys(counts)) {
					sum += counts[name]
					list += fmt.Sprintf("\n%d %s", counts[name], name)
					if counts[name] > most[name] {
						t.Errorf("%d reconciles of %s, at most %d are needed", counts[name], name, most[name])
					}
				}
				t.Logf("%d reconciles:%s", sum, list)
				for _, w := range g.store.Writes() {
					if counts[w.Verb+" "+w.Resource]++; w.Resource != "pods" && w.Resource != "revisions/status" || counts[w.Verb+" "+w.Resource] > 2 {
						t.Errorf("a cold start takes more than two writes of the Revision's status: %s", describe(w))
					}
				}
			})
		})
	}
}

// coldStart plays what Kubernetes and the autoscaler write while a revision gets a pod from zero
// and loses it.
func (g *ground) coldStart(revision string) {
	now := func() metav1.Time { return metav1.NewTime(time.Now()) }
	moment := func() {
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
	}
	deployment := func(change func(*appsv1.Deployment)) {
		d := get[appsv1.Deployment](g, deployments, names.Deployment(revision)).DeepCopy()
		change(d)
		g.put(deployments, "apps/v1", "Deployment", d)
		moment()
	}
	scale := func(n int32) {
		deployment(func(d *appsv1.Deployment) { d.Spec.Replicas = &n })
		deployment(func(d *appsv1.Deployment) {
			d.Status.ObservedGeneration, d.Status.UnavailableReplicas = d.Generation, max(n-d.Status.ReadyReplicas, 0)
		})
	}
	replicas := func(n, ready int32) {
		deployment(func(d *appsv1.Deployment) {
			s := &d.Status
			s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas = n, n, ready, ready, n-ready
		})
	}
	status := func(change func(*autoscalingv1alpha1.PodAutoscalerStatus)) {
		pa := get[autoscalingv1alpha1.PodAutoscaler](g, autoscalers, revision).DeepCopy()
		change(&pa.Status)
		g.put(autoscalers, "autoscaling.internal.knative.dev/v1alpha1", "PodAutoscaler", pa)
		moment()
	}
	name := fmt.Sprintf("%s-%d", revision, time.Now().UnixNano())
	pod := func(change func(*corev1.Pod)) {
		p := get[corev1.Pod](g, pods, name)
		if p == nil {
			d := get[appsv1.Deployment](g, deployments, names.Deployment(revision))
			p = &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: d.Spec.Template.Spec, Status: corev1.PodStatus{Phase: corev1.PodPending}}
			p.Namespace, p.Name, p.Finalizers = "ns", name, []string{"test/kubelet"} // the kubelet's grace
		}
		p = p.DeepCopy()
		change(p)
		g.put(pods, "v1", "Pod", p)
		moment()
	}
	condition := func(p *corev1.Pod, kind corev1.PodConditionType, is corev1.ConditionStatus) {
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: is, LastTransitionTime: now()})
	}
	containers := func(p *corev1.Pod, state corev1.ContainerState, ready bool) {
		p.Status.ContainerStatuses = nil
		for _, c := range p.Spec.Containers {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: state, Ready: ready, Started: &ready})
		}
	}
	listed := func(endpoints ...discoveryv1.Endpoint) {
		private := get[corev1.Service](g, coreServices, names.PrivateService(revision))
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: private.Name + "-x", Labels: maps.Clone(private.Labels)},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints}
		slice.Labels[discoveryv1.LabelServiceName], slice.Labels[discoveryv1.LabelManagedBy] = private.Name, "endpointslice-controller.k8s.io"
		g.put(endpointSlices, "discovery.k8s.io/v1", "EndpointSlice", slice)
		moment()
	}
	endpoint := func(ready, ends bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{"10.2.0.1"}, NodeName: ptr.To("n"), Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready, Terminating: &ends}}
	}

	scale(1)
	pod(func(*corev1.Pod) {})
	replicas(1, 0)
	pod(func(p *corev1.Pod) {
		p.Spec.NodeName = "n"
		condition(p, corev1.PodScheduled, corev1.ConditionTrue)
	})
	pod(func(p *corev1.Pod) {
		p.Status.StartTime = ptr.To(now())
		condition(p, corev1.PodReady, corev1.ConditionFalse)
		containers(p, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}, false)
	})
	pod(func(p *corev1.Pod) {
		p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "10.2.0.1"
		containers(p, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now()}}, false)
	})
	listed(endpoint(false, false))
	pod(func(p *corev1.Pod) {
		condition(p, corev1.PodReady, corev1.ConditionTrue)
		containers(p, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now()}}, true)
	})
	listed(endpoint(true, false))
	replicas(1, 1)
	status(func(s *autoscalingv1alpha1.PodAutoscalerStatus) {
		s.DesiredScale, s.ActualScale, s.Mode, s.NumActivators = ptr.To(int32(1)), ptr.To(int32(1)), autoscalingv1alpha1.ModeProxy, 2
		s.MarkScaleTargetInitialized()
		s.MarkSKSReady()
		s.MarkActive()
	})
	time.Sleep(time.Minute)
	synctest.Wait()
	scale(0)
	if err := g.user.Kube.CoreV1().Pods("ns").Delete(g.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		g.t.Fatal(err)
	}
	moment()
	listed(endpoint(false, true))
	replicas(0, 0)
	status(func(s *autoscalingv1alpha1.PodAutoscalerStatus) {
		s.DesiredScale, s.ActualScale = ptr.To(int32(0)), ptr.To(int32(0))
		s.MarkSKSNotReady("none")
		s.MarkInactive("NoTraffic", "none")
	})
	pod(func(p *corev1.Pod) { condition(p, corev1.PodReady, corev1.ConditionFalse) })
	pod(func(p *corev1.Pod) {
		containers(p, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0, FinishedAt: now()}}, false)
	})
	g.store.Remove(pods, "ns", name)
	listed()
	time.Sleep(30 * time.Second)
	synctest.Wait()
}
