package startup

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
)

var (
	key   = loop.Key{Namespace: "default", Name: "hello-00001"}
	limit = names.StartupLimit{Container: "user-container", Low: 250, High: 1000}
)

func TestTheLimitThatAPodIsToHave(t *testing.T) {
	now := time.Unix(10_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for behaviour, test := range map[string]struct {
		pod  pods.Starting
		most int64
		want int64
	}{
		"a new pod":                               {pods.Starting{Limit: 250, Created: now}, 4000, 1000},
		"it has it":                               {pods.Starting{Limit: 1000, Created: ago(time.Minute)}, 4000, 1000},
		"it answers since a moment":               {pods.Starting{Limit: 1000, Created: ago(time.Minute), Ready: ago(4 * time.Second)}, 4000, 1000},
		"it has answered for the grace":           {pods.Starting{Limit: 1000, Created: ago(time.Minute), Ready: ago(5 * time.Second)}, 4000, 250},
		"it answered before it was raised":        {pods.Starting{Limit: 250, Created: ago(time.Second), Ready: now}, 4000, 250},
		"it answered before, and does not":        {pods.Starting{Limit: 1000, Created: ago(time.Minute), Was: true}, 4000, 250},
		"its program never answers":               {pods.Starting{Limit: 1000, Created: ago(maxTime)}, 4000, 250},
		"its program did not, and it is at rest":  {pods.Starting{Limit: 250, Created: ago(maxTime)}, 4000, 250},
		"somebody else gave it another limit":     {pods.Starting{Limit: 500, Created: ago(time.Minute), Ready: ago(time.Minute)}, 4000, 500},
		"its container has no limit":              {pods.Starting{Limit: 0, Created: now}, 4000, 0},
		"a tenant wrote more than is allowed":     {pods.Starting{Limit: 250, Created: now}, 999, 250},
		"what is allowed became less, afterwards": {pods.Starting{Limit: 1000, Created: now}, 999, 250},
	} {
		test.pod.StartupLimit = limit
		if got := wanted(&test.pod, now, 5*time.Second, test.most); got != test.want {
			t.Errorf("%s: %d, want %d", behaviour, got, test.want)
		}
	}
}

// house is a cluster with one pod, and the index of its pods.
type house struct {
	mutex   sync.Mutex
	pod     pods.Starting
	gone    bool
	refuse  func(to int64) error
	hinder  string
	message string
	news    int
	patches []int64
	kube    *fake.Clientset
}

func newHouse(t *testing.T) *house {
	h := &house{pod: pods.Starting{Key: key, Pod: "a", StartupLimit: limit, Limit: 250, Created: time.Now()}}
	h.kube = fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "a"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: names.QueueProxyContainer, Resources: resources("25m")}, {Name: "user-container", Resources: resources("250m")}}}})
	h.kube.PrependReactor("patch", "pods", func(action ktesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "resize" {
			t.Errorf("patched %q", action.GetSubresource())
		}
		h.mutex.Lock()
		defer h.mutex.Unlock()
		to := int64(1000)
		if strings.Contains(string(action.(ktesting.PatchAction).GetPatch()), `"cpu":"250m"`) {
			to = 250
		}
		h.patches = append(h.patches, to)
		if h.refuse != nil {
			if err := h.refuse(to); err != nil {
				return true, nil, err
			}
		}
		h.pod.Limit = to // the informer shows it
		return false, nil, nil
	})
	return h
}

func resources(cpu string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Mi")}
	return corev1.ResourceRequirements{Limits: list, Requests: list.DeepCopy()}
}

func (h *house) StartingPods() []pods.Starting {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.gone {
		return nil
	}
	return []pods.Starting{h.pod}
}

func (h *house) Hindered(_ loop.Key, _, reason, message string) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	news := reason != h.hinder || message != h.message
	h.hinder, h.message = reason, message
	return news
}

func (h *house) change(f func(*house)) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	f(h)
}

// pass lets time pass, and all that is due happen. The test may look at the house between two of
// them without the mutex.
func (h *house) pass(d time.Duration) {
	h.change(func(*house) {})
	time.Sleep(d)
	synctest.Wait()
	h.change(func(*house) {})
}

