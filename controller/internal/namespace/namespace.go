// Package namespace keeps the certificates that belong to a namespace as a whole.
//
// Owns: in each namespace, the wildcard certificates of its hosts, the certificate of its
// queue-proxies, and the authorities by which gateways verify it; in the system namespace, the
// certificate of the activators. Reads: Namespaces, whether they have Revisions, settings, the
// activators' Secret, trust bundles. Writes: Certificates, one ConfigMap. Never: a private key.
package namespace

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/certificate"
	"ebb.dev/ebb/controller/internal/reconcile"
	certificates "ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// mine is the label of the objects that this package creates.
var mine = labels.Set{names.NamespaceCertificateLabel: "true"}

type reconciler struct {
	kube         kubernetes.Interface
	settings     *settings.Store
	system       string
	namespaces   corelisters.NamespaceLister
	revisions    listers.RevisionLister
	authorities  corelisters.ConfigMapLister // of namespaces
	secrets      corelisters.SecretLister    // of the activators
	bundles      corelisters.ConfigMapLister // trust bundles
	certificates *certificate.Certificates
	log          *slog.Logger
}

// New returns the reconciler of Namespaces.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	all := mgr.Kubernetes("", "").Core().V1().Namespaces()
	revisions := mgr.EbbInformers.Serving().V1().Revisions()
	authorities := mgr.Kubernetes("", mine.String()).Core().V1().ConfigMaps()
	secrets := mgr.Named(mgr.SystemNamespace, names.RoutingCertificate).Core().V1().Secrets()
	bundles := mgr.Kubernetes(mgr.SystemNamespace, names.TrustBundleLabel+"=true").Core().V1().ConfigMaps()
	r := &reconciler{
		kube: mgr.Kube, settings: mgr.Settings, log: mgr.Log, system: mgr.SystemNamespace, namespaces: all.Lister(), revisions: revisions.Lister(),
		authorities: authorities.Lister(), secrets: secrets.Lister(), bundles: bundles.Lister(),
	}
	c := &reconcile.Controller{Name: "namespace", Reconcile: r.reconcile, Keys: reconcile.AllOf(all.Informer())}
	its := func(object any) []reconcile.Key {
		return []reconcile.Key{{Name: object.(metav1.Object).GetNamespace()}}
	}
	r.certificates = certificate.New(mgr, c, func(object any) []reconcile.Key {
		if object.(metav1.Object).GetLabels()[names.NamespaceCertificateLabel] == "" {
			return nil
		}
		return its(object)
	})
	c.Watch(all.Informer(), reconcile.Self)
	// A namespace needs a certificate from its first Revision on.
	c.Watch(revisions.Informer(), func(object any) []reconcile.Key {
		if !mgr.Settings.Load().Network.SystemInternalTLS {
			return nil
		}
		return its(object)
	})
	c.Watch(authorities.Informer(), its)
	everybody := func(any) []reconcile.Key { return c.Keys() }
	c.Watch(secrets.Informer(), everybody)
	c.Watch(bundles.Informer(), everybody)
	return c
}

func (r *reconciler) reconcile(ctx context.Context, key reconcile.Key) (time.Duration, error) {
	ns, found, err := apply.Found(r.namespaces.Get(key.Name))
	if err != nil || !found || ns.DeletionTimestamp != nil {
		return 0, err
	}
	s := r.settings.Load()
	wanted := map[string]bool{}
	if r.certificates.Missing() == "" {
		for _, want := range r.wants(ns, s) {
			wanted[want.Name] = true
			if _, _, err := r.certificates.Ensure(ctx, ns, want); err != nil {
				return 0, fmt.Errorf("certificate of namespace %s: %w", ns.Name, err)
			}
		}
	}
	if missing := r.certificates.Missing(); missing != "" && s.Network.SystemInternalTLS && ns.Name == r.system {
		r.log.Warn("system-internal-tls is on but has no effect: requests inside the cluster are not encrypted", "why", missing)
	}
	if err := r.certificates.Prune(ctx, ns.Name, ns, mine, wanted); err != nil {
		return 0, err
	}
	if wanted[names.NamespaceCertificate] {
		return 0, r.authority(ctx, ns)
	}
	return 0, nil
}

