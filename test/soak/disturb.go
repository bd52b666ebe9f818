package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/result"
)

// service is one kind of load.
type service struct {
	name        string
	concurrency int
	query       string
	share       float64 // share of all requests
	// every, if set, is the time between two requests instead, so long that the pod sleeps.
	every time.Duration
	// annotations are more of the template's, each a line.
	annotations string
	// most limits the requests in flight to what one pod can queue, about ten times its
	// concurrency. With a target-burst-capacity of 0 no activator queues them, so after a pause of
	// any component the load must not exceed what one pod accepts, with the few of rude clients.
	most int
}

// services are the kinds of load: unlimited concurrency, a hard limit with slower requests, one
// request at a time, one at a time with spare pods that sleep, and a pod that sleeps between two
// requests.
var services = []service{
	{name: "free", concurrency: 0, query: "?sleep=5", share: 0.6, most: 500},
	{name: "limited", concurrency: 10, query: "?sleep=20", share: 0.3, most: 100},
	{name: "single", concurrency: 1, query: "?sleep=10", share: 0.05, most: 7},
	{name: "spare", concurrency: 1, query: "?sleep=10", share: 0.05, most: 7, annotations: `
        autoscaling.ebb.dev/standby: "2"
        autoscaling.ebb.dev/scale-buffer: "2"`},
	{name: "napping", concurrency: 0, query: "?sleep=5", every: 7 * time.Second, most: 10, annotations: `
        autoscaling.ebb.dev/standby: "1"`},
}

// interval is the time between two requests of a service.
func (s *soak) interval(v service) time.Duration {
	if v.every > 0 {
		return v.every
	}
	return time.Duration(float64(time.Second) / (float64(s.rps) * v.share))
}

