package certificate

import (
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

func TestCertificates(t *testing.T) {
	owner := metav1.OwnerReference{APIVersion: "serving.knative.dev/v1", Kind: "Route", Name: "hello", UID: "uid", Controller: ptr.To(true)}
	for name, want := range map[string]Want{
		"external": {Namespace: "ns", Name: "route-uid", Type: names.CertificateExternalDomain, Hosts: []string{"hello.ns.example.com"},
			Issuer: settings.Default().CertManager.Issuer, Labels: map[string]string{names.RouteLabel: "hello"}, Owner: owner},
		"cluster-local": {Namespace: "ns", Name: "route-uid-local", Type: names.CertificateClusterLocalDomain,
			Hosts: []string{"hello.ns", "hello.ns.svc", "hello.ns.svc.cluster.local"}, Issuer: settings.IssuerRef{Kind: "Issuer", Name: "mine", Group: "example.com"}, Owner: owner},
		"a-host-too-long-for-a-common-name": {Namespace: "ns", Name: "route-uid", Type: names.CertificateExternalDomain,
			Hosts: []string{strings.Repeat("a", 60) + ".ns.example.com"}, Issuer: settings.Default().CertManager.Issuer, Owner: owner},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := yaml.Marshal(Object(want).Object)
			if err != nil {
				t.Fatal(err)
			}
			golden.File(t, filepath.Join("testdata", name+".yaml"), string(raw))
		})
	}
}

func TestWhatCertManagerSaysIsRead(t *testing.T) {
	condition := func(kind, status, reason string, generation int64) map[string]any {
		return map[string]any{"type": kind, "status": status, "reason": reason, "message": reason + " is why.", "observedGeneration": generation}
	}
	for name, row := range map[string]struct {
		conditions []any
		want       State
		why        string
	}{
		"nothing yet":                     {nil, Pending, "cert-manager has not reported on it yet"},
		"ready":                           {[]any{condition("Ready", "True", "Ready", 2)}, Ready, ""},
		"ready, of an older generation":   {[]any{condition("Ready", "True", "Ready", 1)}, Pending, "cert-manager has not reported on it yet"},
		"ready, and renewed":              {[]any{condition("Issuing", "True", "Renewing", 2), condition("Ready", "True", "Ready", 2)}, Ready, ""},
		"ready, and the renewal failed":   {[]any{condition("Issuing", "False", "Failed", 2), condition("Ready", "True", "Ready", 2)}, Ready, ""},
		"being issued":                    {[]any{condition("Issuing", "True", "DoesNotExist", 2), condition("Ready", "False", "DoesNotExist", 2)}, Pending, "DoesNotExist is why"},
		"failed":                          {[]any{condition("Ready", "False", "DoesNotExist", 2), condition("Issuing", "False", "Failed", 2)}, Failed, "Failed is why"},
		"failed, the other way round":     {[]any{condition("Issuing", "False", "Failed", 2), condition("Ready", "False", "DoesNotExist", 2)}, Failed, "Failed is why"},
		"conditions that are no objects":  {[]any{"x", int64(1)}, Pending, "cert-manager has not reported on it yet"},
		"conditions of another structure": {[]any{map[string]any{"type": int64(1), "status": map[string]any{}}}, Pending, "cert-manager has not reported on it yet"},
	} {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": row.conditions}}}
			object.SetGeneration(2)
			if state, why := StateOf(object); state != row.want || why != row.why {
				t.Errorf("got %v, %q, want %v, %q", state, why, row.want, row.why)
			}
		})
	}
}

func TestAWildcardCoversOneLabel(t *testing.T) {
	for _, row := range []struct {
		name, host string
		want       bool
	}{
		{"*.ns.example.com", "hello.ns.example.com", true},
		{"*.ns.example.com", "a.hello.ns.example.com", false},
		{"*.ns.example.com", "ns.example.com", false},
		{"*.example.com", "hello.ns.example.com", false},
		{"hello.example.com", "hello.example.com", true},
		{"*.", "hello", false},
	} {
		if got := Covers(row.name, row.host); got != row.want {
			t.Errorf("%s covers %s: %v", row.name, row.host, got)
		}
	}
}
