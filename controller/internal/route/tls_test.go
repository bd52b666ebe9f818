package route

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/settings"
)

var (
	definitions  = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	certificates = certificate.Resource.GroupResource()
	listenerSets = gatewayapi.ListenerSets.GroupResource()
	gateways     = schema.GroupResource{Group: gatewayv1.GroupName, Resource: "gateways"}
)

// installs the kinds of cert-manager, and the newer ones of the Gateway API.
func (s *stage) installs(kinds ...schema.GroupResource) {
	for _, kind := range kinds {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
		o.SetName(kind.Resource + "." + kind.Group)
		s.store.Put(definitions, o)
	}
}

// network changes config-network.
func (s *stage) network(values ...string) {
	data := map[string]string{}
	for _, v := range values {
		key, value, _ := strings.Cut(v, "=")
		data[key] = value
	}
	snapshot, err := settings.Parse(map[string]map[string]string{settings.DomainName: {"example.com": ""}, settings.NetworkName: data})
	if err != nil {
		s.t.Fatal(err)
	}
	s.settings.Set(snapshot)
}

// issuer plays cert-manager: what it says of a Certificate.
func (s *stage) issuer(name, kind, status, reason string) {
	s.t.Helper()
	have := s.store.Get(certificates, "ns", name)
	if have == nil {
		s.t.Fatalf("there is no Certificate %s; there are %s", name, s.names(certificates))
	}
	_ = unstructured.SetNestedSlice(have.Object, []any{map[string]any{"type": kind, "status": status, "reason": reason,
		"message": "The issuer says " + reason + ".", "observedGeneration": have.GetGeneration()}}, "status", "conditions")
	s.store.Put(certificates, have)
}

func (s *stage) serves() (uid string) {
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.put(gateways, "gateway.networking.k8s.io/v1", "Gateway", &gatewayv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Name: "ebb-external", Namespace: "knative-serving"}})
	s.route("latest=100")
	return string(s.store.Get(routes, "ns", "hello").GetUID())
}

func is(kind, want string) func(*servingv1.Route) bool {
	return func(r *servingv1.Route) bool { return condition(r, kind) == want }
}

// parents lists what the HTTPRoute of the external host is attached to.
func (s *stage) parents() string {
	have := s.store.Get(httpRoutes, "ns", "hello.ns.example.com")
	if have == nil {
		return ""
	}
	list, _, _ := unstructured.NestedSlice(have.Object, "spec", "parentRefs")
	var out []string
	for _, p := range list {
		m := p.(map[string]any)
		out = append(out, m["kind"].(string)+" "+m["name"].(string))
	}
	return strings.Join(out, ", ")
}

func TestAHostIsSecureOnceItsCertificateIsReady(t *testing.T) {
	s := set(t)
	s.installs(certificates, listenerSets)
	s.network("external-domain-tls=Enabled")
	uid := s.serves()
	r := s.until("plain HTTP is served meanwhile", func(r *servingv1.Route) bool {
		return condition(r, "CertificateProvisioned") == "True HTTPDowngrade" && condition(r, "Ready") == "True "
	})
	if r.Status.URL.Scheme != "http" || s.names(listenerSets) != "" {
		t.Errorf("before there is a certificate: url %s, ListenerSets %s", r.Status.URL, s.names(listenerSets))
	}
	asked := s.store.Get(certificates, "ns", "route-"+uid)
	hosts, _, _ := unstructured.NestedStringSlice(asked.Object, "spec", "dnsNames")
	if !slices.Equal(hosts, []string{"hello.ns.example.com"}) || asked.GetLabels()[names.CertificateTypeLabel] != names.CertificateExternalDomain {
		t.Errorf("asked for %v with labels %v", hosts, asked.GetLabels())
	}
	s.issuer("route-"+uid, "Ready", "True", "Ready")
	r = s.until("secure", func(r *servingv1.Route) bool {
		return condition(r, "CertificateProvisioned") == "True " && condition(r, "Ready") == "True " && r.Status.URL.Scheme == "https"
	})
	if got := s.parents(); got != "Gateway ebb-external, ListenerSet hello.ns.example.com" {
		t.Errorf("attached to %s", got)
	}
	if r.Status.Address.URL.Scheme != "http" {
		t.Errorf("the address inside the cluster is %s", r.Status.Address.URL)
	}
	s.network("external-domain-tls=Enabled", "http-protocol=Redirected")
	s.until("redirected", func(*servingv1.Route) bool {
		return strings.Contains(s.names(httpRoutes), "hello.ns.example.com-redirect")
	})
	s.network()
	s.until("plain again", func(r *servingv1.Route) bool {
		return condition(r, "CertificateProvisioned") == "True TLSNotEnabled" && r.Status.URL.Scheme == "http" &&
			s.names(listenerSets) == "" && s.names(certificates) == "" && s.parents() == "Gateway ebb-external" &&
			!strings.Contains(s.names(httpRoutes), "redirect")
	})
}

