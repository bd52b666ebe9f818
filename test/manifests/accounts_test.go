package manifests

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// grants are the rules of a ServiceAccount of knative-serving: in all namespaces under "", and
// those of Roles under their namespace.
func grants(t *testing.T, account string) map[string][]rbacv1.PolicyRule {
	cluster, roles, labelled := map[string][]rbacv1.PolicyRule{}, map[string][]rbacv1.PolicyRule{}, map[string][]rbacv1.PolicyRule{}
	out := map[string][]rbacv1.PolicyRule{}
	objects := config(t)
	for _, object := range objects {
		switch o := object.Object.(type) {
		case *rbacv1.ClusterRole:
			cluster[o.Name] = append(cluster[o.Name], o.Rules...)
			for label := range o.Labels {
				labelled[label] = append(labelled[label], o.Rules...)
			}
		case *rbacv1.Role:
			roles[o.Namespace+"/"+o.Name] = o.Rules
		}
	}
	for _, object := range objects {
		if o, ok := object.Object.(*rbacv1.ClusterRole); ok && o.AggregationRule != nil {
			for _, selector := range o.AggregationRule.ClusterRoleSelectors {
				for label := range selector.MatchLabels {
					cluster[o.Name] = append(cluster[o.Name], labelled[label]...)
				}
			}
		}
	}
	is := func(s rbacv1.Subject) bool { return s.Namespace == "knative-serving" && s.Name == account }
	for _, object := range objects {
		switch o := object.Object.(type) {
		case *rbacv1.ClusterRoleBinding:
			if slices.ContainsFunc(o.Subjects, is) {
				out[""] = append(out[""], cluster[o.RoleRef.Name]...)
			}
		case *rbacv1.RoleBinding:
			if slices.ContainsFunc(o.Subjects, is) {
				out[o.Namespace] = append(out[o.Namespace], roles[o.Namespace+"/"+o.RoleRef.Name]...)
			}
		}
	}
	return out
}

func TestNoRuleHasAWildcard(t *testing.T) {
	for _, object := range config(t) {
		var rules []rbacv1.PolicyRule
		switch o := object.Object.(type) {
		case *rbacv1.ClusterRole:
			rules = o.Rules
		case *rbacv1.Role:
			rules = o.Rules
		}
		for _, rule := range rules {
			if strings.Contains(strings.Join(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs), " "), "*") {
				t.Errorf("%s has a wildcard: %v", object.File, rule)
			}
		}
	}
}

// Kubernetes fills the rules of a role that aggregates others. A manifest that sets them, too,
// cannot be applied on the server's side a second time.
func TestAnAggregatedRoleSetsNoRules(t *testing.T) {
	found := 0
	for _, object := range config(t) {
		if o, ok := object.Object.(*rbacv1.ClusterRole); ok && o.AggregationRule != nil {
			found++
			if o.Rules != nil {
				t.Errorf("%s: %s has an aggregationRule and rules", object.File, o.Name)
			}
		}
	}
	if found == 0 {
		t.Error("no role aggregates others: delete this test")
	}
}

func TestEachComponentHasAnAccountOfItsOwn(t *testing.T) {
	for _, object := range config(t) {
		if name, pod := component(object); pod != nil && pod.ServiceAccountName != name {
			t.Errorf("%s: %s runs as %q", object.File, name, pod.ServiceAccountName)
		}
	}
}

