package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

// sleeper is a service with one pod that sleeps between requests.
type sleeper struct {
	name, url, pod, node string
	client               *http.Client
	woke                 time.Time
}

// apply makes a service with a window of six seconds and one more annotation, and waits until it is
// Ready.
func (b *bench) apply(ctx context.Context, name, image, annotation string) (*sleeper, error) {
	err := b.Apply(ctx, b.namespace, fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: %s
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/window: 6s
        %s
    spec:
      containers:
      - image: %s
`, name, annotation, image))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	s := &sleeper{name: name, client: b.Client(time.Minute), woke: time.Now()}
	if s.url, err = b.AwaitReady(ctx, b.namespace, name); err != nil {
		return nil, err
	}
	pods, err := b.Pods(ctx, b.namespace, name, false)
	if err != nil {
		return nil, err
	}
	if len(pods) > 0 {
		s.pod, s.node = pods[0].Name, pods[0].Spec.NodeName
	}
	return s, nil
}

func (b *bench) delete(ctx context.Context, s *sleeper) error {
	s.client.CloseIdleConnections()
	if err := b.Dynamic.Resource(cluster.Services).Namespace(b.namespace).Delete(ctx, s.name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete %s: %w", s.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return b.AwaitNoPods(ctx, b.namespace, s.name)
}

// asleep is how many pods of a service sleep, and how many are ready.
func (b *bench) asleep(ctx context.Context, service string) (asleep, ready int64, err error) {
	list, err := b.Dynamic.Resource(cluster.PodAutoscalers).Namespace(b.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + service})
	if err != nil {
		return 0, 0, fmt.Errorf("list PodAutoscalers of %s: %w", service, err)
	}
	if len(list.Items) == 0 {
		return 0, 0, fmt.Errorf("%s has no PodAutoscaler", service)
	}
	status := list.Items[0].Object
	asleep, _, _ = unstructured.NestedInt64(status, "status", "asleepReplicas")
	ready, _, _ = unstructured.NestedInt64(status, "status", "actualScale")
	return asleep, ready, nil
}

// depth is how deeply a pod says that it sleeps, as wire.Stat has it. One that rests says 1.
type depth uint8

const (
	frozen     depth = 2
	compressed depth = 3
)

func (d depth) String() string {
	return [...]string{"awake", "warm", "frozen", "compressed"}[min(d, compressed)]
}

const (
	// freshAfter is how long after its last request a pod is asked for its state: queue-proxy
	// answers with what it noted at its last full second.
	freshAfter = 2 * time.Second
	// quiet is how long a pod is left alone between that question and the wake.
	quiet = 200 * time.Millisecond
)

// awaitAsleep waits until the only pod of a service sleeps at least as deeply as want, and has had
// so much time for it. The PodAutoscaler counts a pod as asleep from the order on. queue-proxy
// itself says when the pod is frozen: until then it rests for some seconds, and a request to a pod
// that rests is no wake.
func (b *bench) awaitAsleep(ctx context.Context, s *sleeper, want depth, atLeast time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	err := cluster.Until(waiting, func() (bool, string, error) {
		asleep, ready, err := b.asleep(waiting, s.name)
		if err != nil {
			return false, err.Error(), nil
		}
		if asleep != 1 || ready != 0 || time.Since(s.woke) < max(atLeast, freshAfter) {
			return false, fmt.Sprintf("%s: %d asleep, %d ready", s.name, asleep, ready), nil
		}
		is, err := b.depth(waiting, s)
		if err != nil {
			return false, err.Error(), nil
		}
		return is >= want, fmt.Sprintf("%s: asleep, and its pod says %s; want %s, which needs swap for compressed", s.name, is, want), nil
	})
	if err != nil {
		return err
	}
	return cluster.Pause(ctx, quiet)
}

// depth asks the queue-proxy of a pod how deeply it sleeps.
func (b *bench) depth(ctx context.Context, s *sleeper) (depth, error) {
	text, err := b.Kube.CoreV1().RESTClient().Get().Namespace(b.namespace).Resource("pods").Name(fmt.Sprintf("%s:%d", s.pod, wire.PortMetrics)).
		SubResource("proxy").Suffix(strings.TrimPrefix(wire.PathMetrics, "/")).DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask pod %s how it sleeps: %w", s.pod, err)
	}
	stat, err := wire.DecodeStat(s.pod, text)
	if err != nil {
		return 0, fmt.Errorf("read how pod %s sleeps: %w", s.pod, err)
	}
	return depth(stat.Asleep), nil
}

// request sends one request and returns how long it took, in milliseconds. One that fails is lost.
func (b *bench) request(ctx context.Context, s *sleeper) (float64, error) {
	reply, err := b.ask(ctx, s)
	return result.Milliseconds(reply.Took), err
}

func (b *bench) ask(ctx context.Context, s *sleeper) (probe.Reply, error) {
	reply := probe.Get(ctx, s.client, s.url)
	if !reply.OK() {
		b.lost.Add(1)
		if b.lost.Load() > 10 {
			return reply, fmt.Errorf("too many requests are lost, the last one: %s", reply)
		}
	}
	return reply, nil
}

// samePod checks that a service still has its first pod, with containers that did not restart.
func (b *bench) samePod(ctx context.Context, s *sleeper) error {
	pods, err := b.Pods(ctx, b.namespace, s.name, true)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		for _, status := range pod.Status.ContainerStatuses {
			if pod.Name != s.pod || status.RestartCount > 0 {
				return fmt.Errorf("%s: pod %s has a container %s with %d restarts, the first pod was %s", s.name, pod.Name, status.Name, status.RestartCount, s.pod)
			}
		}
	}
	return nil
}

// measureCold measures requests to a service whose pods are deleted between them.
func (b *bench) measureCold(ctx context.Context, language string) ([]float64, error) {
	s, err := b.apply(ctx, language+"-cold", images[language], `autoscaling.ebb.dev/standby: "off"`)
	if err != nil {
		return nil, err
	}
	var took []float64
	for range b.cold {
		waiting, cancel := context.WithTimeout(ctx, 3*time.Minute)
		err := b.AwaitNoPods(waiting, b.namespace, s.name)
		cancel()
		if err != nil {
			return nil, err
		}
		one, err := b.request(ctx, s)
		if err != nil {
			return nil, err
		}
		took = append(took, one)
	}
	return took, b.delete(ctx, s)
}

const (
	// spares is how many pods sleep before the burst. With the one that is awake they are ten.
	spares = 9
	// busy is how long a request of the burst takes, so that each needs a pod of its own.
	busy = "1000"
)

// burst returns the seconds from ten requests at once until ten pods have answered the first of
// theirs. Each pod takes one request at a time. How long a request takes by itself is left out.
func (b *bench) burst(ctx context.Context) (float64, error) {
	err := b.Apply(ctx, b.namespace, fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: burst
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/window: 6s
        autoscaling.knative.dev/min-scale: "1"
        autoscaling.knative.dev/initial-scale: "%d"
        autoscaling.ebb.dev/standby: "%d"
    spec:
      containerConcurrency: 1
      containers:
      - image: dev.local/ebb-test/autoscale:dev
`, spares+1, spares))
	if err != nil {
		return 0, err
	}
	waiting, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	url, err := b.AwaitReady(waiting, b.namespace, "burst")
	if err != nil {
		return 0, err
	}
	if err := cluster.Until(waiting, func() (bool, string, error) {
		asleep, ready, err := b.asleep(ctx, "burst")
		if err != nil {
			return false, err.Error(), nil
		}
		return asleep == spares && ready == 1, fmt.Sprintf("burst: %d asleep, %d ready", asleep, ready), nil
	}); err != nil {
		return 0, err
	}
	client := b.Client(time.Minute)
	defer client.CloseIdleConnections()
	var mutex sync.Mutex
	var all sync.WaitGroup
	pods, last := map[string]bool{}, 0.0
	begun := time.Now()
	for range spares + 1 {
		all.Go(func() {
			reply := probe.Get(ctx, client, url+"?sleep="+busy)
			mutex.Lock()
			defer mutex.Unlock()
			if !reply.OK() {
				b.lost.Add(1)
			}
			pods[reply.Header.Get("X-Pod-Name")] = true
			last = max(last, time.Since(begun).Seconds())
		})
	}
	all.Wait()
	if err := b.out.Line(result.Fields{"burst_pods": len(pods), "burst_last_answer_s": last}); err != nil {
		return 0, err
	}
	return last - 1, nil
}
