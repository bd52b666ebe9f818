package settings

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// Network is config-network.
type Network struct {
	IngressClass                  string
	CertificateClass              string
	NamespaceWildcardCertSelector *metav1.LabelSelector // nil = no namespace wildcard certificates
	DomainTemplate                Template
	TagTemplate                   Template
	ExternalDomainTLS             bool
	ClusterLocalDomainTLS         bool
	SystemInternalTLS             bool
	HTTPProtocol                  HTTPProtocol
	RolloutDuration               time.Duration // 0 = switch at once
	AutoCreateClusterDomainClaims bool
	EnableMeshPodAddressability   bool
	MeshCompatibilityMode         string // auto, enabled, disabled
	DefaultExternalScheme         string // http, https
}

// MeshAddressing says whether the activator and the autoscaler, which always connect to one pod,
// name it in a way that a service mesh knows: by the private Service, which is headless.
func (n Network) MeshAddressing() bool {
	return n.EnableMeshPodAddressability || n.MeshCompatibilityMode == "enabled"
}

// HTTPProtocol says what plain HTTP on an external host does once the host has TLS.
type HTTPProtocol string

// Values of Network.HTTPProtocol.
const (
	HTTPEnabled    HTTPProtocol = "enabled"
	HTTPRedirected HTTPProtocol = "redirected"
	HTTPDisabled   HTTPProtocol = "disabled" // deprecated
)

// Template is a Go template that makes host names. The zero Template is not usable.
type Template struct {
	text     string
	compiled *template.Template
}

// String is the template's text.
func (t Template) String() string { return t.text }

// Equal compares by text.
func (t Template) Equal(o Template) bool { return t.text == o.text }

// DomainValues are what a domain-template may use.
type DomainValues struct {
	Name, Namespace, Domain string
	Annotations, Labels     map[string]string
}

// TagValues are what a tag-template may use.
type TagValues struct{ Tag, Name string }

// Expand applies the template to DomainValues or TagValues. The result is bounded by the longest
// DNS name.
func (t Template) Expand(values any) (string, error) {
	if t.compiled == nil {
		return "", errors.New("the template is empty")
	}
	return execute(t.compiled, values)
}

// maxName bounds what a template may write, one more than the longest DNS name.
const maxName = 254

type boundedBuffer struct{ bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxName {
		return 0, errors.New("the result is longer than a DNS name may be")
	}
	return b.Buffer.Write(p)
}

func execute(t *template.Template, values any) (string, error) {
	var out boundedBuffer
	if err := t.Execute(&out, values); err != nil {
		return "", err
	}
	return out.String(), nil
}

func (r *reader) template(key, def string, sample any, legal func(string) bool, expected string) Template {
	text := r.nonEmpty(key, def)
	_, name, _ := r.lookup(key)
	compile := func(text string) (Template, error) {
		c, err := template.New(key).Option("missingkey=zero").Parse(text)
		return Template{text: text, compiled: c}, err
	}
	t, err := compile(text)
	if err == nil {
		var result string
		if result, err = t.Expand(sample); err == nil {
			if legal(result) {
				return t
			}
			r.fault(name, text, "gives %q, expected %s", result, expected)
		}
	}
	if err != nil {
		r.fault(name, text, "is not a usable Go template: %v", err)
	}
	t, _ = compile(def)
	return t
}

// gaps are the places in a host name where a value was missing.
var gaps = regexp.MustCompile(`([-.])[-.]+`)

