package main

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// programs are the samples that are started with either order of the pod's containers.
var programs = []struct{ name, image string }{
	{"go", "dev.local/ebb/hello-go:dev"},
	{"python", "dev.local/ebb/hello-python:dev"},
	{"node", "dev.local/ebb/hello-node:dev"},
	{"java", "dev.local/ebb/hello-java:dev"},
}

// The orders: which container is the first of the pod.
const (
	proxyFirst = "proxy"
	userFirst  = "user"
)

const serviceLabel = "serving.knative.dev/service"

// starter is a service whose pods have one order, and what its cold starts took.
type starter struct {
	program, order, name, url string
	totals                    []float64
}

// orders measures n cold starts of each program with each order, in turns. Ebb makes all pods with
// queue-proxy last, and an admission policy moves it to the front of those that are to have it
// first, so that nothing else differs.
func orders(ctx context.Context, c *cluster.Cluster, namespace string, n int, out *result.Printer) (err error) {
	var starters []*starter
	var moved []string
	for _, p := range programs {
		for _, order := range []string{proxyFirst, userFirst} {
			s := &starter{program: p.name, order: order, name: p.name + "-" + order}
			if order == proxyFirst {
				moved = append(moved, s.name)
			}
			starters = append(starters, s)
		}
	}
	undo, err := putFirst(ctx, c, namespace, moved)
	defer func() {
		if gone := undo.Run(); err == nil {
			err = gone
		}
	}()
	if err != nil {
		return err
	}
	for i, s := range starters {
		s.url, err = c.ApplyFunction(ctx, namespace, cluster.Function{Name: s.name, Image: programs[i/2].image,
			Annotations: map[string]string{"autoscaling.knative.dev/window": "6s", "autoscaling.knative.dev/max-scale": "1"}})
		if err != nil {
			return err
		}
	}
	for run := range n {
		for i := range starters {
			// The second of a pair is not always the same: it may find the machine warmer.
			s := starters[i^(run&1)]
			total, err := s.start(ctx, c, namespace)
			if err != nil {
				return fmt.Errorf("cold start %d of %s: %w", run+1, s.name, err)
			}
			s.totals = append(s.totals, result.Milliseconds(total))
			if err := out.Line(result.Fields{"run": run + 1, "program": s.program, "first": s.order, "total_ms": result.Milliseconds(total)}); err != nil {
				return err
			}
		}
	}
	summary := result.Fields{"runs": n}
	for i := 0; i < len(starters); i += 2 {
		proxy, user := starters[i].totals, starters[i+1].totals
		name := starters[i].program
		summary[name+"_proxy_first_median_ms"], summary[name+"_user_first_median_ms"] = result.Median(proxy), result.Median(user)
		summary[name+"_proxy_first_slowest_ms"], summary[name+"_user_first_slowest_ms"] = result.Quantile(proxy, 1), result.Quantile(user, 1)
		summary[name+"_user_first_gain_ms"] = result.Median(proxy) - result.Median(user)
	}
	return out.Summary(summary)
}

// start measures one cold start, of a pod that has the order.
func (s *starter) start(ctx context.Context, c *cluster.Cluster, namespace string) (time.Duration, error) {
	took, err := first(ctx, c, namespace, s.name, s.url)
	if err != nil {
		return 0, err
	}
	pods, err := c.Pods(ctx, namespace, s.name, false)
	if err != nil || len(pods) != 1 {
		return 0, fmt.Errorf("%d pods answered, want one: %w", len(pods), err)
	}
	if first := pods[0].Spec.Containers[0].Name; (first == "queue-proxy") != (s.order == proxyFirst) {
		return 0, fmt.Errorf("the first container of pod %s is %s", pods[0].Name, first)
	}
	return took, nil
}

// putFirst moves queue-proxy to the front of the pods of these services, which have one other
// container, and waits until that is in force. undo is to be run after an error, too.
func putFirst(ctx context.Context, c *cluster.Cluster, namespace string, services []string) (undo cluster.Undo, err error) {
	name := namespace + ".bench.ebb.dev"
	policies, bindings := c.Kube.AdmissionregistrationV1().MutatingAdmissionPolicies(), c.Kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings()
	_, err = policies.Create(ctx, &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.MutatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "queue-proxy-is-last", Expression: "object.spec.containers[1].name == 'queue-proxy'"}},
		Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{
			Expression: `[JSONPatch{op: "move", from: "/spec/containers/1", path: "/spec/containers/0"}]`}}},
		FailurePolicy:      new(admissionv1.Fail),
		ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
	}}, metav1.CreateOptions{})
	if err != nil {
		return undo, fmt.Errorf("create MutatingAdmissionPolicy %s (Kubernetes 1.36 has them): %w", name, err)
	}
	undo = append(undo, func(ctx context.Context) error { return policies.Delete(ctx, name, metav1.DeleteOptions{}) })
	_, err = bindings.Create(ctx, &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{
		PolicyName: name,
		MatchResources: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			ObjectSelector:    &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: serviceLabel, Operator: metav1.LabelSelectorOpIn, Values: services}}},
		}}}, metav1.CreateOptions{})
	if err != nil {
		return undo, fmt.Errorf("create MutatingAdmissionPolicyBinding %s: %w", name, err)
	}
	undo = append(undo, func(ctx context.Context) error { return bindings.Delete(ctx, name, metav1.DeleteOptions{}) })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "in-which-order", Labels: map[string]string{serviceLabel: services[0]}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "user-container", Image: "none"}, {Name: "queue-proxy", Image: "none"}}}}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = cluster.Until(ctx, func() (bool, string, error) {
		made, err := c.Kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return false, err.Error(), nil
		}
		return made.Spec.Containers[0].Name == "queue-proxy", "queue-proxy is last", nil
	})
	if err != nil {
		return undo, fmt.Errorf("wait for the policy that moves queue-proxy: %w", err)
	}
	return undo, nil
}
