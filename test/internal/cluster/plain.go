package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/probe"
)

// Object is a part of a manifest.
type Object = map[string]any

// Function is a Service of one container.
type Function struct {
	Name, Image string
	// Annotations are those of the template.
	Annotations map[string]string
	// Container has more fields of the container, Spec more fields of the template's spec.
	Container, Spec Object
}

// ApplyFunction applies the Service, waits until it is Ready and returns its URL.
func (c *Cluster) ApplyFunction(ctx context.Context, namespace string, f Function) (url string, err error) {
	spec := Object{"containers": []any{with(Object{"image": f.Image}, f.Container)}}
	template := Object{"metadata": Object{"annotations": f.Annotations}, "spec": with(spec, f.Spec)}
	if err := c.applyObject(ctx, namespace, Object{"apiVersion": "serving.knative.dev/v1", "kind": "Service",
		"metadata": Object{"name": f.Name}, "spec": Object{"template": template}}); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return c.AwaitReady(ctx, namespace, f.Name)
}

// RemoveFunction deletes the Service and waits until its pods are gone.
func (c *Cluster) RemoveFunction(ctx context.Context, namespace, name string) error {
	if err := c.Dynamic.Resource(Services).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete Service %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return c.AwaitNoPods(ctx, namespace, name)
}

// Plain is a Deployment without Ebb, as the floor of what Ebb adds: a Service and an HTTPRoute lead
// to it through the gateway of external hosts. Its pods have the label app.
type Plain struct {
	Name, Image, Host string
	Replicas          int
	// Container has more fields of the container.
	Container Object
}

// ApplyPlain applies it, and does not wait for its pods.
func (c *Cluster) ApplyPlain(ctx context.Context, namespace string, p Plain) error {
	labels := Object{"app": p.Name}
	container := with(Object{"name": "user-container", "image": p.Image, "ports": []any{Object{"containerPort": 8080}},
		"readinessProbe": Object{"tcpSocket": Object{"port": 8080}, "periodSeconds": 1}}, p.Container)
	for _, object := range []Object{
		{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": Object{"name": p.Name, "labels": labels}, "spec": Object{
			"replicas": p.Replicas, "selector": Object{"matchLabels": labels},
			"template": Object{"metadata": Object{"labels": labels}, "spec": Object{"containers": []any{container}}}}},
		{"apiVersion": "v1", "kind": "Service", "metadata": Object{"name": p.Name}, "spec": Object{"selector": labels,
			"ports": []any{Object{"port": 80, "targetPort": 8080}}}},
		{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": Object{"name": p.Name}, "spec": Object{
			"parentRefs": []any{Object{"name": ExternalGateway, "namespace": System}}, "hostnames": []any{p.Host},
			"rules": []any{Object{"backendRefs": []any{Object{"name": p.Name, "port": 80}}}}}},
	} {
		if err := c.applyObject(ctx, namespace, object); err != nil {
			return err
		}
	}
	return nil
}

// ScalePlain sets the replicas of a plain Deployment.
func (c *Cluster) ScalePlain(ctx context.Context, namespace, name string, pods int) error {
	_, err := c.Kube.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, pods), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("scale the plain Deployment %s: %w", name, err)
	}
	return nil
}

// AwaitAnswer waits until a URL answers 2xx through the gateway.
func (c *Cluster) AwaitAnswer(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	client := c.Client(5 * time.Second)
	defer client.CloseIdleConnections()
	return Until(ctx, func() (bool, string, error) {
		reply := probe.Get(ctx, client, url)
		return reply.OK(), reply.String(), nil
	})
}

// applyObject applies one object; JSON is YAML.
func (c *Cluster) applyObject(ctx context.Context, namespace string, object Object) error {
	manifest, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode %v: %w", object["kind"], err)
	}
	return c.Apply(ctx, namespace, string(manifest))
}

func with(fields, more Object) Object {
	maps.Copy(fields, more)
	return fields
}
