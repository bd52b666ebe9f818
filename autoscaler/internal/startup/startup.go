// Package startup gives pods more CPU until they answer, and takes it back.
//
// Owns: the CPU limit of the containers that names.StartupLimitAnnotation names. Reads: the index
// of pods. Writes: pods/resize; what hinders it, into the index, which the status of the
// PodAutoscaler tells. Never: changes a limit that is neither of the two that the annotation has;
// keeps what a pod needs to get its own limit back: that stands in the pod, so that whoever owns
// its revision next goes on.
package startup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
)

const (
	// period is how often pods that start are looked at. A new pod is looked at at once.
	period = 500 * time.Millisecond
	// maxTime bounds how long a pod that never answers has more CPU.
	maxTime = 10 * time.Minute
	// seen is how long the informer may take to show a write of this process before it is repeated.
	seen = 10 * time.Second
	// firstRetry and lastRetry bound the wait before a resize that failed is tried again.
	firstRetry, lastRetry = time.Second, 30 * time.Second
	// callTimeout bounds one call of the API server.
	callTimeout = 5 * time.Second
	// atOnce bounds how many calls are under way. One more is left to the next look.
	atOnce = 32
	// patience is how long a node may take for a resize before it is told.
	patience = 30 * time.Second
)

// Index knows the pods that start.
type Index interface {
	StartingPods() []pods.Starting
	Hindered(key loop.Key, pod, reason, message string) (news bool)
}

// Booster changes the CPU limits of pods that start.
type Booster struct {
	Index Index
	Kube  kubernetes.Interface
	// MayWrite says which revisions are this replica's.
	MayWrite func(loop.Key) bool
	// MaxCPU is the largest limit that a pod may start with, in thousandths of a CPU. Grace is how
	// long a pod keeps it after it became ready.
	MaxCPU func() int64
	Grace  func() time.Duration
	// Changed is called with a revision of which there is news to tell. It does not block.
	Changed func(loop.Key)
	Log     *slog.Logger

	// Raised and Lowered count resizes, Refused those that the API server refused for good, Failed
	// those that failed otherwise.
	Raised, Lowered, Refused, Failed atomic.Int64

	wake  chan struct{}
	mutex sync.Mutex
	tried map[pod]try
	calls int
}

type pod struct {
	revision loop.Key
	name     string
}

// try is the last resize of a pod.
type try struct {
	limit   int64
	busy    bool
	refused bool
	retry   time.Duration // 0 unless it failed
	next    time.Time
	// reason and message say what the API server had against it.
	reason, message string
}

// New prepares a Booster whose fields are set.
func New(b *Booster) *Booster {
	b.wake, b.tried = make(chan struct{}, 1), map[pod]try{}
	return b
}

// Look makes the Booster look at the pods at once. It does not block.
func (b *Booster) Look() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Run looks at the pods until ctx ends.
func (b *Booster) Run(ctx context.Context) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		b.step(ctx, time.Now(), &calls)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-b.wake:
		}
	}
}

// step begins the resizes that are due.
func (b *Booster) step(ctx context.Context, now time.Time, calls *sync.WaitGroup) {
	all := b.Index.StartingPods()
	b.forget(all)
	for i := range all {
		p := &all[i]
		if !b.MayWrite(p.Key) {
			continue
		}
		limit := wanted(p, now, b.Grace(), b.MaxCPU())
		if limit != p.Limit && b.begin(p, limit, now) {
			calls.Go(func() { b.finish(p, limit, b.resize(ctx, p, limit)) })
		}
		b.tell(p, limit, now)
	}
}

// wanted is the CPU limit that a pod is to have now.
//
//	the pod                                       the limit
//	somebody else gave it another one             as it is
//	is to start with more than is allowed         its own
//	is ready, for shorter than grace              as it is
//	is ready for grace, or was ready before       its own
//	never was ready, for maxTime                  its own
//	never was ready                               the one to start with
//
// A pod is ready once its queue-proxy has heard the program answer.
func wanted(p *pods.Starting, now time.Time, grace time.Duration, maxCPU int64) int64 {
	switch {
	case p.Limit != p.Low && p.Limit != p.High:
		return p.Limit
	case p.High > maxCPU, p.Was, now.Sub(p.Created) >= maxTime:
		return p.Low
	case !p.Ready.IsZero() && now.Sub(p.Ready) < grace:
		return p.Limit
	case !p.Ready.IsZero():
		return p.Low
	}
	return p.High
}

// begin reports whether a resize is to be tried now, and notes that it is.
func (b *Booster) begin(p *pods.Starting, limit int64, now time.Time) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	id := pod{p.Key, p.Pod}
	last := b.tried[id]
	same := last.limit == limit
	if last.busy || b.calls >= atOnce || same && (last.refused && limit == p.High || now.Before(last.next)) {
		return false
	}
	b.calls++
	next := try{limit: limit, busy: true}
	if same {
		next.retry, next.reason, next.message = last.retry, last.reason, last.message
	}
	b.tried[id] = next
	return true
}

