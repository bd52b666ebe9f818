package domainmapping

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"knative.dev/pkg/kmeta"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/settings"
)

// secure returns the Secret with the certificate of the mapping's domain, "" while there is none,
// and sets the condition CertificateProvisioned.
//
//	spec.tls | external-domain-tls           | certificate | http-protocol | CertificateProvisioned
//	set      | any                           |             | any           | True, CertificateExternallyProvided
//	not set  | Disabled, or opted out        |             | any           | True, TLSNotEnabled
//	not set  | Enabled                       | Ready       | any           | True
//	not set  | Enabled                       | otherwise   | Enabled       | True, HTTPDowngrade
//	not set  | Enabled                       | Pending     | Redirected    | Unknown, CertificateNotReady
//	not set  | Enabled                       | Failed      | Redirected    | False, CertificateProvisionFailed
//	not set  | Enabled                       | name taken  | any           | False, CertificateNotOwned
func (r *reconciler) secure(ctx context.Context, dm *v1beta1.DomainMapping, s *settings.Snapshot) (secret string, redirect bool, err error) {
	status := &dm.Status
	protocol, ferr := names.HTTPProtocol(dm.Annotations)
	if ferr != nil {
		return "", false, ferr
	}
	disabled, ferr := names.TLSDisabled(dm.Annotations)
	if ferr != nil {
		return "", false, ferr
	}
	redirect = s.Network.HTTPProtocol == settings.HTTPRedirected
	if protocol != "" {
		redirect = protocol == string(settings.HTTPRedirected)
	}
	wanted := map[string]bool{}
	switch {
	case dm.Spec.TLS != nil:
		secret = dm.Spec.TLS.SecretName
		status.MarkCertificateExternallyProvided()
	case !s.Network.ExternalDomainTLS:
		status.MarkTLSNotEnabled(servingv1.ExternalTLSNotEnabledMessage)
	case disabled:
		status.MarkTLSNotEnabled(servingv1.TLSDisabledByAnnotationMessage)
	default:
		name, state, why, err := r.certificate(ctx, dm, s, wanted)
		if notOwned := new(apply.NotOwnedError); errors.As(err, &notOwned) {
			status.MarkCertificateNotOwned(notOwned.Name)
			return "", redirect, nil
		} else if err != nil {
			return "", redirect, err
		}
		switch {
		case state == certificate.Ready:
			secret = name
			status.MarkCertificateReady()
		case !redirect:
			status.MarkHTTPDowngrade(name, why)
		case state == certificate.Failed:
			status.MarkCertificateProvisionFailed(name, why)
		default:
			status.MarkCertificateNotReady(name, why)
		}
	}
	return secret, redirect, r.certificates.Prune(ctx, dm.Namespace, dm, mine(dm), wanted)
}

func (r *reconciler) certificate(ctx context.Context, dm *v1beta1.DomainMapping, s *settings.Snapshot, wanted map[string]bool) (
	name string, state certificate.State, why string, err error) {
	if missing := r.certificates.Missing(); missing != "" {
		return dm.Name, certificate.Pending, missing, nil
	}
	// A ready certificate of the domain alone is not replaced by a wildcard that is not ready.
	if name, state, why, found := r.certificates.Wildcard(dm.Namespace, dm.Name); found &&
		(state == certificate.Ready || !r.certificates.Ready(dm.Namespace, dm.Name)) {
		return name, state, why, nil
	}
	wanted[dm.Name] = true
	state, why, err = r.certificates.Ensure(ctx, dm, certificate.Want{
		Namespace: dm.Namespace, Name: dm.Name, Type: names.CertificateExternalDomain, Hosts: []string{dm.Name},
		Issuer: s.CertManager.Issuer, Labels: mine(dm), Owner: *kmeta.NewControllerRef(dm),
	})
	return dm.Name, state, why, err
}

// secretAgain is when to look again for a Secret that is not there: nothing tells that it came.
const secretAgain = 10 * time.Second

// secretMissing reports whether the Secret that the mapping names does not exist. It asks for the
// metadata alone, because the key is the gateways'. An answer that tells neither is no reason not
// to wait for them.
func (r *reconciler) secretMissing(ctx context.Context, dm *v1beta1.DomainMapping) bool {
	return dm.Spec.TLS != nil && apierrors.IsNotFound(r.kube.CoreV1().RESTClient().Get().
		Namespace(dm.Namespace).Resource("secrets").Name(dm.Spec.TLS.SecretName).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(ctx).Error())
}

// mine returns the labels of a mapping's children.
func mine(dm *v1beta1.DomainMapping) labels.Set {
	return labels.Set{names.DomainMappingUIDLabel: string(dm.UID), names.DomainMappingNamespaceLabel: dm.Namespace}
}

// listen adds a listener for the mapping's domain to each Gateway, in a ListenerSet, or in the
// Gateway if it does not support those.
func (r *reconciler) listen(ctx context.Context, dm *v1beta1.DomainMapping, m gatewayapi.Mapping, g settings.Gateway, meta gatewayapi.Meta) (
	[]*unstructured.Unstructured, error) {
	if m.TLSSecret == "" {
		return nil, nil
	}
	sets := gatewayapi.MapTLSListeners(m, g, meta)
	if err := r.listeners.Apply(ctx, dm, sets); err != nil {
		if notOwned := new(apply.NotOwnedError); errors.As(err, &notOwned) {
			dm.Status.MarkIngressFailed(servingv1.ReasonNotOwned, notOwned.Error())
			return nil, reconcile.Foreign(err)
		}
		return nil, err
	}
	if whole := r.listeners.Lacking(onGateways(g), m.Host, dm.Namespace, m.TLSSecret); len(whole) > 0 {
		if err := gateway.Listen(ctx, r.gateways, whole, m.Host, dm.Namespace, m.TLSSecret, meta); err != nil {
			dm.Status.MarkIngressFailed("ListenerRefused", err.Error())
			return nil, err
		}
	}
	return sets, nil
}

// unlisten removes the domain's listener from Gateways that do not need it: the domain has no
// certificate any more, or a ListenerSet has the listener. The HTTPRoutes do not use it any more
// then.
func (r *reconciler) unlisten(ctx context.Context, m gatewayapi.Mapping, g settings.Gateway) error {
	held := r.listeners.Holding(g.External, m.Host, m.Namespace)
	if m.TLSSecret != "" {
		needed := onGateways(g)
		held = slices.DeleteFunc(held, func(one settings.GatewayRef) bool {
			return slices.ContainsFunc(needed, func(n settings.GatewayRef) bool { return n.Gateway == one.Gateway })
		})
	}
	return gateway.Unlisten(ctx, r.gateways, held, m.Host)
}

// onGateways lists the Gateways that do not support ListenerSets.
func onGateways(g settings.Gateway) (out []settings.GatewayRef) {
	for _, ref := range g.External {
		if !gatewayapi.TakesListenerSets(ref) {
			out = append(out, ref)
		}
	}
	return out
}

// waiting returns the message of a mapping that waits for the gateways.
func waiting(why, refused string) string {
	if refused != "" {
		why = refused
	}
	return fmt.Sprintf("Waiting for the gateways: %s.", strings.TrimSuffix(why, "."))
}
