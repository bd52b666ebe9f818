package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

const (
	class           = "standin.ingress.networking.knative.dev"
	classAnnotation = "networking.knative.dev/ingress.class"
	finalizer       = "standin.ebb.dev/ingress"
	gateways        = "knative-serving" // their namespace
)

// ingress is what this program reads of an Ingress.
type ingress struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct{ Rules []rule }
	Status            map[string]any
}

type rule struct {
	Hosts      []string
	Visibility string
	HTTP       struct{ Paths []path }
}

type path struct {
	Path, RewriteHost string
	Headers           map[string]struct{ Exact string }
	AppendHeaders     map[string]string
	Splits            []split
}

type split struct {
	ServiceNamespace, ServiceName string
	ServicePort, Percent          int64
	AppendHeaders                 map[string]string
}

func (r rule) local() bool { return r.Visibility == "ClusterLocal" }

func parse(o *unstructured.Unstructured) (*ingress, error) {
	in := &ingress{}
	text, err := o.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, in)
	}
	return in, err
}

type controller struct {
	client            dynamic.Interface
	ingresses, routes cache.GenericLister
	// written has the generation of each HTTPRoute, by namespace/name, that was written last.
	written map[string]int64
}

func (c *controller) reconcile(ctx context.Context, key string) error {
	namespace, name, _ := strings.Cut(key, "/")
	object, err := c.ingresses.ByNamespace(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil // its HTTPRoutes are collected as garbage
	}
	if err != nil {
		return err
	}
	have := object.(*unstructured.Unstructured).DeepCopy()
	if have.GetAnnotations()[classAnnotation] != class {
		return nil
	}
	api := c.client.Resource(ingresses).Namespace(namespace)
	if has := slices.Contains(have.GetFinalizers(), finalizer); has != (have.GetDeletionTimestamp() == nil) {
		others := slices.DeleteFunc(have.GetFinalizers(), func(f string) bool { return f == finalizer })
		if !has {
			others = append(others, finalizer)
		}
		have.SetFinalizers(others)
		_, err := api.Update(ctx, have, metav1.UpdateOptions{})
		return err
	}
	if have.GetDeletionTimestamp() != nil {
		return nil
	}
	in, err := parse(have)
	if err != nil {
		return err
	}
	accepted, err := c.write(ctx, in)
	if err != nil {
		return err
	}
	status, err := statusOf(in, accepted)
	if err != nil || equality.Semantic.DeepEqual(have.Object["status"], status) {
		return err
	}
	have.Object["status"] = status
	_, err = api.UpdateStatus(ctx, have, metav1.UpdateOptions{})
	return err
}

// write makes the HTTPRoutes what the Ingress says, and reports whether the gateways accepted all.
func (c *controller) write(ctx context.Context, in *ingress) (accepted bool, err error) {
	api := c.client.Resource(httpRoutes).Namespace(in.Namespace)
	list, err := c.routes.ByNamespace(in.Namespace).List(labels.SelectorFromSet(labels.Set{ownLabel: in.Name}))
	if err != nil {
		return false, err
	}
	old := map[string]bool{}
	for _, o := range list {
		if route := o.(*unstructured.Unstructured); metav1.IsControlledBy(route, in) {
			old[route.GetName()] = true
		}
	}
	accepted = true
	for _, r := range in.Spec.Rules {
		want, err := c.route(in, r)
		if err != nil {
			return false, err
		}
		delete(old, want.GetName())
		is, err := c.writeOne(ctx, in, want)
		if err != nil {
			return false, fmt.Errorf("write HTTPRoute %s: %w", want.GetName(), err)
		}
		accepted = accepted && is
	}
	for name := range old {
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}
	}
	return accepted, nil
}

// writeOne writes an HTTPRoute if somebody else wrote it last, and reports whether the gateways
// accepted it.
func (c *controller) writeOne(ctx context.Context, in *ingress, want *unstructured.Unstructured) (accepted bool, err error) {
	api, key := c.client.Resource(httpRoutes).Namespace(in.Namespace), in.Namespace+"/"+want.GetName()
	have, err := api.Get(ctx, want.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		have, err = api.Create(ctx, want, metav1.CreateOptions{})
	case err != nil:
		return false, err
	case !metav1.IsControlledBy(have, in):
		return false, fmt.Errorf("it belongs to %v", have.GetOwnerReferences())
	case c.written[key] != have.GetGeneration() || !equality.Semantic.DeepDerivative(want.Object["spec"], have.Object["spec"]):
		have.Object["spec"] = want.Object["spec"]
		have.SetLabels(want.GetLabels())
		have, err = api.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return false, err
	}
	c.written[key] = have.GetGeneration()
	return isAccepted(have), nil
}

// route is the HTTPRoute of a rule. That of public hosts has the name of one, as Ebb's has, and
// that of local hosts has not: plugins do either.
func (c *controller) route(in *ingress, r rule) (*unstructured.Unstructured, error) {
	gateway, name := "ebb-external", r.Hosts[0]
	if r.local() {
		h := fnv.New32a()
		fmt.Fprint(h, r.Hosts)
		gateway, name = "ebb-local", fmt.Sprintf("%.50s-%08x", in.Name, h.Sum32())
	}
	var rules []any
	for _, p := range r.HTTP.Paths {
		made, err := c.rule(p)
		if err != nil {
			return nil, err
		}
		rules = append(rules, made...)
	}
	controller := true
	route := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"parentRefs": []any{map[string]any{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": gateways, "name": gateway}},
		"hostnames":  texts(r.Hosts),
		"rules":      rules,
	}}}
	route.SetAPIVersion(httpRoutes.GroupVersion().String())
	route.SetKind("HTTPRoute")
	route.SetNamespace(in.Namespace)
	route.SetName(name)
	all := map[string]string{ownLabel: in.Name}
	maps.Copy(all, in.Labels)
	route.SetLabels(all)
	route.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: ingresses.GroupVersion().String(), Kind: "Ingress", Name: in.Name, UID: in.UID, Controller: &controller}})
	return route, nil
}

