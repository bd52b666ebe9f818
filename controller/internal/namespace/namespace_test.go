package namespace

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
)

var (
	definitions     = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	certificatesOf  = certificate.Resource.GroupResource()
	namespaces      = schema.GroupResource{Resource: "namespaces"}
	secrets         = schema.GroupResource{Resource: "secrets"}
	configMaps      = schema.GroupResource{Resource: "configmaps"}
	revisionsServed = schema.GroupResource{Group: "serving.knative.dev", Resource: "revisions"}
)

type play struct {
	t        *testing.T
	store    *apiservertest.Store
	settings *settings.Store
}

func set(t *testing.T, network map[string]string) *play {
	store, config := apiservertest.Start(t)
	s := &play{t, store, settings.NewStore(nil)}
	s.network(network)
	mgr := stage.Manager(t, config, s.settings)
	stage.Run(t, mgr, New(mgr))
	return s
}

func (s *play) network(data map[string]string) {
	snapshot, err := settings.Parse(map[string]map[string]string{settings.NetworkName: data,
		settings.DomainName: {"example.com": "", "example.org": "selector: {a: b}\ntype: wildcard", "example.net": "selector: {a: c}"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.settings.Set(snapshot)
}

func (s *play) put(resource schema.GroupResource, version, kind, namespace, name string, more map[string]any) {
	content := map[string]any{"apiVersion": version, "kind": kind}
	for key, value := range more {
		content[key] = value
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetNamespace(namespace)
	u.SetName(name)
	if given, ok := more["labels"].(map[string]string); ok {
		delete(content, "labels")
		u.SetLabels(given)
	}
	s.store.Put(resource, u)
}

// certificates lists what was asked for.
func (s *play) certificates() string {
	var out []string
	for name := range s.store.Versions(certificatesOf, labels.Everything()) {
		namespace, short, _ := strings.Cut(name, "/")
		if have := s.store.Get(certificatesOf, namespace, short); have != nil {
			hosts, _, _ := unstructured.NestedStringSlice(have.Object, "spec", "dnsNames")
			out = append(out, name+"("+strings.Join(hosts, ",")+")")
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (s *play) asked(what, want string) {
	s.t.Helper()
	eventually.Seen(s.t, what, func() (string, bool) { got := s.certificates(); return got, got == want })
}

func TestWildcardCertificatesOfNamespacesThatTheSelectorMatches(t *testing.T) {
	on := map[string]string{"external-domain-tls": "Enabled", "namespace-wildcard-cert-selector": "matchLabels: {wildcard: \"yes\"}"}
	s := set(t, on)
	s.put(definitions, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "certificates.cert-manager.io", nil)
	s.put(namespaces, "v1", "Namespace", "", "a", map[string]any{"labels": map[string]string{"wildcard": "yes"}})
	s.put(namespaces, "v1", "Namespace", "", "b", nil)
	both := "a/a.example.com(*.a.example.com) a/a.example.org(*.a.example.org)"
	s.asked("one for each domain that may have one", both)
	if got := s.store.Get(certificatesOf, "a", "a.example.com").GetLabels()[names.WildcardDomainLabel]; got != "example.com" {
		t.Errorf("labelled %q", got)
	}
	s.put(namespaces, "v1", "Namespace", "", "a", nil)
	s.asked("none once the label is gone", "")
	s.put(namespaces, "v1", "Namespace", "", "a", map[string]any{"labels": map[string]string{"wildcard": "yes"}})
	s.asked("again", both)
	on["domain-template"] = "{{.Namespace}}.{{.Name}}.{{.Domain}}"
	s.network(on)
	s.asked("none where one wildcard covers no host", "")
}

func TestCertificatesBetweenEbbsParts(t *testing.T) {
	s := set(t, map[string]string{"system-internal-tls": "Enabled"})
	s.put(namespaces, "v1", "Namespace", "", "knative-serving", nil)
	s.put(namespaces, "v1", "Namespace", "", "a", nil)
	s.put(namespaces, "v1", "Namespace", "", "b", nil)
	s.put(revisionsServed, "serving.knative.dev/v1", "Revision", "a", "hello-00001", nil)
	s.put(definitions, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "certificates.cert-manager.io", nil)
	routing := "knative-serving/routing-serving-certs(kn-routing,data-plane.knative.dev)"
	s.asked("for the activators, and where there are Revisions", "a/serving-certs(kn-user-a,data-plane.knative.dev) "+routing)

	s.put(configMaps, "v1", "ConfigMap", "knative-serving", "bundle", map[string]any{
		"labels": map[string]string{names.TrustBundleLabel: "true"}, "data": map[string]any{"one": "second\n"}})
	s.put(secrets, "v1", "Secret", "knative-serving", "routing-serving-certs", map[string]any{
		"labels": map[string]string{names.CertificateTypeLabel: names.CertificateSystemInternal}, "data": map[string]any{"ca.crt": "Zmlyc3QK"}})
	eventually.Seen(s.t, "the authorities are written down", func() (string, bool) {
		have := s.store.Get(configMaps, "a", names.NamespaceAuthority)
		if have == nil {
			return "nothing", false
		}
		text, _, _ := unstructured.NestedString(have.Object, "data", "ca.crt")
		return text, text == "first\nsecond\n"
	})
	if s.store.Get(configMaps, "b", names.NamespaceAuthority) != nil {
		t.Error("a namespace without Revisions has authorities")
	}
	s.network(nil)
	s.asked("none once the setting is off", "")
}
