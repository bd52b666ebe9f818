package v1

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Conditions of a Route.
const (
	RouteConditionReady                  = apis.ConditionReady
	RouteConditionAllTrafficAssigned     = apis.ConditionType("AllTrafficAssigned")
	RouteConditionIngressReady           = apis.ConditionType("IngressReady")
	RouteConditionCertificateProvisioned = apis.ConditionType("CertificateProvisioned")
)

// Reasons of a Route's conditions.
const (
	ReasonRevisionMissing            = "RevisionMissing"
	ReasonRevisionNotOwned           = "RevisionNotOwned"
	ReasonErrorConfig                = "ErrorConfig"
	ReasonUnknown                    = "Unknown"
	ReasonIngressNotConfigured       = "IngressNotConfigured"
	ReasonRolloutInProgress          = "RolloutInProgress"
	ReasonWentBack                   = "WentBack"
	ReasonTLSNotEnabled              = "TLSNotEnabled"
	ReasonHTTPDowngrade              = "HTTPDowngrade"
	ReasonCertificateNotReady        = "CertificateNotReady"
	ReasonCertificateProvisionFailed = "CertificateProvisionFailed"
	ReasonCertificateNotOwned        = "CertificateNotOwned"
)

func routeConditions() apis.ConditionSet {
	return apis.NewLivingConditionSet(RouteConditionAllTrafficAssigned, RouteConditionIngressReady,
		RouteConditionCertificateProvisioned)
}

// GetGroupVersionKind names the kind for owner references.
func (*Route) GetGroupVersionKind() schema.GroupVersionKind {
	return SchemeGroupVersion.WithKind("Route")
}

// GetConditionSet returns the conditions of this kind.
func (*Route) GetConditionSet() apis.ConditionSet { return routeConditions() }

// GetStatus returns the part of the status that all kinds share.
func (r *Route) GetStatus() *duckv1.Status { return &r.Status.Status }

// IsReady tells whether the current generation was reconciled and is Ready.
func (r *Route) IsReady() bool {
	return r.Status.ObservedGeneration == r.Generation && r.Status.GetCondition(RouteConditionReady).IsTrue()
}

// IsFailed tells whether the current generation was reconciled and is not Ready for good.
func (r *Route) IsFailed() bool {
	return r.Status.ObservedGeneration == r.Generation && r.Status.GetCondition(RouteConditionReady).IsFalse()
}

// InitializeConditions makes every condition that is not set Unknown.
func (rs *RouteStatus) InitializeConditions() { routeConditions().Manage(rs).InitializeConditions() }

// MarkTrafficAssigned says that every target is known and can take requests.
func (rs *RouteStatus) MarkTrafficAssigned() {
	routeConditions().Manage(rs).MarkTrue(RouteConditionAllTrafficAssigned)
}

// MarkUnknownTrafficError says that resolving the targets failed for a reason that is no target's
// fault.
func (rs *RouteStatus) MarkUnknownTrafficError(message string) {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionAllTrafficAssigned, ReasonUnknown, "%s", message)
}

// MarkErrorConfig says that the domain or tag template makes no usable host.
func (rs *RouteStatus) MarkErrorConfig(message string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionAllTrafficAssigned, ReasonErrorConfig, "%s", message)
}

// MarkMissingTrafficTarget says that a target does not exist; kind is "Configuration" or
// "Revision".
func (rs *RouteStatus) MarkMissingTrafficTarget(kind, name string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionAllTrafficAssigned, kind+"Missing",
		"%s %q referenced in traffic not found.", kind, name)
}

// MarkConfigurationNotReady says that a Configuration has no Ready Revision yet.
func (rs *RouteStatus) MarkConfigurationNotReady(name string) {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
		"Configuration %q is waiting for a Revision to become ready.", name)
}

// MarkConfigurationFailed says that a Configuration has no Ready Revision and gets none.
func (rs *RouteStatus) MarkConfigurationFailed(name string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
		"Configuration %q does not have any ready Revision.", name)
}

// MarkRevisionNotReady says that a Revision is not Ready yet.
func (rs *RouteStatus) MarkRevisionNotReady(name string) {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
		"Revision %q is not yet ready.", name)
}

// MarkRevisionParked says that what was made for a Revision is being made again, because nobody
// needed it for a while.
func (rs *RouteStatus) MarkRevisionParked(name string) {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
		"Revision %q had no traffic and is being brought back.", name)
}

// MarkRevisionFailed says that a Revision cannot become Ready, and why, if that is known.
func (rs *RouteStatus) MarkRevisionFailed(name, why string) {
	if why != "" {
		routeConditions().Manage(rs).MarkFalse(RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
			"Revision %q failed to become ready: %s", name, why)
		return
	}
	routeConditions().Manage(rs).MarkFalse(RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
		"Revision %q failed to become ready.", name)
}

// MarkRevisionNotOwned says that a Revision belongs to another Service than the Route.
func (rs *RouteStatus) MarkRevisionNotOwned(name string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionAllTrafficAssigned, ReasonRevisionNotOwned,
		"Revision %q does not belong to the same Service as this Route.", name)
}

// MarkIngressReady says that the gateways send requests where the Route says.
func (rs *RouteStatus) MarkIngressReady() {
	routeConditions().Manage(rs).MarkTrue(RouteConditionIngressReady)
}

// MarkIngressNotConfigured says that the gateways were not told yet.
func (rs *RouteStatus) MarkIngressNotConfigured() {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionIngressReady, ReasonIngressNotConfigured,
		"Ingress has not yet been reconciled.")
}

// MarkIngressNotReady says what the gateways wait for.
func (rs *RouteStatus) MarkIngressNotReady(reason, message string) {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionIngressReady, reason, "%s", message)
}