// wants lists the certificates of a namespace.
//
//	certificate            | in                                | hosts                                  | when
//	routing-serving-certs  | the system namespace              | kn-routing, data-plane.knative.dev     | system-internal-tls
//	serving-certs          | each namespace with a Revision    | kn-user-<ns>, data-plane.knative.dev   | system-internal-tls
//	<domain of the hosts>  | each that the selector matches    | *.<domain of the hosts>                | external-domain-tls
func (r *reconciler) wants(ns *corev1.Namespace, s *settings.Snapshot) (out []certificates.Want) {
	want := func(name, kind string, issuer settings.IssuerRef, more map[string]string, hosts ...string) {
		given := labels.Merge(mine, more)
		out = append(out, certificates.Want{Namespace: ns.Name, Name: name, Type: kind, Hosts: hosts, Issuer: issuer, Labels: given,
			Owner: ownedBy(ns)})
	}
	if s.Network.SystemInternalTLS {
		if ns.Name == r.system {
			want(names.RoutingCertificate, names.CertificateSystemInternal, s.CertManager.SystemInternalIssuer, nil,
				wire.NameRouting, wire.NameDataPlane)
		} else if list, err := r.revisions.Revisions(ns.Name).List(labels.Everything()); err == nil && len(list) > 0 {
			want(names.NamespaceCertificate, names.CertificateSystemInternal, s.CertManager.SystemInternalIssuer, nil,
				wire.NameUserPrefix+ns.Name, wire.NameDataPlane)
		}
	}
	if !s.Network.ExternalDomainTLS || s.Network.NamespaceWildcardCertSelector == nil {
		return out
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Network.NamespaceWildcardCertSelector)
	if err != nil || !selector.Matches(labels.Set(ns.Labels)) {
		return out
	}
	for _, choice := range s.Domain.Choices {
		if !choice.Wildcard {
			continue
		}
		host, err := s.Network.DomainTemplate.Expand(settings.DomainValues{Name: "*", Namespace: ns.Name, Domain: choice.Domain,
			Annotations: ns.Annotations, Labels: ns.Labels})
		domain, wildcard := strings.CutPrefix(host, "*.")
		if err != nil || !wildcard || strings.Contains(domain, "*") {
			continue // one wildcard does not cover the hosts of this template, so each gets its own certificate
		}
		want(domain, names.CertificateExternalDomain, s.CertManager.Issuer, map[string]string{names.WildcardDomainLabel: choice.Domain}, host)
	}
	return out
}

func ownedBy(ns *corev1.Namespace) metav1.OwnerReference {
	return *metav1.NewControllerRef(ns, corev1.SchemeGroupVersion.WithKind("Namespace"))
}

// authority writes the ConfigMap with the authorities by which gateways verify the activators and
// the namespace's pods.
func (r *reconciler) authority(ctx context.Context, ns *corev1.Namespace) error {
	secret, found, err := apply.Found(r.secrets.Secrets(r.system).Get(names.RoutingCertificate))
	if err != nil || !found {
		return err
	}
	bundles, err := r.bundles.ConfigMaps(r.system).List(labels.Everything())
	if err != nil {
		return err
	}
	text := string(secret.Data["ca.crt"])
	if text == "" {
		text = string(secret.Data["tls.crt"]) // without an authority the certificate signs itself
	}
	slices.SortFunc(bundles, func(a, b *corev1.ConfigMap) int { return strings.Compare(a.Name, b.Name) })
	for _, bundle := range bundles {
		for _, key := range slices.Sorted(maps.Keys(bundle.Data)) {
			text = strings.TrimRight(text, "\n") + "\n" + bundle.Data[key]
		}
	}
	want := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: names.NamespaceAuthority, Namespace: ns.Name, Labels: mine,
			OwnerReferences: []metav1.OwnerReference{ownedBy(ns)}},
		Data: map[string]string{"ca.crt": text},
	}
	have, found, err := apply.Found(r.authorities.ConfigMaps(ns.Name).Get(want.Name))
	if err != nil {
		return err
	}
	_, _, err = apply.Child(ctx, r.kube.CoreV1().ConfigMaps(ns.Name), "ConfigMap", ns, have, found, want, func(have, want *corev1.ConfigMap) {
		apply.Metadata(have, want)
		if !equality.Semantic.DeepEqual(have.Data, want.Data) {
			have.Data = want.Data
		}
	})
	return err
}
