package revision

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
)

// trouble is why a pod of a revision does not run, in the words of its condition. The zero value is no trouble.
type trouble struct {
	// container: the user's container fails (ContainerHealthy); else the cluster cannot run it (ResourcesAvailable).
	container       bool
	reason, message string
}

func (t trouble) none() bool { return t.reason == "" }

// podTrouble looks for the one reason to tell a user, over all pods of a revision. Pods that are going or ready tell nothing.
// The first row that fits a pod decides; of several pods the container's own failure comes first, then the newest pod's.
//
//	the pod                                      condition            reason
//	a container ended with N != 0, now or before ContainerHealthy     ExitCodeN (not while it runs again in a
//	                                                                  revision that was up once)
//	a container's image cannot be had            ResourcesAvailable   ErrImagePull, ImagePullBackOff, InvalidImageName ...
//	a container cannot be made or started        ResourcesAvailable   CreateContainerConfigError, RunContainerError ...
//	no node takes it                             ResourcesAvailable   Unschedulable
//	it was evicted or rejected by its node       ResourcesAvailable   the pod's reason
func podTrouble(pods []*corev1.Pod, wasUp, alwaysSchedulable bool) trouble {
	sorted := slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var found trouble
	for _, pod := range sorted {
		if !pod.DeletionTimestamp.IsZero() || podReady(pod) {
			continue
		}
		t := troubleOf(pod, wasUp, alwaysSchedulable)
		if t.container {
			return t
		}
		if found.none() {
			found = t
		}
	}
	return found
}

func troubleOf(pod *corev1.Pod, wasUp, alwaysSchedulable bool) trouble {
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	for _, status := range statuses {
		if status.Name == names.QueueProxyContainer {
			continue // its exit follows from the user container's; that one is the cause worth telling
		}
		if ended := endedBadly(status, wasUp); ended != nil {
			return trouble{container: true, reason: fmt.Sprintf("ExitCode%d", ended.ExitCode), message: exitMessage(status.Name, ended)}
		}
	}
	for _, status := range statuses {
		if w := status.State.Waiting; w != nil && !starting(w.Reason) {
			return trouble{reason: w.Reason, message: waitMessage(status, w)}
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && !alwaysSchedulable {
			return trouble{reason: c.Reason, message: c.Message}
		}
	}
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" {
		return trouble{reason: pod.Status.Reason, message: pod.Status.Message}
	}
	return trouble{}
}

// endedBadly is the failure of a container. One that runs again is given its chance if the revision was up once: a restart by a
// liveness probe is no reason to turn requests away. One that never was goes on failing until it is ready, or its conditions
// would change with every restart.
func endedBadly(status corev1.ContainerStatus, wasUp bool) *corev1.ContainerStateTerminated {
	if status.State.Running != nil && (wasUp || status.Ready) {
		return nil
	}
	for _, ended := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
		// A server that ends without an error is no better off, but only the kubelet's back-off tells it from a restart.
		backingOff := status.State.Waiting != nil && status.State.Waiting.Reason == "CrashLoopBackOff"
		if ended != nil && (ended.ExitCode != 0 || backingOff) {
			return ended
		}
	}
	return nil
}

func exitMessage(container string, ended *corev1.ContainerStateTerminated) string {
	text := strings.TrimSpace(ended.Message)
	switch {
	case text != "":
		return "Container failed with: " + text
	case ended.Reason != "" && ended.Reason != "Error":
		return fmt.Sprintf("Container failed with: %s (container %q, exit code %d)", ended.Reason, container, ended.ExitCode)
	}
	return fmt.Sprintf("Container failed with: container %q ended with exit code %d and said nothing", container, ended.ExitCode)
}

func waitMessage(status corev1.ContainerStatus, w *corev1.ContainerStateWaiting) string {
	if w.Message != "" {
		return w.Message
	}
	return fmt.Sprintf("container %q of image %q waits: %s", status.Name, status.Image, w.Reason)
}

// starting are reasons to wait that are no trouble. CrashLoopBackOff without a known exit code is left to the next event.
func starting(reason string) bool {
	switch reason {
	case "", "ContainerCreating", "PodInitializing", "CrashLoopBackOff":
		return true
	}
	return false
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func readyPods(pods []*corev1.Pod) int {
	n := 0
	for _, pod := range pods {
		if pod.DeletionTimestamp.IsZero() && podReady(pod) {
			n++
		}
	}
	return n
}

// deploymentTrouble is what the Deployment itself says: pods may not be created (quota, admission), or nothing came of them for
// the progress deadline. Its status lags: after a time at zero it still tells of the pods before, so a passed deadline counts
// only against pods that were there when it passed.
func deploymentTrouble(d *appsv1.Deployment, pods []*corev1.Pod) trouble {
	if d.Status.ObservedGeneration < d.Generation {
		return trouble{}
	}
	var found trouble
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue:
			return trouble{reason: c.Reason, message: c.Message}
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && len(pods) > 0 &&
			!slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.CreationTimestamp.After(c.LastUpdateTime.Time) }):
			found = trouble{reason: c.Reason, message: c.Message}
		}
	}
	return found
}
