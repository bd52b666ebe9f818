package manifests

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Ports for the node's kubelet, which policies do not restrict, and ports that expose data of all
// tenants.
var (
	probePorts = map[string][]int32{"controller": {8080}, "webhook": {8080}}
	operators  = []int32{9090, 8008}
)

// Each port of a component is open only to its clients, and no policy opens another port.
func TestNetworkPoliciesNameEveryPortAndWhomItIsFor(t *testing.T) {
	objects := config(t)
	for _, object := range objects {
		template := serving(object)
		if template == nil {
			continue
		}
		name, _ := component(object)
		toAll, toOperators := policyOf(t, objects, name, template)
		var listens []int32
		for _, c := range template.Spec.Containers {
			for _, p := range c.Ports {
				listens = append(listens, p.ContainerPort)
			}
		}
		for _, port := range listens {
			all, few := slices.Contains(toAll, port), slices.Contains(toOperators, port)
			switch {
			case slices.Contains(operators, port):
				if all || !few {
					t.Errorf("%s: port %d exposes data of all tenants; open to all: %v, to operators: %v", name, port, all, few)
				}
			case slices.Contains(probePorts[name], port):
				if all || few {
					t.Errorf("%s: port %d is for the kubelet, but is open to others", name, port)
				}
			case !all:
				t.Errorf("%s: port %d is closed to its clients", name, port)
			}
		}
		for _, port := range slices.Concat(toAll, toOperators) {
			if !slices.Contains(listens, port) {
				t.Errorf("%s: its policy opens port %d, on which it does not listen", name, port)
			}
		}
	}
}

// policyOf returns the ports that the policies of a component's pods open to all and to labelled
// namespaces.
func policyOf(t *testing.T, objects []Object, name string, template *corev1.PodTemplateSpec) (toAll, toOperators []int32) {
	found := false
	for _, object := range objects {
		policy, ok := object.Object.(*networkingv1.NetworkPolicy)
		if !ok || policy.Namespace != "knative-serving" ||
			!labels.SelectorFromSet(policy.Spec.PodSelector.MatchLabels).Matches(labels.Set(template.Labels)) {
			continue
		}
		found = true
		if !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
			t.Errorf("%s: policy types %v", name, policy.Spec.PolicyTypes)
		}
		for _, rule := range policy.Spec.Ingress {
			if len(rule.Ports) == 0 {
				t.Errorf("%s: a rule opens all ports", name)
			}
			for _, p := range rule.Ports {
				if len(rule.From) == 0 {
					toAll = append(toAll, p.Port.IntVal)
					continue
				}
				toOperators = append(toOperators, p.Port.IntVal)
				for _, from := range rule.From {
					if from.NamespaceSelector == nil || len(from.NamespaceSelector.MatchLabels) == 0 {
						t.Errorf("%s: port %d is open to more than labelled namespaces", name, p.Port.IntVal)
					}
				}
			}
		}
	}
	if !found {
		t.Errorf("%s: no NetworkPolicy selects its pods", name)
	}
	return toAll, toOperators
}
