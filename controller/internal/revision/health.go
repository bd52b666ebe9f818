package revision

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
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
//	it ended, and its replacement may be well    -                    - (see replaced)
//	it was evicted or rejected by its node       ResourcesAvailable   the pod's reason
//	a container ended                            ContainerHealthy     ExitCodeN, until the pod is ready (but see
//	                                                                  endedBadly)
//	a container's image cannot be pulled         ResourcesAvailable   ErrImagePull, ImagePullBackOff, InvalidImageName ...
//	a container cannot be created or started     ResourcesAvailable   CreateContainerConfigError, RunContainerError ...
//	it cannot be scheduled                       ResourcesAvailable   Unschedulable
func podTrouble(o observation, alwaysSchedulable bool) trouble {
	sorted := slices.SortedFunc(slices.Values(o.current()), func(a, b *corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var found trouble
	for _, pod := range sorted {
		if !pod.DeletionTimestamp.IsZero() || podReady(pod) {
			continue
		}
		t := troubleOf(o, pod, alwaysSchedulable)
		if t.container {
			return t
		}
		if found.none() {
			found = t
		}
	}
	return found
}

// sentence is the words of others with one full stop.
func sentence(words string) string {
	return strings.TrimRight(strings.TrimSpace(words), ".") + "."
}

func troubleOf(o observation, pod *corev1.Pod, alwaysSchedulable bool) trouble {
	if o.replaced(pod) {
		return trouble{}
	}
	// The kubelet ends the containers of a pod that it evicts. That is not their fault.
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" {
		return trouble{reason: pod.Status.Reason, message: pod.Status.Message}
	}
	notReadySince := notReadySince(pod)
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	for _, status := range statuses {
		if status.Name == names.QueueProxyContainer {
			continue // it exits because the user's container did
		}
		if ended := endedBadly(status, notReadySince); ended != nil {
			return trouble{container: true, reason: fmt.Sprintf("ExitCode%d", ended.ExitCode), message: exitMessage(o, pod, status.Name, ended)}
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
	return trouble{}
}

// notReadySince is when the pod was ready last, or else when it was made.
func notReadySince(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// endedBadly returns the failure of a container. It stays while the container runs again, or the
// conditions would change with every restart: a container without a readiness probe is ready for
// Kubernetes as soon as it runs. The exception is a container whose last run was good, because the
// pod was ready in it: a restart by a liveness probe is no reason to reject requests.
//
//	the container                 the pod was ready in its last run   it failed
//	runs                          yes                                 no
//	runs                          no, it ended with N                 if N != 0, or it was in back-off before
//	ended with 0, an init one     any                                 no
//	ended, or waits               any                                 if it ended with N != 0, or is in back-off
//
// The kubelet starts a container again at once, and from the second time on after a back-off.
func endedBadly(status corev1.ContainerStatus, notReadySince time.Time) *corev1.ContainerStateTerminated {
	last := status.LastTerminationState.Terminated
	if status.State.Running != nil && last != nil && !last.StartedAt.IsZero() && notReadySince.After(last.StartedAt.Time) {
		return nil
	}
	// Of an init container that is done, Kubernetes says that it is ready.
	if now := status.State.Terminated; now != nil && now.ExitCode == 0 && status.Ready {
		return nil
	}
	for _, ended := range []*corev1.ContainerStateTerminated{status.State.Terminated, last} {
		// Exit code 0 is a failure too, but only the kubelet's back-off tells it from a restart.
		backsOff := status.State.Waiting != nil && status.State.Waiting.Reason == "CrashLoopBackOff"
		backedOff := status.State.Running != nil && status.RestartCount > 1
		if ended != nil && (ended.ExitCode != 0 || backsOff || backedOff) {
			return ended
		}
	}
	return nil
}

func exitMessage(o observation, pod *corev1.Pod, container string, ended *corev1.ContainerStateTerminated) string {
	text := strings.TrimSpace(ended.Message)
	var failed failedProbe
	if o.news.pod == pod.UID {
		failed = o.news.probes[container]
	}
	// A container that a probe ends may choose its exit code. Unless it is one of Kubernetes' own,
	// the probe must have ended this run. Until the Events after it are known, it was as the one
	// before.
	if ended.ExitCode <= 128 && failed.at.Before(ended.StartedAt.Time) && !o.news.at.Before(ended.FinishedAt.Time) {
		failed = failedProbe{}
	}
	switch {
	case failed.kind != "":
		if text = cmp.Or(failed.words, text); text != "" {
			text = servingv1.ContainerLastWords + text
		}
		return fmt.Sprintf("Container failed with: container %q was ended with exit code %d, because its %s probe failed. Mend the probe, or give it more time%s",
			container, ended.ExitCode, failed.kind, text)
	case ended.Reason == "OOMKilled":
		if text != "" {
			text = servingv1.ContainerLastWords + text
		}
		return fmt.Sprintf("Container failed with: OOMKilled (container %q, exit code %d): it took more memory than its limit%s. Raise that limit, or let it use less%s",
			container, ended.ExitCode, memoryLimit(o.template, container), text)
	case text != "":
		return servingv1.ContainerFailedWith + text
	case ended.Reason != "" && ended.Reason != "Error" && ended.Reason != "Completed":
		return fmt.Sprintf("Container failed with: %s (container %q, exit code %d)", ended.Reason, container, ended.ExitCode)
	}
	if ended.ExitCode == 0 { // Kubernetes reads the last words of a log only where the code is another
		return fmt.Sprintf("Container failed with: container %q ended with exit code 0. A program that serves requests does not end by itself", container)
	}
	return fmt.Sprintf("Container failed with: container %q ended with exit code %d and said nothing", container, ended.ExitCode)
}

// memoryLimit is " of ..." if the container has a limit. A node that is full kills without one.
func memoryLimit(template *corev1.PodSpec, container string) string {
	if template == nil {
		template = &corev1.PodSpec{}
	}
	for _, c := range slices.Concat(template.InitContainers, template.Containers) {
		if limit, ok := c.Resources.Limits[corev1.ResourceMemory]; ok && c.Name == container {
			return " of " + limit.String()
		}
	}
	return ", or than its node had"
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
// existed when it passed, and that one of many cannot be created only if there is no other.
func deploymentTrouble(d *appsv1.Deployment, pods []*corev1.Pod) trouble {
	if d.Status.ObservedGeneration < d.Generation {
		return trouble{}
	}
	var found trouble
	for _, c := range d.Status.Conditions {
		switch {
		case cannotCreate(c) && !slices.ContainsFunc(pods, alive):
			return trouble{reason: c.Reason, message: c.Message}
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && len(pods) > 0 &&
			!slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.CreationTimestamp.After(c.LastUpdateTime.Time) }):
			found = trouble{reason: c.Reason, message: c.Message}
		}
	}
	return found
}

func cannotCreate(c appsv1.DeploymentCondition) bool {
	return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue
}

func notCreated(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && slices.ContainsFunc(d.Status.Conditions, cannotCreate)
}