func TestWithoutCertManagerARouteServesAndSaysWhatIsMissing(t *testing.T) {
	s := set(t)
	s.network("external-domain-tls=Enabled")
	uid := s.serves()
	r := s.until("Ready without a certificate", func(r *servingv1.Route) bool {
		return condition(r, "CertificateProvisioned") == "True HTTPDowngrade" && condition(r, "Ready") == "True "
	})
	if message := r.Status.GetCondition("CertificateProvisioned").Message; !strings.Contains(message, "cert-manager is not installed") {
		t.Errorf("the message is %q", message)
	}
	s.network("external-domain-tls=Enabled", "http-protocol=Redirected")
	s.until("not Ready where plain HTTP is not to be served", is("CertificateProvisioned", "Unknown CertificateNotReady"))
	s.installs(certificates)
	s.until("cert-manager is there", func(r *servingv1.Route) bool {
		return strings.Contains(r.Status.GetCondition("CertificateProvisioned").Message, "version 1.5")
	})
	s.installs(listenerSets)
	s.until("the certificate is asked for", func(r *servingv1.Route) bool { return s.names(certificates) == "route-"+uid })
	s.store.Remove(definitions, "", "certificates.cert-manager.io")
	s.until("cert-manager is gone", func(r *servingv1.Route) bool {
		return strings.Contains(r.Status.GetCondition("CertificateProvisioned").Message, "cert-manager is not installed")
	})
}

func TestACertificateThatFailsIsReportedByWhatHTTPMayDo(t *testing.T) {
	s := set(t)
	s.installs(certificates, listenerSets)
	s.network("external-domain-tls=Enabled", "http-protocol=Redirected")
	uid := s.serves()
	s.until("pending", is("CertificateProvisioned", "Unknown CertificateNotReady"))
	s.issuer("route-"+uid, "Issuing", "False", "Failed")
	r := s.until("failed", is("CertificateProvisioned", "False CertificateProvisionFailed"))
	if message := r.Status.GetCondition("CertificateProvisioned").Message; !strings.Contains(message, "The issuer says Failed") {
		t.Errorf("the message is %q", message)
	}
	s.network("external-domain-tls=Enabled")
	s.until("served all the same", func(r *servingv1.Route) bool {
		return condition(r, "CertificateProvisioned") == "True HTTPDowngrade" && condition(r, "Ready") == "True "
	})
}

func TestACertificateOfSomebodyElseIsNotTouched(t *testing.T) {
	s := set(t)
	s.installs(certificates, listenerSets)
	uid := s.serves()
	s.until("Ready", is("Ready", "True "))
	foreign := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cert-manager.io/v1", "kind": "Certificate"}}
	foreign.SetNamespace("ns")
	foreign.SetName("route-" + uid)
	s.store.Put(certificates, foreign)
	s.network("external-domain-tls=Enabled")
	s.until("refused", is("CertificateProvisioned", "False CertificateNotOwned"))
}

func TestARouteOptsOutOfCertificates(t *testing.T) {
	for key, want := range map[string]string{
		names.DisableTLSAnnotation: "True TLSNotEnabled", names.DisableTLSAnnotationAlt: "True TLSNotEnabled", names.DisableTLSAnnotationAlt2: "True TLSNotEnabled",
	} {
		s := set(t)
		s.installs(certificates, listenerSets)
		s.network("external-domain-tls=Enabled")
		s.put(routes, "serving.knative.dev/v1", "Route", &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns",
			Annotations: map[string]string{key: "true"}}})
		s.serves()
		s.until(key, func(r *servingv1.Route) bool {
			return condition(r, "CertificateProvisioned") == want && condition(r, "Ready") == "True "
		})
		if got := s.names(certificates); got != "" {
			t.Errorf("%s: asked for %s", key, got)
		}
	}
}

