//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// "The autoscaler that decided for my service was killed under load." No request fails, no pod that
// the load needs is removed, and the replica that takes over follows growing load.
func TestKillingTheLeadingAutoscalerUnderLoadLosesNothing(t *testing.T) {
	s := beginAlone(t, 5*time.Minute)
	s.needsAProcessOfEach()
	s.scaleAutoscalers(2)
	const pods = 3
	const deployment = "led-00001-deployment"
	url := s.ready("led", service{name: "led", concurrency: 2, annotations: map[string]string{
		"autoscaling.knative.dev/target-utilization-percentage": "100",
		"autoscaling.knative.dev/max-scale":                     "8",
		"autoscaling.knative.dev/window":                        "12s",
	}}.manifest())
	load := s.keepInFlight(url + "?sleep=400")
	defer load.stop()
	load.add(2 * pods)
	s.until("the load has enough pods", func() (bool, string, error) {
		ready, err := s.readyPods("led")
		if err != nil {
			return false, err.Error(), nil
		}
		return ready >= pods, fmt.Sprintf("%d pods are ready", ready), nil
	})

	leader := s.leadingAutoscaler()
	at := int64(0)
	if err := s.Kube.CoreV1().Pods(cluster.System).Delete(s.ctx, leader, metav1.DeleteOptions{GracePeriodSeconds: &at}); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	lowest := s.watchLowestScale(deployment)
	s.until("another autoscaler leads", func() (bool, string, error) {
		now, err := s.leader()
		return err == nil && now != "" && now != leader, fmt.Sprintf("the leader is %s, %v", now, err), nil
	})
	led := time.Since(killed)
	load.add(2 * pods)
	s.awaitScale("the new leader follows the growing load", deployment, 2*pods)
	right := time.Since(killed)
	t.Logf("%s after the leader was killed another autoscaler led, and after %s it wanted twice as many pods",
		led.Round(10*time.Millisecond), right.Round(10*time.Millisecond))
	// The goal is five seconds. Ten times that is less than the lease duration, so a new leader
	// that waits for the lease to expire fails here.
	if right > 50*time.Second {
		t.Errorf("the scale was right only %s after the leader was killed", right)
	}
	// After this the new leader has decided for a whole stable window and depends on no state of
	// the old one.
	select {
	case <-time.After(14 * time.Second):
	case <-s.ctx.Done():
	}
	if lowest := lowest(); lowest < pods {
		t.Errorf("the scale fell to %d under a load that needs %d pods", lowest, pods)
	}
	s.awaitScale("the scale matches the load", deployment, 2*pods)
	if answered := load.stop(); answered < 4*pods {
		t.Errorf("only %d requests were answered", answered)
	}
}

// inFlight is a closed loop of requests. A request that fails fails the test.
type inFlight struct {
	s        *story
	client   *http.Client
	url      string
	ctx      context.Context
	cancel   context.CancelFunc
	users    sync.WaitGroup
	answered atomic.Int64
}

func (s *story) keepInFlight(url string) *inFlight {
	l := &inFlight{s: s, client: s.client(), url: url}
	l.ctx, l.cancel = context.WithCancel(s.ctx)
	return l
}

// add keeps n more requests in flight.
func (l *inFlight) add(n int) {
	for range n {
		l.users.Go(func() {
			for l.ctx.Err() == nil {
				if reply := probe.Get(l.s.ctx, l.client, l.url); !reply.OK() {
					l.s.Error(reply)
					return
				}
				l.answered.Add(1)
			}
		})
	}
}

// stop waits for the requests in flight and returns how many were answered in all.
func (l *inFlight) stop() int64 {
	l.cancel()
	l.users.Wait()
	return l.answered.Load()
}

func (s *story) scale(deployment string) (int32, error) {
	d, err := s.Kube.AppsV1().Deployments(s.namespace).Get(s.ctx, deployment, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	return *d.Spec.Replicas, nil
}

// awaitScale waits until the Deployment has at least least replicas.
func (s *story) awaitScale(what, deployment string, least int32) {
	s.Helper()
	s.until(what, func() (bool, string, error) {
		replicas, err := s.scale(deployment)
		if err != nil {
			return false, err.Error(), nil
		}
		return replicas >= least, fmt.Sprintf("%d pods are wanted", replicas), nil
	})
}

// watchLowestScale records the lowest scale of a Deployment until the returned function is called.
func (s *story) watchLowestScale(deployment string) (lowest func() int32) {
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan int32, 1)
	go func() {
		least := int32(math.MaxInt32)
		cluster.Until(ctx, func() (bool, string, error) {
			if replicas, err := s.scale(deployment); err == nil {
				least = min(least, replicas)
			}
			return false, "", nil
		})
		done <- least
	}()
	return func() int32 {
		cancel()
		return <-done
	}
}

// readyPods counts the Ready pods of a Service.
func (s *story) readyPods(name string) (ready int, err error) {
	pods, err := s.Pods(s.ctx, s.namespace, name, false)
	return len(cluster.ReadyPods(pods)), err
}

