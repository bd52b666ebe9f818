package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/test/internal/cluster"
)

// mishap is the name of the objects that refuse writes.
const mishap = "soak-mishap"

// evictPods evicts the pods of the services one after the other, as a node that is drained does.
func (s Set) evictPods(ctx context.Context) error {
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/revision"})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil {
			continue
		}
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		if err := s.Kube.PolicyV1().Evictions(pod.Namespace).Evict(ctx, eviction); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("evict pod %s: %w", pod.Name, err)
		}
		s.replaced(ctx, pod.Labels["serving.knative.dev/revision"], time.Now())
	}
	return s.settled(ctx)
}

// replaced waits until a revision has a ready pod that is newer. There is none if the autoscaler
// wants fewer meanwhile.
func (s Set) replaced(ctx context.Context, revision string, since time.Time) {
	ctx, cancel := context.WithTimeout(ctx, gatewayProbe)
	defer cancel()
	_ = cluster.Until(ctx, func() (bool, string, error) {
		pods, err := s.PodsOf(ctx, s.Namespace, revision, false)
		return err == nil && slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return !p.CreationTimestamp.Time.Before(since.Truncate(time.Second)) && cluster.PodIsReady(&p)
		}), "no new pod", nil
	})
}

// fillQuota lets nothing new be made in the namespace for a time in which the services are updated.
func (s Set) fillQuota(ctx context.Context) error {
	none := resource.MustParse("0")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: mishap}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/services": none, "count/deployments.apps": none}}}
	return s.updatedWhile(ctx, func(ctx context.Context) error {
		_, err := s.Kube.CoreV1().ResourceQuotas(s.Namespace).Create(ctx, quota, metav1.CreateOptions{})
		return err
	}, func(ctx context.Context) error {
		return s.Kube.CoreV1().ResourceQuotas(s.Namespace).Delete(ctx, mishap, metav1.DeleteOptions{})
	})
}

// refuseUpdates has a policy refuse what a Route is to tell the gateways, for a time in which the
// services are updated.
func (s Set) refuseUpdates(ctx context.Context) error {
	policy, binding := refusing(s.Namespace)
	api := s.Kube.AdmissionregistrationV1()
	return s.updatedWhile(ctx, func(ctx context.Context) error {
		_, err := api.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{})
		if err == nil {
			_, err = api.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
		}
		if err != nil {
			return err
		}
		return cluster.Pause(ctx, stale) // until the API server follows the policy
	}, func(ctx context.Context) error {
		return errors.Join(gone(api.ValidatingAdmissionPolicyBindings().Delete(ctx, mishap, metav1.DeleteOptions{})),
			gone(api.ValidatingAdmissionPolicies().Delete(ctx, mishap, metav1.DeleteOptions{})))
	})
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// refusing returns a policy that refuses each update of an HTTPRoute of a namespace.
func refusing(namespace string) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: mishap}}
	policy.Spec = admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: ptr.To(admissionv1.Fail),
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{"gateway.networking.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"httproutes"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: "false", Message: "the soak refuses it"}}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: mishap}}
	binding.Spec = admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: mishap, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}}}
	return policy, binding
}

// misplaceGateways has config-gateway name Gateways that nobody made.
func (s Set) misplaceGateways(ctx context.Context) error {
	restore, err := s.SetConfig(ctx, "config-gateway", map[string]string{
		"external-gateways": "[{class: nobody, gateway: nowhere/outside, service: nowhere/outside}]",
		"local-gateways":    "[{class: nobody, gateway: nowhere/inside, service: nowhere/inside}]"})
	if err == nil {
		s.last(ctx, time.Minute)
	}
	mend, cancel := mending(ctx)
	defer cancel()
	if restore != nil {
		err = errors.Join(err, restore(mend))
	}
	return errors.Join(err, s.settled(ctx))
}

// updatedWhile updates every service while something is wrong, for longer than the controller keeps
// what no Route leads to.
func (s Set) updatedWhile(ctx context.Context, begin, end func(context.Context) error) error {
	err := begin(ctx)
	if err == nil {
		err = s.update(ctx)
	}
	if err == nil {
		s.last(ctx, 2*time.Minute)
	}
	mend, cancel := mending(ctx)
	defer cancel()
	return errors.Join(err, gone(end(mend)), s.settled(ctx))
}

// update changes the template of every service.
func (s Set) update(ctx context.Context) error {
	list, err := s.Dynamic.Resource(cluster.Services).Namespace(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"mishap":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	for _, service := range list.Items {
		_, err := s.Dynamic.Resource(cluster.Services).Namespace(s.Namespace).Patch(ctx, service.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// settlesWithin is enough for the next attempt of a write that was refused, and a cold start.
const settlesWithin = 3 * time.Minute

// settled waits until every service is Ready as it was asked for.
func (s Set) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settlesWithin)
	defer cancel()
	list, err := s.Dynamic.Resource(cluster.Services).Namespace(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, service := range list.Items {
		if _, err := s.AwaitReady(ctx, s.Namespace, service.GetName()); err != nil {
			return err
		}
	}
	return nil
}
