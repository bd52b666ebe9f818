package process

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
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
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

const revisionName = "hello-00001"

// sleepy is a cluster with one revision of so many ready pods, each of which is at work on one
// request, and others of three pods with two.
type sleepy int32

func (s sleepy) Count(k loop.Key) revision.Counts {
	if k.Name == revisionName {
		return revision.Counts{Ready: int32(s)}
	}
	return revision.Counts{Ready: 3}
}
func (s sleepy) Scrape(k loop.Key, _ time.Duration, done func(revision.Scrape)) {
	load := 2.0
	if k.Name == revisionName {
		load = float64(s)
	}
	go done(revision.Scrape{Report: decide.Report{Concurrency: load}})
}
func (s sleepy) Probe(_ loop.Key, _ bool, done func(zero.Probe)) { go done(zero.ProbedActivator) }

func podAutoscaler(name string, ready int32) *v1alpha1.PodAutoscaler {
	pa := &v1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Annotations: map[string]string{names.TargetAnnotation: "1"}},
		Spec: v1alpha1.PodAutoscalerSpec{ContainerConcurrency: 1,
			ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name + "-deployment"}},
		Status: v1alpha1.PodAutoscalerStatus{DesiredScale: &ready, Mode: v1alpha1.ModeProxy},
	}
	pa.Status.InitializeConditions()
	pa.Status.MarkScaleTargetInitialized()
	if ready > 0 {
		pa.Status.MarkActive()
	} else {
		pa.Status.MarkInactive(zero.NoTraffic, "")
	}
	return pa
}

// countStalls adds up for how long the machine keeps this process from running, until ctx ends.
func countStalls(ctx context.Context, stalled *atomic.Int64) {
	const pause = time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(pause)
		if late := time.Since(began) - pause; late > pause {
			stalled.Add(int64(late))
		}
	}
}

// reaction is the real time from an activator's POST that tells of queued requests to the scale
// write it leads to: through the endpoint for stats, the loop and the writer, as main puts them
// together, to an API server in memory. So many other services are awake; the moment before, each
// of them is said to have so many requests, where it has pods for three. The time in which the
// machine did other things does not count.
func reaction(t *testing.T, ready int32, queued float64, others int, load float64) time.Duration {
	t.Helper()
	tokens := []byte("0123456789abcdef0123456789abcdef")
	all := map[string]*v1alpha1.PodAutoscaler{revisionName: podAutoscaler(revisionName, ready)}
	var first []wire.StatMessage
	for i := range others {
		name := fmt.Sprintf("other-%05d", i)
		all[name] = podAutoscaler(name, 3)
		first = append(first, wire.StatMessage{Namespace: "default", Revision: name, Stat: wire.Stat{PodName: "activator-1", AverageConcurrent: load, OutOfTurn: load > 3}})
	}
	get := func(_, name string) *v1alpha1.PodAutoscaler { return all[name] }

	written := make(chan int32, 100)
	kube := fake.NewClientset()
	kube.PrependReactor("patch", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
		var patch []struct{ Value int32 } // a test, and then the scale
		if err := json.Unmarshal(a.(clienttesting.PatchAction).GetPatch(), &patch); err != nil || len(patch) != 2 {
			t.Errorf("patch %s: %v", a.(clienttesting.PatchAction).GetPatch(), err)
			return true, &appsv1.Deployment{}, nil
		}
		if a.(clienttesting.PatchAction).GetName() != revisionName+"-deployment" {
			return true, &appsv1.Deployment{}, nil
		}
		select {
		case written <- patch[1].Value:
		default:
		}
		return true, &appsv1.Deployment{}, nil
	})
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	clock := loop.Monotonic()
	writer := act.New(kube, ebbfake.NewSimpleClientset(all[revisionName]).AutoscalingV1alpha1(), get, everything{}, nil, &record.FakeRecorder{}, log)
	writer.Clock = clock
	pods := sleepy(ready)
	engine := loop.New(loop.Options{Shards: 4, Clock: clock, Log: log, Pods: pods, Actor: writer, Scraper: pods, Prober: pods, Budget: &revision.Budget{},
		Source: &spec.Source{Get: get, Settings: settings.NewStore(nil), Owns: func(loop.Key) bool { return true }, Log: log}})
	stats := &ingest.Server{Keys: func() wire.Keys { return wire.Keys{Current: tokens, Accepted: [][]byte{tokens}} }, Reporter: engine, Clock: clock}
	ctx, cancel := context.WithCancel(t.Context())
	wrote, decided := make(chan struct{}), make(chan struct{})
	go func() { writer.Run(ctx, engine.Found); close(wrote) }()
	go func() { engine.Run(ctx); close(decided) }()
	defer func() { cancel(); <-wrote; <-decided }()
	for name := range all {
		engine.Changed(loop.Key{Namespace: "default", Name: name})
	}
	engine.Settle(30 * time.Second) // adopted
	engine.Settle(30 * time.Second) // and looked at for the first time

	post := func(messages ...wire.StatMessage) {
		t.Helper()
		body := wire.EncodeStats(messages)
		request := httptest.NewRequest(http.MethodPost, wire.PathStats, bytes.NewReader(body))
		request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		if err := new(wire.Signer).Sign(request, activatorToken()); err != nil {
			t.Fatal(err)
		}
		answer := httptest.NewRecorder()
		if stats.ServeHTTP(answer, request); answer.Code != http.StatusNoContent {
			t.Fatalf("the stats were answered with %d %s", answer.Code, answer.Body)
		}
	}
	if others > 0 {
		post(first...)
	}
	var stalled atomic.Int64
	go countStalls(ctx, &stalled)
	began := time.Now()
	post(wire.StatMessage{Namespace: "default", Revision: revisionName, Stat: wire.Stat{PodName: "activator-1", Queued: queued, AverageConcurrent: queued, OutOfTurn: true}})
	for patience := time.After(2 * time.Minute); ; {
		select {
		case scale := <-written:
			if scale > ready && float64(scale) > queued { // more than what the pods alone ask for
				took := time.Since(began)
				time.Sleep(5 * time.Millisecond) // the last stall may not have been counted yet
				return took - time.Duration(stalled.Load())
			}
		case <-patience:
			t.Fatalf("no more than %v pods were asked for in two minutes", max(float64(ready), queued))
		}
	}
}