// finish notes the outcome of a resize. A refused raise is not repeated: the pod starts without it.
// The way back is tried for as long as the pod is there.
func (b *Booster) finish(p *pods.Starting, limit int64, err error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.calls--
	id := pod{p.Key, p.Pod}
	t := b.tried[id]
	t.busy, t.next = false, time.Now().Add(seen)
	switch reason := refusal(err); {
	case err == nil:
		t.retry, t.reason, t.message = 0, "", ""
		if limit == p.High {
			b.Raised.Add(1)
		} else {
			b.Lowered.Add(1)
		}
	case apierrors.IsNotFound(err) && reason == "":
		t.retry = 0 // the pod is gone
	default:
		t.retry = min(max(2*t.retry, firstRetry), lastRetry)
		t.next = time.Now().Add(t.retry)
		if reason == "" {
			b.Failed.Add(1)
		} else {
			b.Refused.Add(1)
			t.refused, t.reason, t.message = true, reason, sentence(p, limit, reason, err)
		}
		b.Log.Warn("cannot change the CPU limit of a pod that starts", "revision", p.Key.String(), "pod", p.Pod, "to", names.MilliCPU(limit), "error", err)
	}
	b.tried[id] = t
}

// refusal is the reason of a condition if the API server refuses a resize for good. A Kubernetes
// without the subresource has no handler for its path, which is another answer than that for a pod
// that is gone.
func refusal(err error) string {
	switch {
	case err == nil:
		return ""
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse), apierrors.IsMethodNotSupported(err):
		return v1alpha1.ReasonResizeUnsupported
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return v1alpha1.ReasonResizeRefused
	}
	return ""
}

func sentence(p *pods.Starting, limit int64, reason string, err error) string {
	switch {
	case reason == v1alpha1.ReasonResizeUnsupported:
		return "Pods start with their own CPU limit: this Kubernetes does not resize pods in place."
	case limit == p.High:
		return fmt.Sprintf("Pods start with their own CPU limit of %s: %s", names.MilliCPU(p.Low), because(err))
	}
	return fmt.Sprintf("A pod keeps a CPU limit of %s after its start: %s", names.MilliCPU(p.High), because(err))
}

// maxBecause bounds what is told of an answer. A webhook may say anything.
const maxBecause = 500

// because is what an API server answered, without the pod's name: the same trouble of another pod
// is no news.
func because(err error) string {
	text := cause(err)
	if len(text) > maxBecause {
		text = strings.ToValidUTF8(text[:maxBecause], "") + "..."
	}
	return text
}

func cause(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if details := status.Status().Details; details != nil && len(details.Causes) > 0 && details.Causes[0].Message != "" {
			return details.Causes[0].Message
		}
	}
	if _, why, forbidden := strings.Cut(err.Error(), " is forbidden: "); forbidden {
		return why
	}
	return err.Error()
}

// tell records what hinders a pod, the API server before the node.
func (b *Booster) tell(p *pods.Starting, limit int64, now time.Time) {
	b.mutex.Lock()
	t := b.tried[pod{p.Key, p.Pod}]
	b.mutex.Unlock()
	reason, message := t.reason, t.message
	// What the node has not done for long, it says as a condition of the pod. Of a resize that it
	// puts off or cannot do, it says so at once.
	if r := p.Resize; reason == "" && r.Reason != "" && (r.Reason != pods.ResizeInProgress || now.Sub(r.Since) >= patience) {
		reason, message = v1alpha1.ReasonResizeNotDone, fmt.Sprintf("The node has not given a pod the CPU limit of %s: %s", names.MilliCPU(p.Limit), cmp.Or(r.Message, r.Reason))
	}
	if b.Index.Hindered(p.Key, p.Pod, reason, message) {
		b.Changed(p.Key)
	}
}

// forget drops what is noted of pods that are not listed any more.
func (b *Booster) forget(all []pods.Starting) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if len(b.tried) == 0 {
		return
	}
	there := make(map[pod]bool, len(all))
	for i := range all {
		there[pod{all[i].Key, all[i].Pod}] = true
	}
	maps.DeleteFunc(b.tried, func(id pod, t try) bool { return !there[id] && !t.busy })
}

// resize changes one limit and nothing else. The requests stay, so that neither the scheduler nor
// the node needs room for it.
func (b *Booster) resize(ctx context.Context, p *pods.Starting, limit int64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
		"name": p.Container, "resources": map[string]any{"limits": map[string]any{"cpu": names.MilliCPU(limit)}}}}}})
	if err != nil {
		return fmt.Errorf("encode resize of pod %s/%s: %w", p.Key.Namespace, p.Pod, err)
	}
	_, err = b.Kube.CoreV1().Pods(p.Key.Namespace).Patch(ctx, p.Pod, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "resize")
	if err != nil {
		return fmt.Errorf("resize pod %s/%s: %w", p.Key.Namespace, p.Pod, err)
	}
	return nil
}
