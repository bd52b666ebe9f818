// Package follow records how the pods of a workload and its wanted scale change over time.
//
// Owns: its watches. Reads: pods and Deployments. Writes: nothing.
package follow

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// Step is one change of a number of pods.
type Step struct {
	At time.Time
	N  int
}

// Pods records when each pod was first seen Ready, and how many are.
type Pods struct {
	mu      sync.Mutex
	at      []time.Time
	steps   []Step
	changed chan struct{} // closed and replaced with each new pod
	now     map[string]bool
	// Stop ends the watch.
	Stop func()
}

// PodsOf watches the pods with a label.
func PodsOf(ctx context.Context, kube kubernetes.Interface, namespace, selector string) (*Pods, error) {
	list, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", selector, err)
	}
	w, err := kube.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch pods of %s: %w", selector, err)
	}
	pods := &Pods{changed: make(chan struct{}), now: map[string]bool{}}
	seen := map[string]bool{}
	note := func(pod *corev1.Pod, gone bool) {
		pods.mu.Lock()
		defer pods.mu.Unlock()
		isReady := !gone && pod.DeletionTimestamp == nil && cluster.PodIsReady(pod)
		before := pods.now[pod.Name]
		pods.now[pod.Name] = isReady
		if before != isReady {
			pods.steps = append(pods.steps, Step{time.Now(), pods.ready()})
		}
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
	pods.Stop = func() { w.Stop(); <-done }
	return pods, nil
}

// Await waits until n pods have been Ready.
func (p *Pods) Await(ctx context.Context, n int) error {
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

// After returns the seconds from begun until the nth pod was Ready, nil if it never was.
func (p *Pods) After(begun time.Time, n int) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.at) < n {
		return nil
	}
	return seconds(begun, p.at[n-1])
}

// Ready returns how many pods are.
func (p *Pods) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready()
}

// Steps returns how many pods were Ready at begun, and each change since.
func (p *Pods) Steps(begun time.Time) []Step {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := Step{At: begun}
	var later []Step
	for _, s := range p.steps {
		if s.At.After(begun) {
			later = append(later, s)
		} else {
			first.N = s.N
		}
	}
	return append([]Step{first}, later...)
}

func (p *Pods) ready() (n int) {
	for _, isReady := range p.now {
		if isReady {
			n++
		}
	}
	return n
}

// Scale records the changes of a Deployment's wanted replicas.
type Scale struct {
	mu    sync.Mutex
	at    map[int]time.Time // when it first had at least that many
	steps []Step
	// Stop ends the watch.
	Stop func()
}

// ScaleOf watches the Deployment with a label.
func ScaleOf(ctx context.Context, kube kubernetes.Interface, namespace, selector string) (*Scale, error) {
	deployments := kube.AppsV1().Deployments(namespace)
	list, err := deployments.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list Deployments of %s: %w", selector, err)
	}
	w, err := deployments.Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch Deployments of %s: %w", selector, err)
	}
	s := &Scale{at: map[int]time.Time{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if d, ok := event.Object.(*appsv1.Deployment); ok && d.Spec.Replicas != nil {
				s.note(int(*d.Spec.Replicas))
			}
		}
	}()
	s.Stop = func() { w.Stop(); <-done }
	return s, nil
}

func (s *Scale) note(replicas int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.steps); n == 0 || s.steps[n-1].N != replicas {
		s.steps = append(s.steps, Step{time.Now(), replicas})
	}
	for n := 1; n <= replicas; n++ {
		if s.at[n].IsZero() {
			s.at[n] = time.Now()
		}
	}
}

// After returns the seconds from begun until n pods were wanted, nil if they never were.
func (s *Scale) After(begun time.Time, n int) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at[n].IsZero() {
		return nil
	}
	return seconds(begun, s.at[n])
}

// Since returns the changes of the scale since begun, as "seconds:pods", and how many came after a
// time.
func (s *Scale) Since(begun, after time.Time) (all []string, late int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = []string{}
	for _, step := range s.steps {
		if step.At.Before(begun) {
			continue
		}
		all = append(all, fmt.Sprintf("%.1f:%d", step.At.Sub(begun).Seconds(), step.N))
		if step.At.After(after) {
			late++
		}
	}
	return all, late
}

func seconds(from, to time.Time) float64 { return result.Milliseconds(to.Sub(from)) / 1000 }