// A queue is an event: neither the tick of two seconds nor the scrape of one is waited for. Each
// try begins right after a tick, so what waits for the next is too slow in every one of them. The
// bounds are ten times those of docs/autoscaling.md, more where all burst at once, and it is enough
// to keep them once, because the machine that tests may be busy with a hundred other things.
func TestAQueueIsAnsweredInRealTimeWithoutWaitingForATick(t *testing.T) {
	for _, c := range []struct {
		behaviour string
		ready     int32
		queued    float64
		others    int
		load      float64 // of each
		within    time.Duration
	}{
		{"the first request at zero", 0, 1, 0, 0, 200 * time.Millisecond},
		{"a burst on one pod that takes one request at a time", 1, 20, 0, 0, time.Second},
		{"the first request at zero while a thousand others are awake", 0, 1, 1000, 2, 200 * time.Millisecond},
		{"a burst on one pod while a thousand others are awake", 1, 20, 1000, 2, time.Second},
		{"the first request at zero while a thousand others burst", 0, 1, 1000, 30, time.Second},
		{"a burst on one pod while a thousand others burst", 1, 20, 1000, 30, 2 * time.Second},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			var took []time.Duration
			for range 20 {
				took = append(took, reaction(t, c.ready, c.queued, c.others, c.load))
				t.Logf("%s", took[len(took)-1])
				if took[len(took)-1] <= c.within {
					return
				}
			}
			t.Errorf("the scale was written after %s, want at most %s", took, c.within)
		})
	}
}

// No limit of the client's own stands between an order and its write.
func TestScalesAreWrittenWithoutALimitOfTheClient(t *testing.T) {
	limited := &rest.Config{Host: "http://192.0.2.1", QPS: 1, Burst: 1}
	for name, c := range map[string]struct {
		config *rest.Config
		want   bool
	}{"everything else": {limited, true}, "scales": {unlimited(limited), false}} {
		kube, err := kubernetes.NewForConfig(c.config)
		if err != nil {
			t.Fatal(err)
		}
		if got := kube.AppsV1().RESTClient().GetRateLimiter() != nil; got != c.want {
			t.Errorf("%s: limited is %v, want %v", name, got, c.want)
		}
	}
}

// everything is owned.
type everything struct{}

func (everything) Owns(loop.Key) bool     { return true }
func (everything) MayWrite(loop.Key) bool { return true }
