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

// trouble is why a pod of a revision does not run, as its condition shows it. The zero value means
// no trouble.
type trouble struct {
	// container means that the user's container fails (ContainerHealthy), not the cluster
	// (ResourcesAvailable).
	container       bool
	reason, message string
}

func (t trouble) none() bool { return t.reason == "" }

// podTrouble returns the one reason to show, of all pods of a revision. Pods that are ready or
// being deleted do not count. The first row that matches a pod decides. A failure of the container
// comes first, then that of the newest pod.
//
//	the pod                                      condition            reason
//	a container exited with N != 0               ContainerHealthy     ExitCodeN (not while it runs again in a
//	                                                                  revision that was up once)
//	a container's image cannot be pulled         ResourcesAvailable   ErrImagePull, ImagePullBackOff, InvalidImageName ...
//	a container cannot be created or started     ResourcesAvailable   CreateContainerConfigError, RunContainerError ...
//	it cannot be scheduled                       ResourcesAvailable   Unschedulable
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
			continue // it exits because the user's container did
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

// endedBadly returns the failure of a container. In a revision that was up once, a container that
// runs again has not failed: a restart by a liveness probe is no reason to reject requests. In
// another revision it has failed until it is ready, or the conditions would change with every
// restart.
func endedBadly(status corev1.ContainerStatus, wasUp bool) *corev1.ContainerStateTerminated {
	if status.State.Running != nil && (wasUp || status.Ready) {
		return nil
	}
	for _, ended := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
		// Exit code 0 is a failure too, but only the kubelet's back-off tells it from a restart.
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

// starting reports whether a reason to wait is no trouble. After CrashLoopBackOff, the next event
// has the exit code.
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

// deploymentTrouble returns the trouble in the Deployment's status: pods cannot be created (quota,
// admission), or none became ready within the progress deadline. The status lags behind: after a
// time at zero it still shows the pods before. So a missed deadline counts only for pods that
// existed when it passed.
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
