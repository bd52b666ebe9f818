package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/wire"
)

const namespace = "knative-serving"

var tokenKey = []byte("0123456789abcdef0123456789abcdef")

// perPod is the load of each pod: below the target of 70, but too much for one pod fewer.
const perPod = 60

// world is the fake API server and the fake pods.
type world struct {
	revisions, pods, scraped int
	// profiling is "enabled" or "disabled".
	profiling string

	writes, statuses atomic.Int64

	mutex  sync.Mutex
	leases map[string]*coordinationv1.Lease
}

func newWorld(b *bench) *world {
	profiling := "disabled"
	if b.profile != "" {
		profiling = "enabled"
	}
	return &world{revisions: b.revisions, pods: b.pods, scraped: min(b.scraped, b.revisions), profiling: profiling, leases: map[string]*coordinationv1.Lease{}}
}

// ServeHTTP answers the few requests that the autoscaler makes.
func (w *world) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	switch {
	case r.URL.Query().Get("sendInitialEvents") == "true":
		fail(out, http.StatusUnprocessableEntity, "Invalid") // the client lists instead
	case r.URL.Query().Get("watch") == "true":
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusOK)
		http.NewResponseController(out).Flush()
		<-r.Context().Done() // nothing changes
	case strings.Contains(path, "/leases"):
		w.lease(out, r)
	case r.Method == http.MethodPatch && strings.HasSuffix(path, "/scale"):
		w.writes.Add(1)
		answer(out, map[string]any{"kind": "Scale", "apiVersion": "autoscaling/v1"})
	case r.Method == http.MethodPatch && strings.HasSuffix(path, "/status"):
		w.statuses.Add(1)
		answer(out, map[string]any{"kind": "PodAutoscaler", "apiVersion": "autoscaling.internal.knative.dev/v1alpha1"})
	case r.Method == http.MethodPost:
		out.WriteHeader(http.StatusCreated) // events
		io.WriteString(out, `{"kind":"Event","apiVersion":"v1"}`)
	case r.Method != http.MethodGet:
		fail(out, http.StatusMethodNotAllowed, "MethodNotAllowed")
	case strings.HasSuffix(path, "/podautoscalers"):
		w.list(out, "PodAutoscalerList", "autoscaling.internal.knative.dev/v1alpha1", w.revisions, func(i int) any { return w.autoscaler(i) })
	case path == "/api/v1/pods":
		w.list(out, "PodList", "v1", w.revisions*w.pods, func(i int) any { return w.pod(i/w.pods, i%w.pods) })
	case strings.HasSuffix(path, "/secrets"):
		w.list(out, "SecretList", "v1", 1, func(int) any {
			return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: wire.TokenSecret}, Data: map[string][]byte{wire.TokenSecretKey: tokenKey}}
		})
	case strings.HasSuffix(path, "/configmaps"):
		w.list(out, "ConfigMapList", "v1", 1, func(int) any {
			return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "config-observability"}, Data: map[string]string{"runtime-profiling": w.profiling}}
		})
	default:
		fail(out, http.StatusNotFound, "NotFound")
	}
}

func answer(out http.ResponseWriter, body any) {
	out.Header().Set("Content-Type", "application/json")
	json.NewEncoder(out).Encode(body)
}

func fail(out http.ResponseWriter, code int, reason string) {
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(code)
	json.NewEncoder(out).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: metav1.StatusReason(reason)})
}

func (w *world) list(out http.ResponseWriter, kind, version string, n int, item func(int) any) {
	out.Header().Set("Content-Type", "application/json")
	buffered := bufio.NewWriterSize(out, 64<<10)
	defer buffered.Flush()
	fmt.Fprintf(buffered, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[`, kind, version)
	encoder := json.NewEncoder(buffered)
	for i := range n {
		if i > 0 {
			buffered.WriteByte(',')
		}
		encoder.Encode(item(i))
	}
	buffered.WriteString("]}")
}

func (w *world) autoscaler(i int) v1alpha1.PodAutoscaler {
	name, desired := revision(i), int32(w.pods)
	pa := v1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name, UID: types.UID(name), Generation: 1, ResourceVersion: "1",
			Labels: map[string]string{names.ServiceLabel: name, names.ConfigurationLabel: name, names.RevisionLabel: name, "app": name}, Annotations: map[string]string{}},
		Spec: v1alpha1.PodAutoscalerSpec{ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name + "-deployment"}, ProtocolType: v1alpha1.ProtocolHTTP1},
	}
	if i >= w.scraped {
		// All of the load passes activators, so the pods are not scraped.
		pa.Annotations[names.TargetBurstCapacityAnnotation] = "-1"
	}
	pa.Status = v1alpha1.PodAutoscalerStatus{Status: duckv1.Status{ObservedGeneration: 1}, ServiceName: name, MetricsServiceName: name + "-private", DesiredScale: &desired, ActualScale: &desired}
	pa.Status.InitializeConditions()
	pa.Status.MarkActive()
	pa.Status.MarkScaleTargetInitialized()
	pa.Status.MarkSKSReady()
	return pa
}

func (w *world) pod(revisionNumber, i int) corev1.Pod {
	name := revision(revisionNumber)
	started := metav1.NewTime(time.Now().Add(-time.Hour))
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: podName(revisionNumber, i), ResourceVersion: "1",
			Labels: map[string]string{names.RevisionLabel: name, names.ServiceLabel: name, names.ConfigurationLabel: name, "app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "user-container", Image: "registry.example/hello@sha256:0"}, {Name: "queue-proxy", Image: "queue-proxy"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address(revisionNumber*w.pods + i), StartTime: &started,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// lease stores what is written, which is enough for one candidate.
func (w *world) lease(out http.ResponseWriter, r *http.Request) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch r.Method {
	case http.MethodGet:
		if strings.HasSuffix(r.URL.Path, "/leases") {
			all := slices.Collect(maps.Values(w.leases))
			w.list(out, "LeaseList", "coordination.k8s.io/v1", len(all), func(i int) any { return all[i] })
			return
		}
		if lease, ok := w.leases[r.URL.Path]; ok {
			answer(out, lease)
			return
		}
		fail(out, http.StatusNotFound, "NotFound")
	case http.MethodPost, http.MethodPut:
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			fail(out, http.StatusBadRequest, "BadRequest")
			return
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		lease, ok := object.(*coordinationv1.Lease)
		if err != nil || !ok {
			fail(out, http.StatusBadRequest, "BadRequest")
			return
		}
		lease.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
		lease.ResourceVersion = "1"
		path := r.URL.Path
		if r.Method == http.MethodPost {
			path += "/" + lease.Name
		}
		w.leases[path] = lease
		answer(out, lease)
	}
}
