package revision

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/conditions"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// How an attempt goes, in seconds: the Deployment says that it timed out, the autoscaler gives up,
// and the pods are gone.
const timesOut, givesUp, podsGone = 600, 630, 632

// silent is when a pod that waits does not say for what, as between two tries of the kubelet.
const silent = timesOut + 2

var defaults = settings.Default()

// attempt is an attempt to start a revision that lacks something until a second, if at all, and
// whose container does something then.
type attempt struct {
	lacks string // what the pod waits for, "" for nothing
	until int
	then  string // "hangs", "fails", or "listens" after a minute
}

// lackings are what a pod says while it waits, by what is missing.
var lackings = map[string]func(*observation, *corev1.Pod){
	`secret "a" not found`: func(_ *observation, pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "user", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: `secret "a" not found`}}}}
	},
	`configmap "a" not found`: func(o *observation, pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "user", State: waits("ContainerCreating")}}
		o.news = news{pod: pod.UID, trouble: trouble{reason: "FailedMount", message: `MountVolume.SetUp failed: configmap "a" not found`}}
	},
	"pull access denied": func(_ *observation, pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "user", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "pull access denied"}}}}
	},
	"0/3 nodes": func(_ *observation, pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"}}
	},
	"exceeded quota": func(o *observation, _ *corev1.Pod) {
		o.pods = nil
		o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{
			Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota"})
	},
}

// at is what the controller sees of the attempt that began at a time, so many seconds later.
func (a attempt) at(began time.Time, second int) observation {
	after := func(n int) metav1.Time { return metav1.NewTime(began.Add(time.Duration(n) * time.Second)) }
	pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: after(0)}}
	pa.Status.InitializeConditions()
	o := observation{autoscaler: pa, now: after(second).Time, newest: true, deployment: &appsv1.Deployment{
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1), ProgressDeadlineSeconds: ptr.To[int32](timesOut)}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod", CreationTimestamp: after(0)}, Spec: corev1.PodSpec{NodeName: "node"}}
	o.pods = []*corev1.Pod{pod}
	if second >= timesOut {
		o.deployment.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
			Reason: reasonNoProgress, Message: "it has timed out progressing", LastUpdateTime: after(timesOut)}}
	}
	switch {
	case a.lacks != "" && second < a.until && second == silent:
		pod.Spec.NodeName, pod.Status.ContainerStatuses = "", []corev1.ContainerStatus{{Name: "user", State: waits("ContainerCreating")}}
		if a.lacks == "exceeded quota" {
			o.pods = nil
		}
	case a.lacks != "" && second < a.until:
		lackings[a.lacks](&o, pod)
	default:
		if a.lacks == "exceeded quota" {
			pod.CreationTimestamp = after(a.until)
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "user", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		if a.then == "fails" {
			pod.Status.ContainerStatuses[0].State = waits("CrashLoopBackOff")
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
		}
		if a.then == "listens" && second >= a.until+60 && (second < givesUp || a.until+60 < givesUp) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			pa.Status.MarkScaleTargetInitialized()
			return o
		}
	}
	if second >= givesUp {
		pa.Status.MarkInactive("TimedOut", "")
		for i := range pa.Status.Conditions {
			pa.Status.Conditions[i].LastTransitionTime = apis.VolatileTime{Inner: after(givesUp)}
		}
		o.deployment.Spec.Replicas = ptr.To[int32](0)
	}
	if second >= podsGone {
		o.pods = nil
	}
	return o
}

// look is a reconcile of the status.
func look(rev *servingv1.Revision, o observation) {
	before := rev.Status.DeepCopy()
	setConditions(rev, o, defaults)
	for i := range rev.Status.Conditions {
		rev.Status.Conditions[i].LastTransitionTime = apis.VolatileTime{Inner: metav1.NewTime(o.now)}
	}
	conditions.KeepTransitionTimes(&before.Status, &rev.Status.Status)
}

// What a pod lacks comes at any time in an attempt, and the controller looks whenever it does. If
// the pod is not ready in time, the revision is tried anew, and says all the time what it lacked.
// The attempt after that, which lacks nothing, decides about the container.
func TestWhatComesLateIsToldAndTheRevisionIsTriedAnewWheneverItComes(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for lacks := range lackings {
		for _, until := range []int{320, 599, 601, 629, 631} {
			for _, then := range []string{"hangs", "fails"} {
				// It may look at each of these, and does at the beginning and the end.
				seconds := []int{until - 1, until, timesOut, silent, givesUp - 1, givesUp}
				for looks := range 1 << len(seconds) {
					rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(began)}}
					rev.Status.InitializeConditions()
					first := attempt{lacks: lacks, until: until, then: then}
					history := ""
					see := func(a attempt, began time.Time, second int) observation {
						o := a.at(began, second)
						look(rev, o)
						c := rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable)
						history += fmt.Sprintf("\n%4d %s %s %s; %s", second, c.Status, c.Reason, c.Message, rev.Status.GetCondition(servingv1.RevisionConditionContainerHealthy).Reason)
						return o
					}
					told := func() string {
						return rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable).GetMessage()
					}
					see(first, began, 100)
					for second := range podsGone {
						if i := slices.Index(seconds, second); i >= 0 && looks&(1<<i) != 0 {
							see(first, began, second)
							if !strings.Contains(told(), lacks) {
								t.Fatalf("%s until %d, then it %s: it says%s", lacks, until, then, history)
							}
						}
					}
					o := see(first, began, podsGone)
					_, anew := anewAfter(rev, o, defaults, o.now)
					if !anew || !strings.Contains(told(), lacks) || !rev.IsFailed() {
						t.Fatalf("%s until %d, then it %s: tried anew %v, and it says%s", lacks, until, then, anew, history)
					}

					second := began.Add(20 * time.Minute)
					for _, then := range []string{"hangs", "listens"} {
						rev := rev.DeepCopy()
						see := func(at int) observation {
							o := attempt{then: then}.at(second, at)
							look(rev, o)
							return o
						}
						see(5)
						see(timesOut)
						see(givesUp)
						o := see(podsGone)
						_, anew := anewAfter(rev, o, defaults, o.now)
						if anew || rev.IsReady() != (then == "listens") {
							t.Fatalf("%s until %d, then it %s: of the second attempt, that %s, it says %+v, tried anew %v%s", lacks, until, first.then, then,
								rev.Status.Conditions, anew, history)
						}
					}
				}
			}
		}
	}
}

// What only begins an attempt, and what each attempt waits for, leaves its container the time that
// it was promised.
func TestAShortWaitDoesNotExcuseAContainer(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for lacks, until := range map[string]int{`secret "a" not found`: 25, "exceeded quota": 25, "0/3 nodes": 250} {
		rev := &servingv1.Revision{}
		rev.Status.InitializeConditions()
		a := attempt{lacks: lacks, until: until, then: "hangs"}
		for second := 5; second <= givesUp; second += 5 {
			look(rev, a.at(began, second))
		}
		o := a.at(began, podsGone)
		look(rev, o)
		c := rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable)
		if _, anew := anewAfter(rev, o, defaults, o.now); anew || c.GetReason() != reasonNoProgress {
			t.Errorf("%s for %d s: tried anew %v, and it says %+v", lacks, until, anew, c)
		}
	}
}