// manifest is the Service with a new template, and with annotations of its own as a list in YAML.
func (s *soak) manifest(v service, annotations string) string {
	s.rollouts++
	return fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: %s
  annotations: {%s}
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/max-scale: "6"
        queue.sidecar.serving.knative.dev/cpu-resource-request: 10m%s
    spec:
      containerConcurrency: %d
      containers:
      - image: %s
        env:
        - name: TEXT
          value: rollout %d
`, v.name, annotations, v.annotations, v.concurrency, s.image, s.rollouts)
}

// settles is how long a change of a Service takes at most.
const settles = 3 * time.Minute

// apply applies the Service with a new template, so that each apply is a rollout, and waits until
// it is Ready.
func (s *soak) apply(ctx context.Context, v service) (url string, err error) {
	if err := s.Apply(ctx, s.Namespace, s.manifest(v, "")); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	return s.AwaitReady(ctx, s.Namespace, v.name)
}

// goBack begins a rollout that is judged, sends it back on the way, and rolls out the next
// template. The new revision fails nothing, so that every request that fails was lost by going
// back. What follows the word of a person is what follows a judge's verdict.
func (s *soak) goBack(ctx context.Context, v service) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	if err := s.Apply(ctx, s.Namespace, s.manifest(v, `serving.knative.dev/rollout-duration: 1m, serving.ebb.dev/rollout-guard: "on"`)); err != nil {
		return "", err
	}
	wentBack := func(route *unstructured.Unstructured) bool {
		all := cluster.Conditions(route)
		return all["AllTrafficAssigned"].Reason == servingv1.ReasonWentBack && all["IngressReady"].Status == "True"
	}
	route, err := s.Await(ctx, cluster.Routes, s.Namespace, v.name, func(route *unstructured.Unstructured) bool {
		traffic, _, _ := unstructured.NestedSlice(route.Object, "status", "traffic")
		return len(traffic) > 1 && cluster.Conditions(route)["IngressReady"].Reason == servingv1.ReasonRolloutInProgress || wentBack(route)
	})
	if err != nil {
		return "", err
	}
	detail := "its judge was first"
	if !wentBack(route) {
		// The status of the Service may be behind.
		traffic, _, _ := unstructured.NestedSlice(route.Object, "status", "traffic")
		last, _ := traffic[len(traffic)-1].(map[string]any)
		newest, _ := last["revisionName"].(string)
		detail = "from " + newest
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, names.RolloutOverruleAnnotation, names.Overrule{Revision: newest, Back: true})
		if _, err := s.Dynamic.Resource(cluster.Services).Namespace(s.Namespace).Patch(ctx, v.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return "", err
		}
		if _, err := s.Await(ctx, cluster.Routes, s.Namespace, v.name, wentBack); err != nil {
			return "", err
		}
	}
	_, err = s.apply(ctx, v)
	return detail, err
}

// disturb disturbs the services until the time is over and returns the number of disturbances. Each
// kind happens once before one is repeated, so a minute is enough for all kinds.
func (s *soak) disturb(ctx context.Context) (n int, err error) {
	kinds := []struct {
		name string
		do   func(context.Context, service) (detail string, err error)
	}{
		{"scale", s.scale},
		{"path", s.path},
		{"delete pod", s.deletePod},
		{"roll out", func(ctx context.Context, v service) (string, error) { _, err := s.apply(ctx, v); return "", err }},
		{"go back", s.goBack},
		{"delete activator", s.deleteActivator},
		{"delete agent", s.deleteAgent},
		{"freeze agent", s.freezeAgent},
	}
	end := time.Now().Add(s.lasts)
	for time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return n, context.Cause(ctx)
		case <-time.After(min(s.every, time.Until(end))):
		}
		if n%len(kinds) == 0 {
			s.random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		kind := kinds[n%len(kinds)]
		victim := services[s.random.IntN(len(services))]
		detail, err := kind.do(ctx, victim)
		if err != nil {
			return n, fmt.Errorf("%s %s: %w", kind.name, victim.name, err)
		}
		n++
		if err := s.out.Line(result.Fields{"at": time.Now().UTC().Format("15:04:05.000"), "disturbance": kind.name, "service": victim.name, "detail": detail}); err != nil {
			return n, err
		}
	}
	return n, nil
}

// freezeAgent freezes the node agent for three seconds. Its guard kills it meanwhile.
func (s *soak) freezeAgent(ctx context.Context, _ service) (string, error) {
	list, err := faults.Set{Cluster: s.Cluster, Namespace: s.Namespace, Longest: 3 * time.Second}.Choose("node-agent frozen")
	if err != nil {
		return "", err
	}
	if err = list[0].Do(ctx); errors.Is(err, faults.ErrNoProcess) {
		return "there was none", nil
	}
	return "", err
}

// deleteAgent deletes the node agent and its guard without a grace period.
func (s *soak) deleteAgent(ctx context.Context, _ service) (string, error) {
	return "", s.Kube.CoreV1().Pods(cluster.System).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
		metav1.ListOptions{LabelSelector: "app=node-agent"})
}

// annotate changes an annotation of the Service's latest Revision. It takes effect without a new
// revision.
func (s *soak) annotate(ctx context.Context, v service, key, value string) error {
	object, err := s.Get(ctx, cluster.Services, s.Namespace, v.name)
	if err != nil {
		return err
	}
	revision, _, _ := unstructured.NestedString(object.Object, "status", "latestReadyRevisionName")
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value)
	_, err = s.Dynamic.Resource(cluster.Revisions).Namespace(s.Namespace).Patch(ctx, revision, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (s *soak) scale(ctx context.Context, v service) (string, error) {
	least := fmt.Sprint(s.random.IntN(5))
	return "min-scale " + least, s.annotate(ctx, v, "autoscaling.knative.dev/min-scale", least)
}

// path moves the activator in and out of the request path.
func (s *soak) path(ctx context.Context, v service) (string, error) {
	capacity := []string{"0", "211", "-1"}[s.random.IntN(3)]
	return "target-burst-capacity " + capacity, s.annotate(ctx, v, "autoscaling.knative.dev/target-burst-capacity", capacity)
}

func (s *soak) deletePod(ctx context.Context, v service) (string, error) {
	pods, err := s.Pods(ctx, s.Namespace, v.name, false)
	if err != nil || len(pods) == 0 {
		return "there was no pod", err
	}
	pod := pods[s.random.IntN(len(pods))].Name
	return s.delete(ctx, s.Namespace, pod)
}

// deleteActivator deletes one activator as a user or a node drain does, with its grace period.
func (s *soak) deleteActivator(ctx context.Context, _ service) (string, error) {
	pods, err := s.Kube.CoreV1().Pods(cluster.System).List(ctx, metav1.ListOptions{LabelSelector: "app=" + s.Program("activator")})
	if err != nil {
		return "", err
	}
	if len(pods.Items) == 0 {
		return "", fmt.Errorf("namespace %s has no pod with the label app=%s", cluster.System, s.Program("activator"))
	}
	pod := pods.Items[s.random.IntN(len(pods.Items))].Name
	return s.delete(ctx, cluster.System, pod)
}

// delete deletes a pod that may already be gone.
func (s *soak) delete(ctx context.Context, namespace, pod string) (string, error) {
	err := s.Kube.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return pod + " was gone", nil
	}
	return pod, err
}
