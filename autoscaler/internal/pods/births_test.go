package pods

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/wire"
)

func TestBirths(t *testing.T) {
	begin := time.Unix(2000, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	var i Index
	unscheduled := pod("new", corev1.PodPending, false, false)
	scheduled := pod("new", corev1.PodPending, false, false)
	scheduled.Spec.NodeName = "node"
	half := scheduled.DeepCopy()
	half.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "queue-proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at(1000))}}},
		{Name: "user-container", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
	}
	whole := half.DeepCopy()
	whole.Status.ContainerStatuses[1].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at(3000))}}

	i.births.note(scheduled, at(0))
	if got := i.Birth(key, "new"); got != (wire.Birth{}) {
		t.Errorf("a pod that was there before says %+v of how it came to be", got)
	}
	i.births.note(unscheduled, at(0))
	i.births.note(unscheduled, at(10))
	if got := i.Birth(key, "new"); got != (wire.Birth{}) {
		t.Errorf("without a node: %+v", got)
	}
	i.births.note(scheduled, at(30))
	i.births.note(half, at(40))
	if got := i.Birth(key, "new"); got != (wire.Birth{Scheduled: at(30)}) {
		t.Errorf("while a container waits: %+v", got)
	}
	i.births.note(whole, at(4000))
	restarted := whole.DeepCopy()
	restarted.Status.ContainerStatuses[1].State.Running.StartedAt = metav1.NewTime(at(90_000))
	i.births.note(restarted, at(91_000))
	if got := i.Birth(key, "new"); got != (wire.Birth{Scheduled: at(30), Started: at(3000)}) {
		t.Errorf("after a restart: %+v", got)
	}
	if got := i.Birth(key, "other"); got != (wire.Birth{}) {
		t.Errorf("of another pod: %+v", got)
	}
	for n := range 10 * sweepAt {
		one := unscheduled.DeepCopy()
		one.Name = fmt.Sprint("pod-", n)
		i.births.note(one, begin.Add(time.Duration(n)*time.Second))
	}
	if n := len(i.births.of); n > 2*sweepAt {
		t.Errorf("%d births are kept of %d in %s", n, 10*sweepAt, 10*sweepAt*time.Second)
	}
}