func (s *story) scaleAutoscalers(replicas int32) (back func(ctx context.Context) error) {
	s.Helper()
	return s.scaleComponent("autoscaler", replicas)
}

// scaleComponent sets the number of replicas of a component until the test ends, or until back is
// called.
func (s *story) scaleComponent(name string, replicas int32) (back func(ctx context.Context) error) {
	s.Helper()
	deployments := s.Kube.AppsV1().Deployments(cluster.System)
	before, err := deployments.Get(s.ctx, name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	set := func(ctx context.Context, n int32) error {
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
		if _, err := deployments.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("scale the %s to %d: %w", name, n, err)
		}
		return s.AwaitDeployment(ctx, cluster.System, name)
	}
	back = func(ctx context.Context) error { return set(ctx, *before.Spec.Replicas) }
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := back(ctx); err != nil {
			s.Error(err)
		}
	})
	if err := set(s.ctx, replicas); err != nil {
		s.Fatal(err)
	}
	return back
}

// leader returns the name of the pod that holds the leases of the revisions.
func (s *story) leader() (string, error) {
	leases, err := s.Kube.CoordinationV1().Leases(cluster.System).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list leases: %w", err)
	}
	for _, lease := range leases.Items {
		if strings.HasPrefix(lease.Name, "autoscaler-bucket-") && lease.Spec.HolderIdentity != nil {
			pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
			return pod, nil
		}
	}
	return "", nil
}

func (s *story) leadingAutoscaler() (pod string) {
	s.Helper()
	s.until("an autoscaler leads", func() (bool, string, error) {
		var err error
		pod, err = s.leader()
		return err == nil && pod != "", fmt.Sprint(err), nil
	})
	return pod
}

// "I changed config-leader-election and nothing happened until I restarted everything." New timings
// apply at once and keep the leader. When the number of buckets changes, the processes release
// their leases and restart by themselves.
func TestLeadersFollowTheirSettings(t *testing.T) {
	s := beginAlone(t, 3*time.Minute)
	restarts := func() map[string]int32 {
		list, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{
			LabelSelector: fmt.Sprintf("app in (%s,%s)", s.Program("controller"), s.Program("autoscaler"))})
		if err != nil {
			s.Fatal(err)
		}
		all := map[string]int32{}
		for _, p := range list.Items {
			for _, c := range p.Status.ContainerStatuses {
				all[p.Name] += c.RestartCount
			}
		}
		return all
	}
	before := restarts()
	lease := func(name string) coordinationv1.LeaseSpec {
		l, err := s.Kube.CoordinationV1().Leases(cluster.System).Get(s.ctx, name, metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil || l.Spec.LeaseDurationSeconds == nil || l.Spec.LeaseTransitions == nil {
			return coordinationv1.LeaseSpec{HolderIdentity: new(string), LeaseDurationSeconds: new(int32), LeaseTransitions: new(int32)}
		}
		return l.Spec
	}
	both := []string{"controller.00-of-01", "autoscaler-bucket-00-of-01"}
	held := map[string]coordinationv1.LeaseSpec{}
	s.until("both lead", func() (bool, string, error) {
		for _, name := range both {
			if held[name] = lease(name); *held[name].HolderIdentity == "" {
				return false, name + " is free", nil
			}
		}
		return true, "", nil
	})
	s.config("config-leader-election", map[string]string{"lease-duration": "75s", "retry-period": "3s"})
	s.until("both leases have the new duration", func() (bool, string, error) {
		for _, name := range both {
			if seconds := *lease(name).LeaseDurationSeconds; seconds != 75 {
				return false, fmt.Sprintf("%s lasts %d s", name, seconds), nil
			}
		}
		return true, "", nil
	})
	for _, name := range both {
		if now := lease(name); *now.HolderIdentity != *held[name].HolderIdentity || *now.LeaseTransitions != *held[name].LeaseTransitions {
			t.Errorf("%s was held by %s after %d transitions, now by %s after %d", name, *held[name].HolderIdentity, *held[name].LeaseTransitions,
				*now.HolderIdentity, *now.LeaseTransitions)
		}
	}
	for pod, n := range restarts() {
		if was, known := before[pod]; known && n != was {
			t.Errorf("%s restarted because of new timings", pod)
		}
	}
	s.config("config-leader-election", map[string]string{"buckets": "2"})
	s.until("both new buckets are held and the old one is free", func() (bool, string, error) {
		for _, name := range []string{"controller.00-of-02", "controller.01-of-02", "autoscaler-bucket-00-of-02", "autoscaler-bucket-01-of-02"} {
			if *lease(name).HolderIdentity == "" {
				return false, name + " is free", nil
			}
		}
		for _, name := range both {
			if holder := *lease(name).HolderIdentity; holder != "" {
				return false, fmt.Sprintf("%s is still held by %s", name, holder), nil
			}
		}
		return true, "", nil
	})
	if err := s.AwaitComponents(s.ctx); err != nil {
		t.Fatal(err)
	}
	url := s.ready("bucketed", service{name: "bucketed"}.manifest())
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Error(reply)
	}
}
