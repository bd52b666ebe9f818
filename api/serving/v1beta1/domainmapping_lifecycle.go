package v1beta1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// Conditions of a DomainMapping.
const (
	DomainMappingConditionReady                  = apis.ConditionReady
	DomainMappingConditionDomainClaimed          = apis.ConditionType("DomainClaimed")
	DomainMappingConditionReferenceResolved      = apis.ConditionType("ReferenceResolved")
	DomainMappingConditionIngressReady           = apis.ConditionType("IngressReady")
	DomainMappingConditionCertificateProvisioned = apis.ConditionType("CertificateProvisioned")
)

// Reasons of a DomainMapping's conditions, besides those it shares with Routes.
const (
	ReasonDomainAlreadyClaimed          = "DomainAlreadyClaimed"
	ReasonDomainClaimFailed             = "DomainClaimFailed"
	ReasonResolveFailed                 = "ResolveFailed"
	ReasonCertificateExternallyProvided = "CertificateExternallyProvided"
	ReasonSecretNotFound                = "SecretNotFound"
)

func domainMappingConditions() apis.ConditionSet {
	return apis.NewLivingConditionSet(DomainMappingConditionDomainClaimed, DomainMappingConditionReferenceResolved,
		DomainMappingConditionIngressReady, DomainMappingConditionCertificateProvisioned)
}

// GetGroupVersionKind names the kind for owner references.
func (*DomainMapping) GetGroupVersionKind() schema.GroupVersionKind {
	return SchemeGroupVersion.WithKind("DomainMapping")
}

// GetConditionSet returns the conditions of this kind.
func (*DomainMapping) GetConditionSet() apis.ConditionSet { return domainMappingConditions() }

// GetStatus returns the part of the status that all kinds share.
func (dm *DomainMapping) GetStatus() *duckv1.Status { return &dm.Status.Status }

// InitializeConditions makes every condition that is not set Unknown.
func (s *DomainMappingStatus) InitializeConditions() {
	domainMappingConditions().Manage(s).InitializeConditions()
}

// MarkDomainClaimed says that the domain belongs to the mapping's namespace.
func (s *DomainMappingStatus) MarkDomainClaimed() {
	domainMappingConditions().Manage(s).MarkTrue(DomainMappingConditionDomainClaimed)
}

// MarkDomainClaimNotOwned says that the domain belongs to another namespace, so that the gateways
// lead nothing of it here.
func (s *DomainMappingStatus) MarkDomainClaimNotOwned(domain, namespace string) {
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionIngressReady, ReasonDomainAlreadyClaimed,
		"The domain belongs to namespace %q.", namespace)
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionDomainClaimed, ReasonDomainAlreadyClaimed,
		"ClusterDomainClaim %q gives the domain to namespace %q.", domain, namespace)
}

// MarkDomainNotClaimable says that the domain is one of another namespace's hosts, which is not
// claimed automatically.
func (s *DomainMappingStatus) MarkDomainNotClaimable(domain, namespace string) {
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionDomainClaimed, ReasonDomainAlreadyClaimed,
		"The settings config-domain and domain-template give %q to namespace %q, so no ClusterDomainClaim is made for it. "+
			"A cluster administrator can make one.", domain, namespace)
}

// MarkDomainClaimMissing says that nobody claimed the domain and that claims are not made
// automatically.
func (s *DomainMappingStatus) MarkDomainClaimMissing(namespace, domain string) {
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionDomainClaimed, ReasonDomainAlreadyClaimed,
		"There is no ClusterDomainClaim %q for namespace %q. A cluster administrator can make one, or set "+
			"autocreate-cluster-domain-claims to \"true\" in ConfigMap config-network.", domain, namespace)
}

// MarkDomainClaimFailed says why the domain could not be claimed.
func (s *DomainMappingStatus) MarkDomainClaimFailed(message string) {
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionDomainClaimed, ReasonDomainClaimFailed, "%s", message)
}

// MarkReferenceResolved says that spec.ref leads to an address.
func (s *DomainMappingStatus) MarkReferenceResolved() {
	domainMappingConditions().Manage(s).MarkTrue(DomainMappingConditionReferenceResolved)
}

