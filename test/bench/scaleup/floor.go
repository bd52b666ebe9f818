package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/follow"
)

// floorHost reaches the bare Deployment through the same gateway as the services.
const floorHost = "floor.scaleup.test"

// floor measures the cluster without Ebb: a plain Deployment of the same program is scaled from one
// number of pods to another. If loaded is true, the same load arrives through the same gateway from
// that moment on. It returns the seconds to the first and to the last additional pod.
func (b *bench) floor(ctx context.Context, from, to int, loaded bool) (first, last any, err error) {
	container := cluster.Object{"env": oneWorker["env"], "readinessProbe": cluster.Object{
		"httpGet": cluster.Object{"path": "/healthz", "port": 8080}, "periodSeconds": 1}}
	err = b.ApplyPlain(ctx, b.Namespace, cluster.Plain{Name: "floor", Image: b.image, Host: floorHost, Replicas: from, Container: container})
	if err != nil {
		return nil, nil, err
	}
	pods, err := b.watchPods(ctx, "app=floor")
	if err != nil {
		return nil, nil, err
	}
	defer pods.Stop()
	if err := pods.Await(ctx, from); err != nil {
		return nil, nil, err
	}
	stop := func() {}
	if loaded {
		if err := b.AwaitAnswer(ctx, "http://"+floorHost); err != nil {
			return nil, nil, err
		}
		loading, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.load(loading, "http://"+floorHost+work, outstanding, b.lasts)
		}()
		stop = func() { cancel(); <-done }
	}
	return b.tell(ctx, "floor", from, to, pods, stop)
}

// podFloor is the floor of a plain Deployment whose pods have two containers, like those of a
// revision.
func (b *bench) podFloor(ctx context.Context) (first, ten any, err error) {
	if _, err := b.service(ctx, "copied", map[string]string{"min-scale": "1"}); err != nil {
		return nil, nil, err
	}
	made, err := b.Kube.AppsV1().Deployments(b.Namespace).Get(ctx, "copied-00001-deployment", metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the Deployment to copy: %w", err)
	}
	labels := map[string]string{"app": "copy"}
	bare := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "copy"}, Spec: *made.Spec.DeepCopy()}
	bare.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	// Without the labels, Ebb ignores these pods.
	bare.Spec.Template.ObjectMeta = metav1.ObjectMeta{Labels: labels}
	if _, err := b.Kube.AppsV1().Deployments(b.Namespace).Create(ctx, bare, metav1.CreateOptions{}); err != nil {
		return nil, nil, fmt.Errorf("create the copied Deployment: %w", err)
	}
	pods, err := b.watchPods(ctx, "app=copy")
	if err != nil {
		return nil, nil, err
	}
	defer pods.Stop()
	if err := pods.Await(ctx, 1); err != nil {
		return nil, nil, err
	}
	if first, ten, err = b.tell(ctx, "copy", 1, 10, pods, func() {}); err != nil {
		return nil, nil, err
	}
	return first, ten, b.removeService(ctx, "copied")
}

// tell scales a plain Deployment, takes the times, stops the load and deletes everything.
func (b *bench) tell(ctx context.Context, name string, from, to int, pods *follow.Pods, stopLoad func()) (first, last any, err error) {
	deployments := b.Kube.AppsV1().Deployments(b.Namespace)
	begun := time.Now()
	_, err = deployments.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, to), metav1.PatchOptions{})
	if err == nil {
		err = pods.Await(ctx, to)
	}
	stopLoad()
	if err != nil {
		return nil, nil, fmt.Errorf("scale the bare Deployment: %w", err)
	}
	first, last = pods.After(begun, from+1), pods.After(begun, to)
	if err := deployments.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return nil, nil, fmt.Errorf("delete the bare Deployment: %w", err)
	}
	err = cluster.Until(ctx, func() (bool, string, error) {
		list, err := b.Kube.CoreV1().Pods(b.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return false, err.Error(), nil
		}
		return len(list.Items) == 0, fmt.Sprintf("%d pods of %s", len(list.Items), name), nil
	})
	return first, last, err
}
