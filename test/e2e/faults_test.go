//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/probe"
)

// "etcd restarted, the activator was killed, DNS was away, and my clients did not notice." Two
// services with two pods each, one behind the activator and one without it in the path, are under a
// light load while parts of the cluster break. docs/faults.md says what each fault may cost.
func TestWhatBreaksUnderLoadLosesNothing(t *testing.T) {
	s := beginAlone(t, 15*time.Minute)
	if !s.OneProcess() {
		s.scaleActivators(2)
	}
	urls := map[string]string{}
	for name, capacity := range map[string]string{"direct": "0", "behind": "-1"} {
		urls[name] = s.ready(name, service{name: name, annotations: map[string]string{"autoscaling.knative.dev/min-scale": "2",
			"autoscaling.knative.dev/target-burst-capacity": capacity}}.manifest())
	}
	s.awaitMode("direct", "Serve")
	s.awaitMode("behind", "Proxy")
	set := faults.Set{Cluster: s.Cluster, Namespace: s.namespace, Longest: 6 * time.Second}
	for _, fault := range set.All() {
		t.Run(fault.Name, func(t *testing.T) {
			probers := map[string]*probe.Prober{}
			for name, url := range urls {
				probers[name] = probe.StartOnce(s.client(), url, 50*time.Millisecond, 500, 1<<10)
			}
			refused := s.keepWriting()
			count, began := set.Watch(s.ctx, probers), time.Now()
			err := fault.Do(s.ctx)
			broken := time.Since(began)
			if err == nil {
				err = set.Recover(s.ctx)
			}
			whole := time.Since(began)
			reports, slowest := map[string]probe.Report{}, time.Duration(0)
			for name, prober := range probers {
				reports[name] = prober.StopAfter(s.ctx, 50)
				slowest = max(slowest, reports[name].Slowest.Took)
			}
			w := count()
			writes, failed := refused()
			t.Logf("broken for %.1f s, whole after %.1f s: %d of %d requests failed %v, longest gap %s, slowest %s, %.0f pod-seconds of wrong scale, %d of %d writes failed",
				broken.Seconds(), whole.Seconds(), w.Failed, w.Requests, w.ByStatus, w.Gap.Round(time.Millisecond),
				slowest.Round(time.Millisecond), w.WrongScale, failed, writes)
			if err != nil {
				t.Fatal(err)
			}
			// What one process has in hand at 40 requests a second is less than this.
			const inHand = 5
			for name, report := range reports {
				mayLose := fault.Loses != "" && (name == "behind" || !fault.Behind)
				if err := report.Err(50); err != nil && (!mayLose || !fault.Refused && report.Failed > inHand) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if fault.Name == "webhook certificate expired" && (failed > 0 || writes == 0) {
				t.Errorf("%d of %d writes failed", failed, writes)
			}
		})
	}
}

// keepWriting creates a Service in a dry run again and again, until the returned function is
// called, which returns how many writes there were and how many failed.
func (s *story) keepWriting() (stop func() (all, failed int)) {
	s.Helper()
	list, err := cluster.Decode(service{name: "never"}.manifest())
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	var done sync.WaitGroup
	all, failed := 0, 0
	done.Go(func() {
		for ctx.Err() == nil {
			limited, end := context.WithTimeout(s.ctx, 5*time.Second)
			_, err := s.Dynamic.Resource(cluster.Services).Namespace(s.namespace).Create(limited, list[0].DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			end()
			all++
			if err != nil {
				failed++
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return func() (int, int) {
		cancel()
		done.Wait()
		return all, failed
	}
}

var away = flag.Duration("away", 20*time.Second, "how long the API server is away in TestARequestAtZeroIsAnsweredWhenTheAPIServerIsBack")

// "I called my idle service during an outage of the API server." The request waits. Ebb asks for a
// pod within a second after the API server is back, and answers within 2 s of the moment at which a
// plain pod is ready that was asked for at the same time. Kubernetes' own controllers and the
// kubelet may take a minute to watch again.
func TestARequestAtZeroIsAnsweredWhenTheAPIServerIsBack(t *testing.T) {
	s := beginAlone(t, *away+5*time.Minute)
	// Short leases, which are lost within the outage.
	s.config("config-leader-election", map[string]string{"lease-duration": "15s", "renew-deadline": "10s", "retry-period": "8s"})
	s.plainDeployment()
	url := s.readyAtZero("cold", service{name: "cold"}.manifest())
	s.until("the plain pod is gone", func() (bool, string, error) {
		pods, err := s.Kube.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "app=plain"})
		return err == nil && len(pods.Items) == 0, "", nil
	})
	outage := faults.Set{Cluster: s.Cluster, Namespace: s.namespace, Longest: *away}
	list, err := outage.Choose("API server away")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		if err := list[0].Do(s.ctx); err != nil {
			t.Error(err)
		}
	})
	answers := func() bool {
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		return s.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	}
	s.until("the API server is away", func() (bool, string, error) { return !answers(), "", nil })
	select { // a request does not wait for longer than the revision's timeout, 5 minutes
	case <-time.After(*away - min(*away, time.Minute)):
	case <-s.ctx.Done():
	}
	var reply probe.Reply
	var answered time.Time
	sent := time.Now()
	all.Go(func() {
		client := s.Client(*away + 4*time.Minute)
		defer client.CloseIdleConnections()
		reply = probe.Get(s.ctx, client, url)
		answered = time.Now()
	})
	s.until("the API server is back", func() (bool, string, error) { return answers(), "", nil })
	back := time.Now()
	s.until("the plain Deployment is scaled up", func() (bool, string, error) {
		_, err := s.Kube.AppsV1().Deployments(s.namespace).Patch(s.ctx, "plain", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{}, "scale")
		return err == nil, fmt.Sprint(err), nil
	})
	if err := s.AwaitDeployment(s.ctx, s.namespace, "plain"); err != nil {
		t.Fatal(err)
	}
	plain := time.Since(back)
	all.Wait()
	if reply.Status != http.StatusOK {
		t.Fatal(reply)
	}
	scaled := s.scaledAfter(sent).Sub(back.Truncate(time.Second))
	t.Logf("after the API server was away for %s: the scale was written %s after its return, the request at zero answered after %s, a plain pod ready after %s",
		*away, scaled, answered.Sub(back).Round(10*time.Millisecond), plain.Round(10*time.Millisecond))
	// Ten times the goals.
	if scaled > 10*time.Second {
		t.Errorf("the scale was written %s after the API server was back", scaled)
	}
	if late := answered.Sub(back) - plain; late > 20*time.Second {
		t.Errorf("the request was answered %s later than the plain pod was ready", late)
	}
	if err := outage.Recover(s.ctx); err != nil {
		t.Error(err)
	}
}

// plainDeployment creates a Deployment with the test image and no pod, which has nothing to do with
// Ebb. It was at one pod before, as the service was.
func (s *story) plainDeployment() {
	s.Helper()
	labels := map[string]string{"app": "plain"}
	_, err := s.Kube.AppsV1().Deployments(s.namespace).Create(s.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "plain"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "plain", Image: testImage, Env: []corev1.EnvVar{{Name: "PORT", Value: "8080"}}}}}}}}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// scaledAfter returns when Ebb wrote a higher scale, as its event says in whole seconds: the first
// time after since.
func (s *story) scaledAfter(since time.Time) (at time.Time) {
	s.Helper()
	s.until("an event tells of the scale", func() (bool, string, error) {
		events, err := s.Kube.CoreV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "reason=ScaledUp"})
		if err != nil {
			return false, err.Error(), nil
		}
		for _, e := range events.Items {
			if at = e.LastTimestamp.Time; !at.Before(since.Truncate(time.Second)) {
				return true, "", nil
			}
		}
		return false, fmt.Sprintf("%d events", len(events.Items)), nil
	})
	return at
}