func TestAnAnnotationThatCannotBeReadIsReported(t *testing.T) {
	for _, key := range []string{names.HTTPProtocolAnnotation, names.DisableTLSAnnotation} {
		s := set(t)
		s.put(routes, "serving.knative.dev/v1", "Route", &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns",
			Annotations: map[string]string{key: "perhaps"}}})
		s.serves()
		s.until(key, is("IngressReady", "False InvalidAnnotation"))
	}
}

func TestANamespacesWildcardCertificateIsGoodForItsHosts(t *testing.T) {
	s := set(t)
	s.installs(certificates, listenerSets)
	s.network("external-domain-tls=Enabled")
	wildcard := certificate.Object(certificate.Want{Namespace: "ns", Name: "ns.example.com", Type: names.CertificateExternalDomain,
		Hosts: []string{"*.ns.example.com"}, Labels: map[string]string{names.WildcardDomainLabel: "example.com"}})
	s.store.Put(certificates, wildcard)
	s.serves()
	s.until("the wildcard is waited for", is("CertificateProvisioned", "True HTTPDowngrade"))
	s.issuer("ns.example.com", "Ready", "True", "Ready")
	s.until("secure", func(r *servingv1.Route) bool {
		return r.Status.URL.Scheme == "https" && condition(r, "Ready") == "True "
	})
	if got := s.names(certificates); got != "ns.example.com" {
		t.Errorf("Certificates %s", got)
	}
}

// A wildcard certificate that is asked for later takes over without a moment of plain HTTP.
func TestAHostKeepsItsCertificateUntilTheWildcardIsThere(t *testing.T) {
	s := set(t)
	s.installs(certificates, listenerSets)
	s.network("external-domain-tls=Enabled")
	own := "route-" + s.serves()
	s.until("asked for", func(*servingv1.Route) bool { return s.names(certificates) == own })
	s.issuer(own, "Ready", "True", "Ready")
	secret := func() string {
		set := s.store.Get(listenerSets, "ns", "hello.ns.example.com")
		if set == nil {
			return ""
		}
		listeners, _, _ := unstructured.NestedSlice(set.Object, "spec", "listeners")
		refs, _, _ := unstructured.NestedSlice(listeners[0].(map[string]any), "tls", "certificateRefs")
		return refs[0].(map[string]any)["name"].(string)
	}
	s.until("secure", func(r *servingv1.Route) bool {
		return r.Status.URL.Scheme == "https" && condition(r, "Ready") == "True " && secret() == own
	})
	s.store.Put(certificates, certificate.Object(certificate.Want{Namespace: "ns", Name: "ns.example.com", Type: names.CertificateExternalDomain,
		Hosts: []string{"*.ns.example.com"}, Labels: map[string]string{names.WildcardDomainLabel: "example.com"}}))
	s.route("hello-00001=100") // another event, so that the Route has been looked at when it shows
	s.until("looked at again", func(r *servingv1.Route) bool {
		return len(r.Status.Traffic) == 1 && r.Status.Traffic[0].LatestRevision != nil && !*r.Status.Traffic[0].LatestRevision
	})
	if got := secret(); got != own {
		t.Errorf("before the wildcard is there the host is served with %q", got)
	}
	s.issuer("ns.example.com", "Ready", "True", "Ready")
	s.until("the wildcard takes over", func(*servingv1.Route) bool {
		return secret() == "ns.example.com" && s.names(certificates) == "ns.example.com"
	})
}

func TestHostsInsideTheClusterGetACertificateToo(t *testing.T) {
	s := set(t)
	s.installs(certificates, listenerSets)
	s.network("cluster-local-domain-tls=Enabled")
	uid := s.serves()
	s.until("asked for", func(r *servingv1.Route) bool { return s.names(certificates) == "route-"+uid+"-local" })
	hosts, _, _ := unstructured.NestedStringSlice(s.store.Get(certificates, "ns", "route-"+uid+"-local").Object, "spec", "dnsNames")
	if want := []string{"hello.ns", "hello.ns.svc", "hello.ns.svc.cluster.local"}; !slices.Equal(hosts, want) {
		t.Errorf("asked for %v, want %v", hosts, want)
	}
	s.issuer("route-"+uid+"-local", "Ready", "True", "Ready")
	r := s.until("secure", func(r *servingv1.Route) bool {
		return r.Status.Address.URL.Scheme == "https" && condition(r, "Ready") == "True "
	})
	if r.Status.URL.Scheme != "http" {
		t.Errorf("the external url is %s", r.Status.URL)
	}
	if got := s.names(listenerSets); got != "hello.ns.svc.cluster.local" {
		t.Errorf("ListenerSets %s", got)
	}
}