// MarkIngressFailed says why the gateways cannot do what the Route says.
func (rs *RouteStatus) MarkIngressFailed(reason, message string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionIngressReady, reason, "%s", message)
}

// MarkIngressRolloutInProgress says that a gradual rollout is under way.
func (rs *RouteStatus) MarkIngressRolloutInProgress() {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionIngressReady, ReasonRolloutInProgress,
		"A gradual rollout of the latest revision(s) is in progress.")
}

// MarkIngressRolloutJudged says the same of a rollout that is judged, and what its judge says.
func (rs *RouteStatus) MarkIngressRolloutJudged(reason string) {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionIngressReady, ReasonRolloutInProgress,
		"A gradual rollout of the latest revision(s) is in progress: %s.", reason)
}

// rolloutHeld begins the message of a rollout that stands still. RolloutHeld knows it by that.
const rolloutHeld = "A gradual rollout of the latest revision(s) stands still"

// MarkIngressRolloutHeld says that the judge of a rollout has it stand still, and why.
func (rs *RouteStatus) MarkIngressRolloutHeld(reason string) {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionIngressReady, ReasonRolloutInProgress,
		rolloutHeld+": %s.", reason)
}

// RolloutHeld reports whether MarkIngressRolloutHeld was the last word about it.
func (rs *RouteStatus) RolloutHeld() bool {
	c := rs.GetCondition(RouteConditionIngressReady)
	return c.GetReason() == ReasonRolloutInProgress && strings.HasPrefix(c.GetMessage(), rolloutHeld)
}

// MarkWentBack says that requests go to an older Revision than the latest one, and why.
func (rs *RouteStatus) MarkWentBack(latest, serving, why string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionAllTrafficAssigned, ReasonWentBack,
		"Revision %q went back, and %q gets its requests: %s.", latest, serving, why)
}

// MarkServiceNotOwned says that a Kubernetes Service the Route needs belongs to somebody else.
func (rs *RouteStatus) MarkServiceNotOwned(name string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionIngressReady, ReasonNotOwned,
		"There is an existing placeholder Service %q that we do not own.", name)
}

// MarkIngressNotOwned says that an object of the gateways that the Route needs belongs to somebody
// else.
func (rs *RouteStatus) MarkIngressNotOwned(kind, name string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionIngressReady, ReasonNotOwned,
		"There is an existing %s %q that we do not own.", kind, name)
}

// MarkCertificateReady says that the certificate is there.
func (rs *RouteStatus) MarkCertificateReady(name string) {
	routeConditions().Manage(rs).MarkTrue(RouteConditionCertificateProvisioned)
}

// MarkCertificateNotReady says that the certificate is not there yet.
func (rs *RouteStatus) MarkCertificateNotReady(name, why string) {
	routeConditions().Manage(rs).MarkUnknown(RouteConditionCertificateProvisioned, ReasonCertificateNotReady,
		"%s", CertificateNotReadyMessage(name, why))
}

// MarkCertificateProvisionFailed says that there will be no certificate.
func (rs *RouteStatus) MarkCertificateProvisionFailed(name, why string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionCertificateProvisioned, ReasonCertificateProvisionFailed,
		"%s", CertificateFailedMessage(name, why))
}

// MarkCertificateNotOwned says that a certificate of that name belongs to somebody else.
func (rs *RouteStatus) MarkCertificateNotOwned(name string) {
	routeConditions().Manage(rs).MarkFalse(RouteConditionCertificateProvisioned, ReasonCertificateNotOwned,
		"%s", CertificateNotOwnedMessage(name))
}

// MarkTLSNotEnabled says why there is no certificate to wait for.
func (rs *RouteStatus) MarkTLSNotEnabled(message string) {
	routeConditions().Manage(rs).MarkTrueWithReason(RouteConditionCertificateProvisioned, ReasonTLSNotEnabled, "%s", message)
}

// MarkHTTPDowngrade says that plain HTTP is served until the certificate is there.
func (rs *RouteStatus) MarkHTTPDowngrade(name, why string) {
	routeConditions().Manage(rs).MarkTrueWithReason(RouteConditionCertificateProvisioned, ReasonHTTPDowngrade,
		"%s", HTTPDowngradeMessage(name, why))
}

// Messages of CertificateProvisioned, shared by Routes and DomainMappings.
const (
	// ExternalTLSNotEnabledMessage says that nobody asked for certificates.
	ExternalTLSNotEnabledMessage = "external-domain-tls is not enabled"
	// TLSDisabledByAnnotationMessage says that the object opted out.
	TLSDisabledByAnnotationMessage = "external-domain-tls is disabled by an annotation of this object"
	// LocalRouteTLSNotEnabledMessage says that hosts inside the cluster get no certificate.
	LocalRouteTLSNotEnabledMessage = "cluster-local-domain-tls is not enabled"
)

// CertificateNotReadyMessage says that a certificate is not there yet.
func CertificateNotReadyMessage(name, why string) string {
	return fmt.Sprintf("Certificate %s is not ready%s.", name, because(why))
}

// CertificateFailedMessage says that there will be no certificate.
func CertificateFailedMessage(name, why string) string {
	return fmt.Sprintf("Certificate %s fails to be provisioned%s.", name, because(why))
}

// CertificateNotOwnedMessage says that a certificate of that name belongs to somebody else.
func CertificateNotOwnedMessage(name string) string {
	return fmt.Sprintf("There is an existing certificate %s that we don't own.", name)
}

// HTTPDowngradeMessage says that plain HTTP is served until the certificate is there.
func HTTPDowngradeMessage(name, why string) string {
	return fmt.Sprintf("Certificate %s is not ready%s; serving plain HTTP until it is.", name, because(why))
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
