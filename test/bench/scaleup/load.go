package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// loadReport is the outcome of a closed loop.
type loadReport struct {
	begun         time.Time
	lasted        time.Duration
	outstanding   int
	total, failed int
	late          int // answered in the last third
	took          []time.Duration
	served        []time.Duration // when each pod first answered, in order
}

func (r loadReport) rps() float64 { return float64(r.total-r.failed) / r.lasted.Seconds() }

// lateRPS is the rate of the last third, when all wanted pods are ready.
func (r loadReport) lateRPS() float64 { return float64(r.late) / (r.lasted.Seconds() / 3) }

func (r loadReport) quantile(q float64) time.Duration {
	if len(r.took) == 0 {
		return 0
	}
	slices.Sort(r.took)
	return r.took[min(len(r.took)-1, int(q*float64(len(r.took))))]
}

// servedBy returns the seconds until n pods had answered a request, nil if fewer did.
func (r loadReport) servedBy(n int) any {
	if len(r.served) < n {
		return nil
	}
	return result.Milliseconds(r.served[n-1]) / 1000
}

// load keeps the given number of requests in flight until the time is over.
func (b *bench) load(ctx context.Context, url string, outstanding int, lasts time.Duration) loadReport {
	client := b.Client(time.Minute)
	defer client.CloseIdleConnections()
	report := loadReport{begun: time.Now(), lasted: lasts, outstanding: outstanding}
	end := report.begun.Add(lasts)
	lateFrom := end.Add(-lasts / 3)
	var mu sync.Mutex
	seen := map[string]bool{}
	var all sync.WaitGroup
	for range outstanding {
		all.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) {
				reply := probe.Get(ctx, client, url)
				mu.Lock()
				report.total++
				report.took = append(report.took, reply.Took)
				if pod := reply.Header.Get("X-Pod-Name"); pod != "" && !seen[pod] {
					seen[pod] = true
					report.served = append(report.served, time.Since(report.begun))
				}
				if !reply.OK() {
					report.failed++
				} else if done := time.Now(); done.After(lateFrom) && done.Before(end) {
					report.late++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return report
}

// readyPods records when each pod was first seen Ready.
type readyPods struct {
	mu      sync.Mutex
	at      []time.Time
	changed chan struct{} // closed and replaced with each new pod
	now     map[string]bool
	stop    func()
}

func (b *bench) watchPods(ctx context.Context, selector string) (*readyPods, error) {
	list, err := b.Kube.CoreV1().Pods(b.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", selector, err)
	}
	w, err := b.Kube.CoreV1().Pods(b.namespace).Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch pods of %s: %w", selector, err)
	}
	pods := &readyPods{changed: make(chan struct{}), now: map[string]bool{}}
	seen := map[string]bool{}
	note := func(pod *corev1.Pod, gone bool) {
		pods.mu.Lock()
		defer pods.mu.Unlock()
		isReady := !gone && pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		pods.now[pod.Name] = isReady
		if isReady && !seen[pod.Name] {
			seen[pod.Name] = true
			pods.at = append(pods.at, time.Now())
			close(pods.changed)
			pods.changed = make(chan struct{})
		}
	}
	for i := range list.Items {
		note(&list.Items[i], false)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				note(pod, event.Type == watch.Deleted)
			}
		}
	}()
	pods.stop = func() { w.Stop(); <-done }
	return pods, nil
}

// await waits until n pods have been Ready.
func (p *readyPods) await(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		p.mu.Lock()
		have, changed := len(p.at), p.changed
		p.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pods became Ready, want %d: %w", have, n, ctx.Err())
		case <-changed:
		}
	}
}

// after returns the seconds from begun until the nth pod was Ready, nil if it never was.
func (p *readyPods) after(begun time.Time, n int) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.at) < n {
		return nil
	}
	return result.Milliseconds(p.at[n-1].Sub(begun)) / 1000
}

// asked records when a Deployment first had at least the given number of replicas.
type asked struct {
	mu    sync.Mutex
	at    map[int32]time.Time
	steps []step
	stop  func()
}

// step is one change of the scale.
type step struct {
	at       time.Time
	replicas int32
}

func (b *bench) watchScale(ctx context.Context, selector string) (*asked, error) {
	deployments := b.Kube.AppsV1().Deployments(b.namespace)
	list, err := deployments.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list Deployments of %s: %w", selector, err)
	}
	w, err := deployments.Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch Deployments of %s: %w", selector, err)
	}
	a := &asked{at: map[int32]time.Time{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			d, ok := event.Object.(*appsv1.Deployment)
			if !ok || d.Spec.Replicas == nil {
				continue
			}
			a.mu.Lock()
			if n := len(a.steps); n == 0 || a.steps[n-1].replicas != *d.Spec.Replicas {
				a.steps = append(a.steps, step{time.Now(), *d.Spec.Replicas})
			}
			for n := int32(1); n <= *d.Spec.Replicas; n++ {
				if a.at[n].IsZero() {
					a.at[n] = time.Now()
				}
			}
			a.mu.Unlock()
		}
	}()
	a.stop = func() { w.Stop(); <-done }
	return a, nil
}

// after returns the seconds from begun until n pods were wanted, nil if they never were.
func (a *asked) after(begun time.Time, n int32) any {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at[n].IsZero() {
		return nil
	}
	return result.Milliseconds(a.at[n].Sub(begun)) / 1000
}

// since returns the changes of the scale since begun, as "seconds:pods", and how many came after a
// time.
func (a *asked) since(begun, after time.Time) (all []string, late int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all = []string{}
	for _, s := range a.steps {
		if s.at.Before(begun) {
			continue
		}
		all = append(all, fmt.Sprintf("%.1f:%d", s.at.Sub(begun).Seconds(), s.replicas))
		if s.at.After(after) {
			late++
		}
	}
	return all, late
}

func (p *readyPods) ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, isReady := range p.now {
		if isReady {
			n++
		}
	}
	return n
}
