package act

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/revision"
)

// deletionCost is read by the ReplicaSet controller. Of ready pods, it removes those with the
// lowest cost first.
const deletionCost = "controller.kubernetes.io/pod-deletion-cost"

// askTimeout bounds the questions to pods before a scale-down. Pods of a dead node never answer,
// and a scale-down that waits for them occupies a worker.
const askTimeout = time.Second

// Costs marks pods so that idle ones are removed before busy ones.
type Costs struct {
	Kube kubernetes.Interface
	// Ready lists a revision's ready pods, Count counts all of them.
	Ready func(loop.Key) []pods.Pod
	Count func(loop.Key) revision.Counts
	// InFlight asks pods for their number of requests, which is infinite where the program says
	// that it is busy. Pods that do not answer before ctx ends are left out.
	InFlight func(context.Context, loop.Key, []pods.Pod) map[string]float64
	Now      func() time.Time
}

// Mark gives the pods to remove, as many as removed, a lower cost than all others, with one patch
// each. Pods that are not ready are removed first and need no mark. Lost ones are not among these:
// Kubernetes calls them ready for a while. If all pods are equally busy, nothing is marked.
func (c *Costs) Mark(ctx context.Context, key loop.Key, removed int) error {
	ready, counts := c.Ready(key), c.Count(key)
	victims := removed - int(counts.NotReady-counts.Lost-counts.Terminating+counts.Asleep)
	if victims <= 0 || victims >= len(ready) {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	inFlight := c.InFlight(asking, key, ready)
	cancel()
	chosen := choose(ready, inFlight, victims)
	if len(chosen) == 0 {
		return nil
	}
	// The cost falls with time. A pod that was marked for an earlier scale-down, which did not
	// happen, then comes after those marked now, and its mark can stay.
	cost := -int32(c.Now().Unix() - time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, deletionCost, cost)
	var failures []error
	for _, pod := range chosen {
		_, err := c.Kube.CoreV1().Pods(key.Namespace).Patch(ctx, pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			failures = append(failures, fmt.Errorf("patch deletion cost of pod %s/%s: %w", key.Namespace, pod, err))
		}
	}
	return errors.Join(failures...)
}

// choose returns the least busy pods and, among equally busy ones, the youngest, as the ReplicaSet
// controller does. A pod that does not answer counts as busy: it may be too busy to answer. Those
// whose programs say that they are busy come last.
func choose(ready []pods.Pod, inFlight map[string]float64, victims int) []string {
	unknown := 0.0
	for _, n := range inFlight {
		if !math.IsInf(n, 1) {
			unknown = max(unknown, n)
		}
	}
	busy := func(p pods.Pod) float64 {
		if n, ok := inFlight[p.Name]; ok {
			return n
		}
		return unknown + 1
	}
	sorted := slices.Clone(ready)
	slices.SortFunc(sorted, func(a, b pods.Pod) int {
		switch x, y := busy(a), busy(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		if order := b.Started.Compare(a.Started); order != 0 {
			return order
		}
		return strings.Compare(a.Name, b.Name)
	})
	if busy(sorted[0]) == busy(sorted[len(sorted)-1]) {
		return nil
	}
	names := make([]string, 0, victims)
	for _, p := range sorted[:victims] {
		names = append(names, p.Name)
	}
	return names
}