// MarkReferenceNotResolved says why spec.ref leads nowhere.
func (s *DomainMappingStatus) MarkReferenceNotResolved(message string) {
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionReferenceResolved, ReasonResolveFailed, "%s", message)
}

// MarkIngressReady says that the gateways lead the domain to the reference.
func (s *DomainMappingStatus) MarkIngressReady() {
	domainMappingConditions().Manage(s).MarkTrue(DomainMappingConditionIngressReady)
}

// MarkIngressNotConfigured says that the gateways were not told yet.
func (s *DomainMappingStatus) MarkIngressNotConfigured() {
	domainMappingConditions().Manage(s).MarkUnknown(DomainMappingConditionIngressReady, servingv1.ReasonIngressNotConfigured,
		"Ingress has not yet been reconciled.")
}

// MarkIngressNotReady says what the gateways wait for.
func (s *DomainMappingStatus) MarkIngressNotReady(reason, message string) {
	domainMappingConditions().Manage(s).MarkUnknown(DomainMappingConditionIngressReady, reason, "%s", message)
}

// MarkSecretNotFound says that the gateways wait for the Secret of spec.tls.
func (s *DomainMappingStatus) MarkSecretNotFound(name string) {
	domainMappingConditions().Manage(s).MarkUnknown(DomainMappingConditionIngressReady, ReasonSecretNotFound,
		"There is no Secret %q in the namespace, which spec.tls.secretName names. Create it with type kubernetes.io/tls, or name another.", name)
}

// MarkIngressFailed says why the gateways cannot do it.
func (s *DomainMappingStatus) MarkIngressFailed(reason, message string) {
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionIngressReady, reason, "%s", message)
}

// MarkCertificateReady says that the certificate is there.
func (s *DomainMappingStatus) MarkCertificateReady() {
	domainMappingConditions().Manage(s).MarkTrue(DomainMappingConditionCertificateProvisioned)
}

// MarkCertificateExternallyProvided says that spec.tls names the certificate.
func (s *DomainMappingStatus) MarkCertificateExternallyProvided() {
	domainMappingConditions().Manage(s).MarkTrueWithReason(DomainMappingConditionCertificateProvisioned,
		ReasonCertificateExternallyProvided, "TLS certificate was externally provided")
}

// MarkTLSNotEnabled says why there is no certificate to wait for.
func (s *DomainMappingStatus) MarkTLSNotEnabled(message string) {
	domainMappingConditions().Manage(s).MarkTrueWithReason(DomainMappingConditionCertificateProvisioned,
		servingv1.ReasonTLSNotEnabled, "%s", message)
}

// MarkHTTPDowngrade says that plain HTTP is served until the certificate is there.
func (s *DomainMappingStatus) MarkHTTPDowngrade(name, why string) {
	domainMappingConditions().Manage(s).MarkTrueWithReason(DomainMappingConditionCertificateProvisioned,
		servingv1.ReasonHTTPDowngrade, "%s", servingv1.HTTPDowngradeMessage(name, why))
}

// MarkCertificateNotReady says that the certificate is not there yet.
func (s *DomainMappingStatus) MarkCertificateNotReady(name, why string) {
	domainMappingConditions().Manage(s).MarkUnknown(DomainMappingConditionCertificateProvisioned,
		servingv1.ReasonCertificateNotReady, "%s", servingv1.CertificateNotReadyMessage(name, why))
}

// MarkCertificateProvisionFailed says that there will be no certificate.
func (s *DomainMappingStatus) MarkCertificateProvisionFailed(name, why string) {
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionCertificateProvisioned,
		servingv1.ReasonCertificateProvisionFailed, "%s", servingv1.CertificateFailedMessage(name, why))
}

// MarkCertificateNotOwned says that a certificate of that name belongs to somebody else.
func (s *DomainMappingStatus) MarkCertificateNotOwned(name string) {
	domainMappingConditions().Manage(s).MarkFalse(DomainMappingConditionCertificateProvisioned,
		servingv1.ReasonCertificateNotOwned, "%s", servingv1.CertificateNotOwnedMessage(name))
}
