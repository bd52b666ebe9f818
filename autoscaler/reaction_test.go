package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	ebbfake "ebb.dev/ebb/api/client/versioned/fake"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/act"
	"ebb.dev/ebb/autoscaler/internal/ingest"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/spec"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// sleepy is a cluster with one revision of so many ready pods, each of which is at work on one request.
type sleepy int32

func (s sleepy) Count(loop.Key) loop.Counts { return loop.Counts{Ready: int32(s)} }
func (s sleepy) Scrape(_ loop.Key, _ time.Duration, done func(loop.Scrape)) {
	go done(loop.Scrape{Report: decide.Report{Concurrency: float64(s)}})
}
func (s sleepy) Probe(_ loop.Key, _ bool, done func(zero.Probe)) { go done(zero.ProbedActivator) }

// reaction is the real time from an activator's POST that tells of queued requests to the scale write it leads to: through the
// endpoint for stats, the loop and the writer, as main puts them together, to an API server in memory.
func reaction(t *testing.T, ready int32, queued float64) time.Duration {
	t.Helper()
	const revision = "hello-00001"
	tokens := []byte("0123456789abcdef0123456789abcdef")
	pa := &v1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: revision, UID: "u1", Annotations: map[string]string{names.TargetAnnotation: "1"}},
		Spec: v1alpha1.PodAutoscalerSpec{ContainerConcurrency: 1,
			ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: revision + "-deployment"}},
		Status: v1alpha1.PodAutoscalerStatus{DesiredScale: &ready, Mode: v1alpha1.ModeProxy},
	}
	pa.Status.InitializeConditions()
	pa.Status.MarkScaleTargetInitialized()
	if ready > 0 {
		pa.Status.MarkActive()
	} else {
		pa.Status.MarkInactive(zero.NoTraffic, "")
	}
	get := func(_, _ string) *v1alpha1.PodAutoscaler { return pa }

	written := make(chan int32, 100)
	kube := fake.NewClientset()
	kube.PrependReactor("patch", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
		var patch []struct{ Value int32 }
		if err := json.Unmarshal(a.(clienttesting.PatchAction).GetPatch(), &patch); err != nil || len(patch) != 1 {
			t.Errorf("patch %s: %v", a.(clienttesting.PatchAction).GetPatch(), err)
			return true, &appsv1.Deployment{}, nil
		}
		select {
		case written <- patch[0].Value:
		default:
		}
		return true, &appsv1.Deployment{}, nil
	})
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	clock := loop.Monotonic()
	writer := act.New(kube, ebbfake.NewSimpleClientset(pa).AutoscalingV1alpha1(), get, nil, &record.FakeRecorder{}, log)
	writer.Clock = clock
	pods := sleepy(ready)
	engine := loop.New(loop.Options{Shards: 4, Clock: clock, Log: log, Pods: pods, Actor: writer, Scraper: pods, Prober: pods, Budget: loop.NewBudget(),
		Source: &spec.Source{Get: get, Settings: settings.NewStore(nil), Owns: func(loop.Key) bool { return true }, Log: log}})
	stats := &ingest.Server{Key: func() []byte { return tokens }, Reporter: engine, Clock: clock}
	ctx, cancel := context.WithCancel(t.Context())
	wrote, decided := make(chan struct{}), make(chan struct{})
	go func() { writer.Run(ctx); close(wrote) }()
	go func() { engine.Run(ctx); close(decided) }()
	defer func() { cancel(); <-wrote; <-decided }()
	key := loop.Key{Namespace: "default", Name: revision}
	engine.Changed(key)
	engine.Settle(30 * time.Second) // adopted
	engine.Settle(30 * time.Second) // and looked at for the first time

	body := wire.EncodeStats([]wire.StatMessage{{Namespace: key.Namespace, Revision: key.Name,
		Stat: wire.Stat{PodName: "activator-1", Queued: queued, AverageConcurrent: queued, OutOfTurn: true}}})
	request := httptest.NewRequest(http.MethodPost, wire.PathStats, bytes.NewReader(body))
	request.Header.Set("Authorization", wire.Bearer(wire.Token(tokens, "", wire.ActivatorSubject)))
	answer := httptest.NewRecorder()
	began := time.Now()
	stats.ServeHTTP(answer, request)
	if answer.Code != http.StatusNoContent {
		t.Fatalf("the stat was answered with %d %s", answer.Code, answer.Body)
	}
	for patience := time.After(30 * time.Second); ; {
		select {
		case scale := <-written:
			if scale > ready {
				return time.Since(began)
			}
		case <-patience:
			t.Fatalf("no more than %d pods were asked for in 30 s", ready)
		}
	}
}

// A queue is an event: neither the tick of two seconds nor the scrape of one is waited for. Each try begins right after a tick, so what
// waits for the next is too slow in every one of them. The bounds are ten times those of docs/autoscaling.md and it is enough to keep them
// once, because the machine that tests may be busy with a hundred other things.
func TestAQueueIsAnsweredInRealTimeWithoutWaitingForATick(t *testing.T) {
	for _, c := range []struct {
		behaviour string
		ready     int32
		queued    float64
		within    time.Duration
	}{
		{"the first request at zero", 0, 1, 200 * time.Millisecond},
		{"a burst on one pod that takes one request at a time", 1, 20, time.Second},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			var took []time.Duration
			for range 20 {
				took = append(took, reaction(t, c.ready, c.queued))
				if took[len(took)-1] <= c.within {
					return
				}
			}
			t.Errorf("the scale was written after %s, want at most %s", took, c.within)
		})
	}
}
