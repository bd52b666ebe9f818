package settings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"ebb.dev/ebb/api/rules"
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

// Template is a Go template that makes host names.
type Template = rules.Template

// DomainValues are what a domain-template may use.
type DomainValues struct {
	Name, Namespace, Domain string
	Annotations, Labels     map[string]string
}

// TagValues are what a tag-template may use.
type TagValues struct{ Tag, Name string }

// setSelector takes the label selector of namespaces that get a wildcard certificate.
func (n *Network) setSelector(text string) error {
	selector := &metav1.LabelSelector{}
	if err := unmarshal(text, selector, "a label selector in YAML"); err != nil {
		return err
	}
	if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
		return fmt.Errorf("is not a label selector: %w", err)
	}
	n.NamespaceWildcardCertSelector = selector
	return nil
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

func (d *Domain) set(domain, text string) error {
	if len(domain) > 253 || !dnsDomain.MatchString(domain) {
		return errors.New("is not a domain name")
	}
	var entry struct {
		Selector map[string]string `json:"selector,omitempty"`
		Type     string            `json:"type,omitempty"`
	}
	if err := unmarshal(text, &entry, "YAML of the form {selector: {label: value}, type: wildcard}"); err != nil {
		return err
	}
	if _, err := labels.ValidatedSelectorFromSet(entry.Selector); err != nil {
		return fmt.Errorf("has a selector that no label can match: %w", err)
	}
	if entry.Type != "" && entry.Type != "wildcard" {
		return fmt.Errorf("type %q is not \"wildcard\" or empty", entry.Type)
	}
	d.Choices = append(d.Choices, DomainChoice{
		Domain: domain, Selector: entry.Selector,
		Wildcard: entry.Type == "wildcard" || len(entry.Selector) == 0,
	})
	return nil
}

// sortDomains puts the most specific choice first.
func (s *Snapshot) sortDomains(*reader) {
	slices.SortStableFunc(s.Domain.Choices, func(a, b DomainChoice) int {
		return cmp.Or(cmp.Compare(len(b.Selector), len(a.Selector)), strings.Compare(a.Domain, b.Domain))
	})
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