func readNetwork(r *reader) Network {
	// The oldest names of these keys took true and false.
	onOff := func(key string) bool {
		word := r.oneOf(key, "Disabled", "Enabled", "Disabled", "true", "false")
		return word == "Enabled" || word == "true"
	}
	n := Network{
		IngressClass:     r.nonEmpty("ingress-class", "istio.ingress.networking.knative.dev"),
		CertificateClass: r.nonEmpty("certificate-class", "cert-manager.certificate.networking.knative.dev"),
		// Annotation- and label-dependent parts are empty in the sample, so a template may need
		// them to make a whole name: only shape that no value can mend is refused here.
		DomainTemplate: r.template("domain-template", "{{.Name}}.{{.Namespace}}.{{.Domain}}",
			DomainValues{Name: "name", Namespace: "namespace", Domain: "example.com",
				Annotations: map[string]string{}, Labels: map[string]string{}},
			func(s string) bool {
				return dnsDomain.MatchString(gaps.ReplaceAllString(strings.Trim(s, ".-"), "$1"))
			},
			"a DNS name"),
		TagTemplate: r.template("tag-template", "{{.Tag}}-{{.Name}}", TagValues{Tag: "tag", Name: "name"},
			dnsLabel.MatchString, "a DNS label"),
		ExternalDomainTLS:     onOff("external-domain-tls"),
		ClusterLocalDomainTLS: onOff("cluster-local-domain-tls"),
		SystemInternalTLS:     onOff("system-internal-tls"),
		HTTPProtocol: HTTPProtocol(r.oneOf("http-protocol", string(HTTPEnabled),
			string(HTTPEnabled), string(HTTPRedirected), string(HTTPDisabled))),
		RolloutDuration:               time.Duration(r.integer("rollout-duration", 0, 0, math.MaxInt32)) * time.Second,
		AutoCreateClusterDomainClaims: r.boolean("autocreate-cluster-domain-claims", false),
		EnableMeshPodAddressability:   r.boolean("enable-mesh-pod-addressability", false),
		MeshCompatibilityMode:         r.oneOf("mesh-compatibility-mode", "auto", "auto", "enabled", "disabled"),
		DefaultExternalScheme:         r.oneOf("default-external-scheme", "http", "http", "https"),
	}
	if text, key, ok := r.lookup("namespace-wildcard-cert-selector"); ok && text != "" {
		sel := &metav1.LabelSelector{}
		err := yaml.UnmarshalStrict([]byte(text), sel)
		if err == nil {
			_, err = metav1.LabelSelectorAsSelector(sel)
		}
		if err != nil {
			r.fault(key, text, "is not a label selector in YAML: %v", err)
		} else {
			n.NamespaceWildcardCertSelector = sel
		}
	}
	return n
}

// Domain is config-domain: which domain a Route's hosts end in.
type Domain struct {
	Choices []DomainChoice // most specific first, then by name
}

// DomainChoice is one key of config-domain.
type DomainChoice struct {
	Domain   string
	Selector map[string]string // empty = the default
	Wildcard bool              // certificates for the whole domain may be asked for
}

func readDomain(r *reader) Domain {
	d := Domain{}
	for _, domain := range slices.Sorted(maps.Keys(r.data)) {
		text := r.data[domain]
		if domain == "_example" {
			continue
		}
		if len(domain) > 253 || !dnsDomain.MatchString(domain) {
			r.fault(domain, text, "is not a domain name")
			continue
		}
		var entry struct {
			Selector map[string]string `json:"selector,omitempty"`
			Type     string            `json:"type,omitempty"`
		}
		if err := yaml.UnmarshalStrict([]byte(text), &entry); err != nil {
			r.fault(domain, text, "is not YAML of the form {selector: {label: value}, type: wildcard}: %v", err)
			continue
		}
		if _, err := labels.ValidatedSelectorFromSet(entry.Selector); err != nil {
			r.fault(domain, text, "has a selector that no label can match: %v", err)
			continue
		}
		if entry.Type != "" && entry.Type != "wildcard" {
			r.fault(domain, text, "type %q is not \"wildcard\" or empty", entry.Type)
			continue
		}
		d.Choices = append(d.Choices, DomainChoice{
			Domain: domain, Selector: entry.Selector,
			Wildcard: entry.Type == "wildcard" || len(entry.Selector) == 0,
		})
	}
	slices.SortStableFunc(d.Choices, func(a, b DomainChoice) int {
		if n := len(b.Selector) - len(a.Selector); n != 0 {
			return n
		}
		return strings.Compare(a.Domain, b.Domain)
	})
	return d
}

// Lookup is the domain for a Route with these labels: of the choices whose selector matches, the
// one with the largest selector, among equals the first by name. Without any it is svc.<cluster
// domain>, which keeps the Route local.
func (d Domain) Lookup(routeLabels map[string]string, clusterDomain string) string {
	for _, c := range d.Choices {
		if labels.SelectorFromSet(c.Selector).Matches(labels.Set(routeLabels)) {
			return c.Domain
		}
	}
	return "svc." + clusterDomain
}
