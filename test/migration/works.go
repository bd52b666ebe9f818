package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/test/internal/cluster"
)

// works makes a Service after a move, and makes sure that the right installation serves it.
func (r *run) works(ctx context.Context, move string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	name := "new-after-" + move
	if err := r.Apply(ctx, r.Namespace, r.manifest(name, "plain", "new")); err != nil {
		return err
	}
	url, err := r.AwaitReady(ctx, r.Namespace, name)
	if err != nil {
		return fmt.Errorf("after %s: %w", move, err)
	}
	if err := r.answers(ctx, target{name: name, url: url, gateway: r.Gateway}); err != nil {
		return fmt.Errorf("after %s: %w", move, err)
	}
	of := map[string]string{"apply": "dev.local/ebb/queue-proxy:", "rollback": "dev.local/knative/queue:"}[move]
	pods, err := r.Pods(ctx, r.Namespace, name, false)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		for _, c := range pod.Spec.Containers {
			if c.Name == "queue-proxy" && !strings.HasPrefix(c.Image, of) {
				return fmt.Errorf("after %s: a new pod has the image %s, want one of %s", move, c.Image, of)
			}
		}
	}
	ingresses := schema.GroupVersionResource{Group: "networking.internal.knative.dev", Version: "v1alpha1", Resource: "ingresses"}
	if _, err := r.Dynamic.Resource(ingresses).List(ctx, metav1.ListOptions{}); (err == nil) != (move == "rollback") {
		return fmt.Errorf("after %s: Knative's kinds: %v", move, err)
	}
	return nil
}

// settings returns the data of the ConfigMaps that Knative reads.
func (r *run) settings(ctx context.Context) (map[string]map[string]string, error) {
	list, err := r.Kube.CoreV1().ConfigMaps(cluster.System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string]map[string]string{}
	for _, m := range list.Items {
		if strings.HasPrefix(m.Name, "config-") || strings.HasPrefix(m.Name, "ebb-") {
			found[m.Name] = m.Data
		}
	}
	return found, nil
}

// same makes sure that a move and its way back have changed no setting.
func (r *run) same(ctx context.Context, before map[string]map[string]string) error {
	after, err := r.settings(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for name := range merged(before, after) {
		if !maps.Equal(before[name], after[name]) {
			errs = append(errs, fmt.Errorf("the ConfigMap %s was %v and is %v", name, before[name], after[name]))
		}
	}
	return errors.Join(errs...)
}

func merged(a, b map[string]map[string]string) map[string]bool {
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	return names
}
