// Package certificate builds cert-manager's Certificates and reads their status.
//
// Owns: names, hosts and metadata of Certificates. Reads: nothing but its arguments. Writes:
// nothing. Never: reuses a private key when a certificate is renewed.
package certificate

import (
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/settings"
)

// Resource is cert-manager's kind.
var Resource = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}

// Selector matches the Certificates that Ebb created.
const Selector = names.CertificateTypeLabel

// Want describes a certificate. The Certificate and its Secret have the same name.
type Want struct {
	Namespace, Name string
	Type            string // names.CertificateExternalDomain or another of these
	Hosts           []string
	Issuer          settings.IssuerRef
	// Labels and Annotations are put on the Certificate.
	Labels, Annotations map[string]string
	Owner               metav1.OwnerReference
}

// maxCommonName is the longest common name that a certificate can hold.
const maxCommonName = 64

// spec is the part of a Certificate's spec that is used here.
type spec struct {
	SecretName     string          `json:"secretName"`
	SecretTemplate *secretTemplate `json:"secretTemplate,omitempty"`
	CommonName     string          `json:"commonName,omitempty"`
	DNSNames       []string        `json:"dnsNames"`
	IssuerRef      issuerRef       `json:"issuerRef"`
	PrivateKey     privateKey      `json:"privateKey"`
}

type secretTemplate struct {
	Labels map[string]string `json:"labels,omitempty"`
}

type issuerRef struct {
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"`
	Name  string `json:"name"`
}

type privateKey struct {
	RotationPolicy string `json:"rotationPolicy"`
	Algorithm      string `json:"algorithm,omitempty"`
	Size           int64  `json:"size,omitempty"`
}

// Object returns the Certificate.
func Object(w Want) *unstructured.Unstructured {
	labels := maps.Clone(w.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[names.CertificateTypeLabel] = w.Type
	content := spec{
		SecretName: w.Name, DNSNames: w.Hosts,
		SecretTemplate: &secretTemplate{Labels: map[string]string{names.CertificateTypeLabel: w.Type}},
		IssuerRef:      issuerRef{Group: w.Issuer.Group, Kind: w.Issuer.Kind, Name: w.Issuer.Name},
		PrivateKey:     privateKey{RotationPolicy: "Always"},
	}
	if content.IssuerRef.Group == "" {
		content.IssuerRef.Group = Resource.Group
	}
	// Browsers and Go check the DNS names only, so a host that is too long for the common name
	// needs none.
	if len(w.Hosts) > 0 && len(w.Hosts[0]) <= maxCommonName {
		content.CommonName = w.Hosts[0]
	}
	if w.Type != names.CertificateExternalDomain {
		// Both ends are known here and support the faster key. Clients of a public host may not.
		content.PrivateKey.Algorithm, content.PrivateKey.Size = "ECDSA", 256
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&content)
	if err != nil {
		panic(fmt.Sprintf("a Certificate is plain data: %v", err))
	}
	out := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	out.SetAPIVersion(Resource.GroupVersion().String())
	out.SetKind("Certificate")
	out.SetNamespace(w.Namespace)
	out.SetName(w.Name)
	out.SetLabels(labels)
	out.SetAnnotations(maps.Clone(w.Annotations))
	out.SetOwnerReferences([]metav1.OwnerReference{w.Owner})
	return out
}

// State of a certificate.
type State int

// States, from the best to the worst.
const (
	Ready State = iota
	Pending
	Failed
)

// StateOf reads the status of a Certificate.
//
//	Ready                   | Issuing                | state
//	True for the generation | any                    | Ready, also during a renewal
//	otherwise               | False, reason Failed   | Failed; cert-manager retries
//	otherwise               | otherwise              | Pending
func StateOf(object *unstructured.Unstructured) (State, string) {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	state, why := Pending, "cert-manager has not reported on it yet"
	for _, c := range conditions {
		m, ok := c.(map[string]any)
		if !ok {
			continue
		}
		text := func(key string) string { s, _ := m[key].(string); return s }
		observed, has := m["observedGeneration"].(int64)
		current := !has || observed == object.GetGeneration()
		switch text("type") {
		case "Ready":
			if text("status") == "True" && current {
				return Ready, ""
			}
			if state == Pending && current && text("message") != "" {
				why = text("message")
			}
		case "Issuing":
			if text("status") == "False" && text("reason") == "Failed" && current {
				state, why = Failed, text("message")
			}
		}
	}
	return state, strings.TrimSuffix(why, ".")
}

// Covers reports whether a name of a certificate, which may be a wildcard, matches a host.
func Covers(name, host string) bool {
	if domain, wildcard := strings.CutPrefix(name, "*."); wildcard {
		_, rest, ok := strings.Cut(host, ".")
		return ok && rest == domain
	}
	return name == host
}