// booster is one process with the revision, until ctx ends.
func (h *house) booster(ctx context.Context) *Booster {
	b := New(&Booster{Index: h, Kube: h.kube, MayWrite: func(loop.Key) bool { return true }, MaxCPU: func() int64 { return 4000 },
		Grace: func() time.Duration { return 5 * time.Second }, Changed: func(loop.Key) { h.change(func(h *house) { h.news++ }) }, Log: slog.New(slog.DiscardHandler)})
	go func() { _ = b.Run(ctx) }()
	return b
}

func (h *house) limits(t *testing.T) (user, proxy *corev1.ResourceRequirements) {
	t.Helper()
	pod, err := h.kube.CoreV1().Pods(key.Namespace).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &pod.Spec.Containers[1].Resources, &pod.Spec.Containers[0].Resources
}

// A pod has more CPU until it answers and for the grace, also if another process takes over in
// between: all that it needs stands in the pod.
func TestAPodHasMoreCPUUntilItAnswers(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHouse(t)
			ctx, stop := context.WithCancel(t.Context())
			b := h.booster(ctx)
			b.Look()
			synctest.Wait()
			user, proxy := h.limits(t)
			if user.Limits.Cpu().String() != "1" || user.Requests.Cpu().String() != "250m" || user.Limits.Memory().String() != "64Mi" || proxy.Limits.Cpu().String() != "25m" {
				t.Fatalf("it starts with %+v, queue-proxy with %+v", user, proxy)
			}
			h.pass(20 * time.Second)
			h.change(func(h *house) { h.pod.Ready = time.Now() })
			if restart {
				stop()
				synctest.Wait()
				ctx, stop = context.WithCancel(t.Context())
				b = h.booster(ctx)
			}
			defer stop()
			h.pass(4 * time.Second)
			if user, _ = h.limits(t); user.Limits.Cpu().String() != "1" {
				t.Error("it lost its CPU within the grace")
			}
			h.pass(time.Second + 2*period)
			if user, _ = h.limits(t); user.Limits.Cpu().String() != "250m" || user.Limits.Memory().String() != "64Mi" {
				t.Errorf("it keeps %+v", user)
			}
			h.pass(time.Hour)
			if len(h.patches) != 2 || h.news != 0 || b.Lowered.Load() != 1 {
				t.Errorf("%v were written, %d news, %d lowered", h.patches, h.news, b.Lowered.Load())
			}
			stop()
			synctest.Wait()
		})
	}
}

func TestWhatTheAPIServerRefusesIsTold(t *testing.T) {
	pod := schema.GroupResource{Resource: "pods"}
	for behaviour, test := range map[string]struct {
		err     error
		patches int // within an hour
		reason  string
		message string
	}{
		"a quota": {apierrors.NewForbidden(pod, "a", errors.New("exceeded quota: q, requested: limits.cpu=750m, used: limits.cpu=1, limited: limits.cpu=1")), 1,
			"ResizeRefused", "Pods start with their own CPU limit of 250m: exceeded quota: q, requested: limits.cpu=750m, used: limits.cpu=1, limited: limits.cpu=1"},
		"a LimitRange": {apierrors.NewForbidden(pod, "a", errors.New("maximum cpu usage per Container is 500m, but limit is 1")), 1,
			"ResizeRefused", "Pods start with their own CPU limit of 250m: maximum cpu usage per Container is 500m, but limit is 1"},
		"a webhook that tells a novel": {apierrors.NewForbidden(pod, "a", errors.New(strings.Repeat("no", maxBecause))), 1,
			"ResizeRefused", "Pods start with their own CPU limit of 250m: " + strings.Repeat("no", maxBecause/2) + "..."},
		"the QoS class": {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", field.ErrorList{field.Invalid(field.NewPath("spec"), "", "Pod QOS Class may not change as a result of resizing")}), 1,
			"ResizeRefused", `Pods start with their own CPU limit of 250m: Invalid value: "": Pod QOS Class may not change as a result of resizing`},
		"a Kubernetes without resize": {apierrors.NewGenericServerResponse(404, "patch", pod, "a", "404 page not found", 0, true), 1,
			"ResizeUnsupported", "Pods start with their own CPU limit: this Kubernetes does not resize pods in place."},
	} {
		t.Run(behaviour, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t)
				h.refuse = func(int64) error { return test.err }
				ctx, stop := context.WithCancel(t.Context())
				b := h.booster(ctx)
				h.pass(5 * time.Minute)
				if h.hinder != test.reason || h.message != test.message || h.news != 1 {
					t.Errorf("told %d times: %s, %s", h.news, h.hinder, h.message)
				}
				if len(h.patches) != test.patches || b.Refused.Load() != 1 {
					t.Errorf("%d attempts, %d counted as refused", len(h.patches), b.Refused.Load())
				}
				stop()
				synctest.Wait()
			})
		})
	}
}