// rule translates a path. One that rewrites the host leads where that host leads inside the
// cluster. The Ingress names a Service of type ExternalName, which HTTPRoutes do not know.
func (c *controller) rule(p path) ([]any, error) {
	targets := []path{p}
	if p.RewriteHost != "" {
		found, err := c.leads(p.RewriteHost)
		if err != nil {
			return nil, err
		}
		targets = nil
		for _, t := range found {
			t.AppendHeaders = maps.Clone(t.AppendHeaders)
			if t.AppendHeaders == nil {
				t.AppendHeaders = map[string]string{}
			}
			maps.Copy(t.AppendHeaders, p.AppendHeaders)
			t.RewriteHost = p.RewriteHost
			targets = append(targets, t)
		}
	}
	var rules []any
	for _, t := range targets {
		prefix := t.Path
		if prefix == "" {
			prefix = "/"
		}
		match := map[string]any{"path": map[string]any{"type": "PathPrefix", "value": prefix}}
		var headers []any
		for _, name := range slices.Sorted(maps.Keys(t.Headers)) {
			headers = append(headers, map[string]any{"type": "Exact", "name": name, "value": t.Headers[name].Exact})
		}
		if headers != nil {
			match["headers"] = headers
		}
		filters := set(t.AppendHeaders)
		if t.RewriteHost != "" {
			filters = append(filters, map[string]any{"type": "URLRewrite", "urlRewrite": map[string]any{"hostname": t.RewriteHost}})
		}
		var backends []any
		for _, s := range t.Splits {
			backend := map[string]any{"group": "", "kind": "Service", "namespace": s.ServiceNamespace, "name": s.ServiceName, "port": s.ServicePort, "weight": s.Percent}
			if len(t.Splits) == 1 {
				backend["weight"] = int64(100)
			}
			if headers := set(s.AppendHeaders); headers != nil {
				backend["filters"] = headers
			}
			backends = append(backends, backend)
		}
		rule := map[string]any{"matches": []any{match}, "backendRefs": backends}
		if filters != nil {
			rule["filters"] = filters
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// leads finds the paths of a host inside the cluster.
func (c *controller) leads(host string) ([]path, error) {
	list, err := c.ingresses.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, o := range list {
		in, err := parse(o.(*unstructured.Unstructured))
		if err != nil {
			return nil, err
		}
		for _, r := range in.Spec.Rules {
			if r.local() && slices.Contains(r.Hosts, host) {
				return r.HTTP.Paths, nil
			}
		}
	}
	return nil, fmt.Errorf("no Ingress leads to %s", host)
}

func set(headers map[string]string) []any {
	if len(headers) == 0 {
		return nil
	}
	var list []any
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		list = append(list, map[string]any{"name": name, "value": headers[name]})
	}
	return []any{map[string]any{"type": "RequestHeaderModifier", "requestHeaderModifier": map[string]any{"set": list}}}
}

func texts(list []string) (out []any) {
	for _, text := range list {
		out = append(out, text)
	}
	return out
}

// isAccepted reports whether the gateway accepted the newest generation of an HTTPRoute.
func isAccepted(route *unstructured.Unstructured) bool {
	var status struct {
		Parents []struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"parents"`
	}
	content, _, _ := unstructured.NestedMap(route.Object, "status")
	if runtime.DefaultUnstructuredConverter.FromUnstructured(content, &status) != nil || len(status.Parents) == 0 {
		return false
	}
	for _, parent := range status.Parents {
		for _, condition := range parent.Conditions {
			if condition.Status != metav1.ConditionTrue || condition.ObservedGeneration < route.GetGeneration() {
				return false
			}
		}
	}
	return true
}

// statusOf is the status of an Ingress. Its conditions keep the time since when they are so.
func statusOf(in *ingress, accepted bool) (map[string]any, error) {
	state, reason := "True", ""
	if !accepted {
		state, reason = "Unknown", "Uninitialized"
	}
	before := map[string]map[string]any{}
	list, _, err := unstructured.NestedSlice(in.Status, "conditions")
	if err != nil {
		return nil, err
	}
	for _, entry := range list {
		if condition, ok := entry.(map[string]any); ok {
			before[fmt.Sprint(condition["type"])] = condition
		}
	}
	var conditions []any
	for _, kind := range []string{"LoadBalancerReady", "NetworkConfigured", "Ready"} {
		condition := map[string]any{"type": kind, "status": state}
		if kind == "NetworkConfigured" {
			condition["status"] = "True"
		} else if reason != "" {
			condition["reason"] = reason
		}
		condition["lastTransitionTime"] = metav1.Now().UTC().Format("2006-01-02T15:04:05Z")
		if old := before[kind]; old != nil && old["status"] == condition["status"] {
			condition["lastTransitionTime"] = old["lastTransitionTime"]
		}
		conditions = append(conditions, condition)
	}
	balancer := func(gateway string) map[string]any {
		return map[string]any{"ingress": []any{map[string]any{"domainInternal": gateway + "-istio." + gateways + ".svc.cluster.local"}}}
	}
	return map[string]any{"observedGeneration": in.Generation, "conditions": conditions,
		"publicLoadBalancer": balancer("ebb-external"), "privateLoadBalancer": balancer("ebb-local")}, nil
}
