package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/internal/cluster"
)

// part is one object of the service that is copied.
type part struct {
	resource  schema.GroupVersionResource
	uid       types.UID
	owners    []types.UID
	text      string // without what the API server sets
	hasStatus bool
}

// copiers is how many copies are made at a time.
const copiers = 16

// copyUntil makes copies of the first service until there are n, while nothing of Ebb or of Istio
// looks at them.
func (b *bench) copyUntil(ctx context.Context, n int) (err error) {
	if n <= b.copies {
		return nil
	}
	parts, err := b.parts(ctx)
	if err != nil {
		return err
	}
	if b.hash, err = b.planHash(copyName(0)); err != nil {
		return err
	}
	if !slices.ContainsFunc(parts, func(p part) bool { return strings.Contains(p.text, b.hash) }) {
		return errors.New("no HTTPRoute or Route has the hash of the plan that this benchmark computes: it needs the settings of `make up`")
	}
	resume, err := b.pause(ctx)
	defer func() { err = errors.Join(err, resume.Run()) }()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	failures := make(chan error, copiers)
	numbers := make(chan int)
	for range copiers {
		all.Go(func() {
			for i := range numbers {
				if err := b.copy(ctx, parts, copyName(i)); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	for i := b.copies; i < n && err == nil; i++ {
		select {
		case numbers <- i:
		case err = <-failures:
		}
	}
	close(numbers)
	all.Wait()
	b.copies = n
	select {
	case err = <-failures:
	default:
	}
	return err
}

// parts reads the objects of the first service, owners first. Those that Kubernetes' own
// controllers make are left to them.
func (b *bench) parts(ctx context.Context) ([]part, error) {
	resources, err := b.resources()
	if err != nil {
		return nil, err
	}
	var found, sorted []part
	for _, resource := range resources {
		if slices.Contains([]string{"replicasets", "endpoints", "pods"}, resource.Resource) {
			continue
		}
		list, err := b.Dynamic.Resource(resource).Namespace(b.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		for _, o := range list.Items {
			if !strings.HasPrefix(o.GetName(), copyName(0)) || o.GetLabels()["endpointslice.kubernetes.io/managed-by"] == "endpointslice-controller.k8s.io" {
				continue
			}
			p, err := partOf(resource, &o)
			if err != nil {
				return nil, err
			}
			found = append(found, p)
		}
	}
	placed := map[types.UID]bool{}
	for len(found) > 0 {
		i := slices.IndexFunc(found, func(p part) bool {
			return !slices.ContainsFunc(p.owners, func(owner types.UID) bool { return !placed[owner] })
		})
		if i < 0 {
			return nil, fmt.Errorf("the owner of %s is not among what the service has", found[0].text)
		}
		placed[found[i].uid] = true
		sorted = append(sorted, found[i])
		found = slices.Delete(found, i, i+1)
	}
	return sorted, nil
}

func partOf(resource schema.GroupVersionResource, o *unstructured.Unstructured) (part, error) {
	p := part{resource: resource, uid: o.GetUID()}
	for _, owner := range o.GetOwnerReferences() {
		p.owners = append(p.owners, owner.UID)
	}
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip != "None" {
		unstructured.RemoveNestedField(o.Object, "spec", "clusterIP")
		unstructured.RemoveNestedField(o.Object, "spec", "clusterIPs")
	}
	if resource.Group == "apps" { // Kubernetes' own controllers write it
		unstructured.RemoveNestedField(o.Object, "status")
	}
	if _, ok, _ := unstructured.NestedFieldNoCopy(o.Object, "status", "observedGeneration"); ok {
		_ = unstructured.SetNestedField(o.Object, int64(1), "status", "observedGeneration")
	}
	status, _, _ := unstructured.NestedMap(o.Object, "status")
	p.hasStatus = len(status) > 0 && resource.Group != ""
	text, err := json.Marshal(o.Object)
	p.text = string(text)
	return p, err
}

// planHash is the hash by which Ebb knows what gateways do for a service. It contains the name, so
// it cannot be copied.
func (b *bench) planHash(name string) (string, error) {
	network := settings.Default().Network
	p, err := plan.Make(plan.Input{
		Namespace: b.Namespace, Name: name, Domain: b.domain, ClusterDomain: "cluster.local",
		DomainTemplate: network.DomainTemplate, TagTemplate: network.TagTemplate,
		Targets: map[string][]plan.Share{"": {{Revision: name + "-00001", Percent: 100}}},
	})
	if err != nil {
		return "", fmt.Errorf("plan %s: %w", name, err)
	}
	return p.Hash(), nil
}

// copy makes one copy.
func (b *bench) copy(ctx context.Context, parts []part, name string) error {
	hash, err := b.planHash(name)
	if err != nil {
		return err
	}
	replace := []string{b.hash, hash, copyName(0), name}
	of := func(p part) (*unstructured.Unstructured, error) {
		o := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(strings.NewReplacer(replace...).Replace(p.text)), &o.Object); err != nil {
			return nil, fmt.Errorf("copy %s: %w", p.resource.Resource, err)
		}
		return o, nil
	}
	for _, p := range parts {
		o, err := of(p)
		if err != nil {
			return err
		}
		client := b.Dynamic.Resource(p.resource).Namespace(b.Namespace)
		made, err := client.Create(ctx, o, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("copy %s %s: %w", p.resource.Resource, o.GetName(), err)
		}
		replace = append(replace, string(p.uid), string(made.GetUID()))
		if !p.hasStatus {
			continue
		}
		if o, err = of(p); err != nil { // a status may say its own UID
			return err
		}
		o.SetResourceVersion(made.GetResourceVersion())
		if _, err := client.UpdateStatus(ctx, o, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("copy the status of %s %s: %w", p.resource.Resource, o.GetName(), err)
		}
	}
	return nil
}

// paused are the Deployments that would look at each copy while it is half made.
var paused = []struct{ namespace, name string }{
	{cluster.System, "controller"}, {cluster.System, "autoscaler"}, {"istio-system", "istiod"},
}

// pause scales them to zero, and returns what brings them back.
func (b *bench) pause(ctx context.Context) (resume cluster.Undo, err error) {
	for _, d := range paused {
		before, err := b.scale(ctx, d.namespace, d.name, 0)
		if err != nil {
			return resume, err
		}
		resume = append(resume, func(ctx context.Context) error {
			if _, err := b.scale(ctx, d.namespace, d.name, before); err != nil {
				return err
			}
			return b.awaitAvailable(ctx, d.namespace, d.name)
		})
	}
	return resume, b.await(ctx, 2*time.Minute, func() (bool, string, error) {
		for _, d := range paused {
			pods, err := b.Kube.CoreV1().Pods(d.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + d.name})
			if err != nil || len(pods.Items) > 0 {
				return false, d.name + " still has pods", err
			}
		}
		return true, "", nil
	})
}

// scale sets the replicas of a Deployment, and returns those before.
func (b *bench) scale(ctx context.Context, namespace, name string, n int32) (before int32, err error) {
	scale, err := b.Kube.AppsV1().Deployments(namespace).GetScale(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("read the scale of %s: %w", name, err)
	}
	before, scale.Spec.Replicas = scale.Spec.Replicas, n
	if _, err := b.Kube.AppsV1().Deployments(namespace).UpdateScale(ctx, name, scale, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("scale %s: %w", name, err)
	}
	return before, nil
}

func (b *bench) awaitAvailable(ctx context.Context, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return b.AwaitDeployment(ctx, namespace, name)
}