// What a component that was taken over must not be able to do, and what it needs that is next to
// it.
func TestAccountsHaveWhatTheyNeedAndNoMore(t *testing.T) {
	rules := map[string]map[string][]rbacv1.PolicyRule{}
	for _, account := range []string{"controller", "autoscaler", "webhook", "activator", "node-agent", "dashboard", "courier"} {
		rules[account] = grants(t, account)
	}
	if len(rules["dashboard"]) > 0 {
		t.Errorf("the dashboard has rights of its own: %v", rules["dashboard"])
	}
	for _, row := range []struct {
		account, verb, resource, namespace, name string
		want                                     bool
	}{
		{"controller", "get", "secrets", "tenant", "registry-key", true},
		{"controller", "list", "secrets", "tenant", "", false},
		{"controller", "watch", "secrets", "tenant", "registry-key", false},
		{"controller", "update", "secrets", "tenant", "registry-key", false},
		{"controller", "update", "secrets", "tenant", "ebb-queue-proxy", true},
		{"controller", "delete", "secrets", "tenant", "registry-key", false},
		{"controller", "create", "secrets", "tenant", "", true}, // of one name: TestTheControllerCreatesOneKindOfSecret
		{"controller", "list", "secrets", "knative-serving", "", false},
		{"controller", "list", "secrets", "knative-serving", "routing-serving-certs", true},
		{"controller", "update", "secrets", "knative-serving", "ebb-token-key", true},
		{"controller", "update", "secrets", "knative-serving", "courier-token", true},
		{"controller", "update", "secrets", "knative-serving", "webhook-certs", false},
		{"controller", "create", "pods", "tenant", "", false},
		{"controller", "delete", "pods", "tenant", "a", false},
		{"controller", "update", "leases", "kube-system", "a", false},
		{"controller", "update", "leases", "knative-serving", "a", true},
		{"controller", "list", "servicecidrs.networking.k8s.io", "", "", true},
		{"controller", "update", "services.serving.knative.dev", "tenant", "a", false},
		{"controller", "update", "validatingwebhookconfigurations.admissionregistration.k8s.io", "", "a", false},
		{"autoscaler", "get", "secrets", "tenant", "a", false},
		{"autoscaler", "get", "secrets", "knative-serving", "webhook-certs", false},
		{"autoscaler", "watch", "secrets", "knative-serving", "ebb-token-key", true},
		{"autoscaler", "create", "pods", "tenant", "", false},
		{"autoscaler", "patch", "pods/resize", "tenant", "a", true},
		{"autoscaler", "list", "nodes", "", "", true},
		{"autoscaler", "patch", "nodes", "", "a", false},
		{"autoscaler", "update", "deployments.apps", "tenant", "a", false},
		{"autoscaler", "patch", "deployments.apps/scale", "tenant", "a", true},
		{"autoscaler", "delete", "leases.coordination.k8s.io", "knative-serving", "a", false},
		{"autoscaler", "update", "leases.coordination.k8s.io", "tenant", "a", false},
		{"autoscaler", "update", "secrets", "knative-serving", "autoscaler-view-certs", true},
		{"autoscaler", "update", "secrets", "knative-serving", "webhook-certs", false},
		{"autoscaler", "create", "subjectaccessreviews.authorization.k8s.io", "", "", true},
		{"autoscaler", "create", "tokenreviews.authentication.k8s.io", "", "", false},
		{"autoscaler", "patch", "apiservices.apiregistration.k8s.io", "", "v1alpha1.view.ebb.dev", true},
		{"autoscaler", "patch", "apiservices.apiregistration.k8s.io", "", "v1beta1.metrics.k8s.io", false},
		{"webhook", "get", "secrets", "tenant", "a", false},
		{"webhook", "get", "secrets", "knative-serving", "ebb-token-key", false},
		{"webhook", "update", "secrets", "knative-serving", "webhook-certs", true},
		{"webhook", "create", "pods", "tenant", "", true}, // the dry run
		{"webhook", "get", "pods", "tenant", "a", false},
		{"webhook", "update", "validatingwebhookconfigurations.admissionregistration.k8s.io", "", "config.webhook.serving.knative.dev", true},
		{"webhook", "update", "validatingwebhookconfigurations.admissionregistration.k8s.io", "", "another", false},
		{"activator", "get", "secrets", "tenant", "a", false},
		{"activator", "update", "revisions.serving.knative.dev", "tenant", "a", false},
		{"courier", "get", "secrets", "tenant", "a", false},
		{"courier", "watch", "secrets", "knative-serving", "courier-token", true},
		{"courier", "watch", "secrets", "knative-serving", "ebb-token-key", false},
		{"courier", "update", "secrets", "knative-serving", "courier-token", false},
		{"courier", "watch", "secrets", "knative-serving", "routing-serving-certs", false},
		{"courier", "list", "routes.serving.knative.dev", "tenant", "", true},
		{"courier", "update", "routes.serving.knative.dev", "tenant", "a", false},
		{"courier", "list", "servicecidrs.networking.k8s.io", "", "", true},
		{"courier", "list", "services", "tenant", "", false},
		{"node-agent", "list", "pods", "tenant", "", true},
		{"node-agent", "patch", "pods", "tenant", "a", false},
		{"node-agent", "create", "pods/exec", "tenant", "a", false},
		{"node-agent", "get", "secrets", "knative-serving", "ebb-token-key", false},
		{"node-agent", "get", "secrets", "knative-serving", "node-agent-token", false},
		{"controller", "update", "secrets", "knative-serving", "node-agent-token", true},
		{"autoscaler", "list", "endpointslices.discovery.k8s.io", "knative-serving", "", true},
		{"autoscaler", "list", "endpointslices.discovery.k8s.io", "tenant", "", false},
	} {
		resource, group, _ := strings.Cut(row.resource, ".")
		group, sub, _ := strings.Cut(group, "/")
		if resource == "leases" {
			group = "coordination.k8s.io"
		}
		if sub != "" {
			resource += "/" + sub
		}
		got := false
		for namespace, list := range rules[row.account] {
			for _, rule := range list {
				got = got || (namespace == "" || namespace == row.namespace) && slices.Contains(rule.APIGroups, group) &&
					slices.Contains(rule.Resources, resource) && slices.Contains(rule.Verbs, row.verb) &&
					(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, row.name))
			}
		}
		if got != row.want {
			t.Errorf("%s may %s %s %s/%s: %v", row.account, row.verb, row.resource, row.namespace, row.name, got)
		}
	}
}

// Who may read PodAutoscalers by a role for users may read the API that explains them.
func TestRolesThatReadPodAutoscalersReadViews(t *testing.T) {
	found := 0
	for _, object := range config(t) {
		role, ok := object.Object.(*rbacv1.ClusterRole)
		if !ok || !strings.HasPrefix(role.Name, "knative-serving-namespaced-") {
			continue
		}
		verbs := func(group, resource string) (all []string) {
			for _, rule := range role.Rules {
				if slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, resource) {
					all = append(all, rule.Verbs...)
				}
			}
			return all
		}
		found++
		if scalers, views := verbs("autoscaling.internal.knative.dev", "podautoscalers"), verbs("view.ebb.dev", "services"); !slices.Equal(scalers, views) || len(views) == 0 {
			t.Errorf("%s: %v of PodAutoscalers and %v of views", role.Name, scalers, views)
		}
	}
	if found != 3 {
		t.Errorf("%d roles, want 3", found)
	}
}