// An API server that is away is asked again, less and less often, and a pod that is deleted in the
// middle is forgotten.
func TestAResizeIsTriedUntilThePodIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.refuse = func(int64) error { return apierrors.NewInternalError(errors.New("away")) }
		ctx, stop := context.WithCancel(t.Context())
		b := h.booster(ctx)
		h.pass(2 * time.Minute)
		if n := len(h.patches); n < 5 || n > 10 {
			t.Errorf("%d attempts in two minutes", n)
		}
		h.change(func(h *house) { h.refuse = nil })
		h.pass(lastRetry)
		if h.pod.Limit != 1000 || h.hinder != "" {
			t.Errorf("the limit is %d, and %q is told", h.pod.Limit, h.hinder)
		}
		// The way back is refused: it is told, and tried until it succeeds.
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("a policy says no"))
		h.change(func(h *house) { h.pod.Ready, h.refuse = time.Now(), func(int64) error { return forbidden } })
		h.pass(time.Minute)
		if h.hinder != "ResizeRefused" || h.message != "A pod keeps a CPU limit of 1 after its start: a policy says no" {
			t.Errorf("%s is told: %s", h.hinder, h.message)
		}
		h.change(func(h *house) { h.refuse = nil })
		h.pass(lastRetry + 2*period)
		if h.pod.Limit != 250 || h.hinder != "" {
			t.Errorf("the limit is %d, and %q is told", h.pod.Limit, h.hinder)
		}
		h.change(func(h *house) { h.gone = true })
		h.pass(time.Second)
		if len(b.tried) != 0 {
			t.Errorf("%v is kept of a pod that is gone", b.tried)
		}
		h.change(func(h *house) {
			h.gone, h.pod.Ready, h.patches = false, time.Time{}, nil
			h.pod.Created = time.Now()
			h.refuse = func(int64) error { return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "a") }
		})
		h.pass(seen / 2)
		if len(h.patches) != 1 || h.hinder != "" {
			t.Errorf("a pod that is gone: %d attempts, %q is told", len(h.patches), h.hinder)
		}
		stop()
		synctest.Wait()
	})
}

func TestWhatANodeDoesNotDoIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		ctx, stop := context.WithCancel(t.Context())
		h.booster(ctx)
		h.change(func(h *house) { h.pod.Resize = pods.Resize{Reason: pods.ResizeInProgress, Since: time.Now()} })
		h.pass(patience - time.Second)
		if h.hinder != "" {
			t.Errorf("told at once: %s", h.message)
		}
		h.pass(2 * time.Second)
		if h.hinder != "ResizeNotDone" {
			t.Errorf("told %q of a resize that does not end", h.hinder)
		}
		h.change(func(h *house) { h.pod.Resize = pods.Resize{} })
		h.pass(time.Second)
		if h.hinder != "" {
			t.Errorf("still told: %s", h.message)
		}
		h.change(func(h *house) {
			h.pod.Resize = pods.Resize{Reason: "Infeasible", Message: "static CPU manager", Since: time.Now()}
		})
		h.pass(time.Second)
		if h.message != "The node has not given a pod the CPU limit of 1: static CPU manager" {
			t.Errorf("told: %s", h.message)
		}
		stop()
		synctest.Wait()
	})
}

// Only the owner of a revision resizes its pods.
func TestAnotherReplicasPodsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		ctx, stop := context.WithCancel(t.Context())
		b := New(&Booster{Index: h, Kube: h.kube, MayWrite: func(loop.Key) bool { return false }, Log: slog.New(slog.DiscardHandler)})
		go func() { _ = b.Run(ctx) }()
		h.pass(time.Minute)
		if len(h.patches) != 0 {
			t.Errorf("%v were written", h.patches)
		}
		stop()
		synctest.Wait()
	})
}
