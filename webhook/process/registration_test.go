package process

import (
	"os"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/test/golden"
	"ebb.dev/ebb/webhook/internal/admit"
)

// registered is what mutating and validating webhooks have alike.
type registered struct {
	Name              string                                       `json:"name"`
	ClientConfig      admissionregistrationv1.WebhookClientConfig  `json:"clientConfig"`
	FailurePolicy     admissionregistrationv1.FailurePolicyType    `json:"failurePolicy"`
	SideEffects       admissionregistrationv1.SideEffectClass      `json:"sideEffects"`
	TimeoutSeconds    int32                                        `json:"timeoutSeconds"`
	NamespaceSelector *metav1.LabelSelector                        `json:"namespaceSelector"`
	Rules             []admissionregistrationv1.RuleWithOperations `json:"rules"`
	MatchConditions   []admissionregistrationv1.MatchCondition     `json:"matchConditions"`
}

func registrations(t *testing.T) map[string][]registered {
	t.Helper()
	text, err := os.ReadFile("../../config/core/webhook.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]registered{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var configuration struct {
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
			Webhooks          []registered `json:"webhooks"`
		}
		if err := yaml.Unmarshal([]byte(document), &configuration); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(configuration.Kind, "WebhookConfiguration") {
			found[configuration.Kind+" "+configuration.Name] = configuration.Webhooks
		}
	}
	return found
}

// The webhook puts its registrations back to what it was built with; that is what is installed.
func TestTheEmbeddedRegistrationsAreThoseThatAreInstalled(t *testing.T) {
	text, err := os.ReadFile("../../config/core/webhook.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := "# Written by `go test ./webhook/process -update` from config/core/webhook.yaml.\n"
	separator := ""
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(meta.Kind, "WebhookConfiguration") {
			want += separator + strings.Trim(document, "\n")
			separator = "\n---\n"
		}
	}
	want += "\n"
	const file = "../internal/certs/registrations.yaml"
	golden.File(t, file, want)
}

func TestRegistrationsReachThePathsUnderTheKnownNames(t *testing.T) {
	found := registrations(t)
	for configuration, paths := range map[string][]string{
		"MutatingWebhookConfiguration webhook.serving.knative.dev":              {admit.PathDefaulting, admit.PathEarly},
		"ValidatingWebhookConfiguration validation.webhook.serving.knative.dev": {admit.PathValidation},
		"ValidatingWebhookConfiguration config.webhook.serving.knative.dev":     {admit.PathConfigMaps},
	} {
		webhooks := found[configuration]
		if len(webhooks) != len(paths) {
			t.Errorf("%s has %d webhooks, want %d", configuration, len(webhooks), len(paths))
			continue
		}
		for i, w := range webhooks {
			if got := *w.ClientConfig.Service.Path; got != paths[i] {
				t.Errorf("%s leads to %s, want %s", configuration, got, paths[i])
			}
			if w.TimeoutSeconds != 10 || w.SideEffects != admissionregistrationv1.SideEffectClassNone {
				t.Errorf("%s: timeout %d, side effects %s", configuration, w.TimeoutSeconds, w.SideEffects)
			}
			wantPolicy := admissionregistrationv1.Fail
			if paths[i] == admit.PathEarly {
				wantPolicy = admissionregistrationv1.Ignore
			}
			if w.FailurePolicy != wantPolicy {
				t.Errorf("%s %s: failure policy %s, want %s", configuration, paths[i], w.FailurePolicy, wantPolicy)
			}
		}
	}
}

func TestNamespacesCanOptOut(t *testing.T) {
	for configuration, webhooks := range registrations(t) {
		if strings.HasSuffix(configuration, " config.webhook.serving.knative.dev") {
			continue
		}
		for _, w := range webhooks {
			selector, err := metav1.LabelSelectorAsSelector(w.NamespaceSelector)
			if err != nil {
				t.Fatal(err)
			}
			if !selector.Matches(set{}) || selector.Matches(set{names.WebhookExcludeLabel: "true"}) {
				t.Errorf("%s %s does not follow label %s", configuration, w.Name, names.WebhookExcludeLabel)
			}
		}
	}
}

type set map[string]string

func (s set) Has(key string) bool              { _, ok := s[key]; return ok }
func (s set) Get(key string) string            { return s[key] }
func (s set) Lookup(key string) (string, bool) { value, ok := s[key]; return value, ok }

// A webhook that is down stops people, and neither pods, nor status, nor the controller.
func TestAWebhookThatIsDownStopsNothingThatRuns(t *testing.T) {
	for configuration, webhooks := range registrations(t) {
		for _, w := range webhooks {
			for _, rule := range w.Rules {
				for _, resource := range rule.Resources {
					if strings.ContainsAny(resource, "/*") {
						t.Errorf("%s is asked about %s", configuration, resource)
					}
				}
				for _, group := range rule.APIGroups {
					isConfig := strings.HasSuffix(configuration, " config.webhook.serving.knative.dev")
					if !strings.HasSuffix(group, "knative.dev") && !isConfig {
						t.Errorf("%s is asked about group %q", configuration, group)
					}
				}
			}
			if strings.HasSuffix(configuration, " config.webhook.serving.knative.dev") {
				continue
			}
			found := false
			for _, condition := range w.MatchConditions {
				found = found || strings.Contains(condition.Expression, `request.userInfo.username != "system:serviceaccount:knative-serving:controller"`)
			}
			if !found {
				t.Errorf("%s %s stands in the controller's way", configuration, w.Name)
			}
		}
	}
}
