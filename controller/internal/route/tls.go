package route

import (
	"context"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"knative.dev/pkg/kmeta"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// hostCertificate is the certificate of a host and its state.
type hostCertificate struct {
	host, name string
	state      certificate.State
	why        string
}

// secure requests the certificates of a Route's hosts, sets which hosts have TLS, and sets the
// condition CertificateProvisioned.
//
//	asked for                     | state of all certificates | http-protocol | CertificateProvisioned          | TLS
//	for no host                   |                           |               | True, TLSNotEnabled             | no
//	for some                      | Ready                     | any           | True                            | yes
//	for some                      | one is Pending or Failed  | Enabled       | True, HTTPDowngrade             | ready hosts
//	for some                      | one is Pending            | Redirected    | Unknown, CertificateNotReady    | ready hosts
//	for some                      | one is Failed             | Redirected    | False, CertificateProvisionFailed | ready hosts
//	for some, name is taken       | any                       | any           | False, CertificateNotOwned      | no
func (r *reconciler) secure(ctx context.Context, route *servingv1.Route, s *settings.Snapshot, in *plan.Input) error {
	in.TLS = map[string]string{}
	external, why, err := externalTLS(route, s, in)
	if err != nil {
		return err
	}
	wants, err := r.certificatesOf(route, s, in, external)
	if err != nil {
		return err
	}
	all, wanted, err := r.certificatesNow(ctx, route, wants, r.missing(s, wants))
	if notOwned := new(apply.NotOwnedError); errors.As(err, &notOwned) {
		route.Status.MarkCertificateNotOwned(notOwned.Name)
		in.TLS = nil
		return nil
	} else if err != nil {
		return err
	}
	worst := hostCertificate{state: certificate.Ready}
	for _, c := range all {
		if c.state == certificate.Ready {
			in.TLS[c.host] = c.name
		} else if c.state > worst.state {
			worst = c
		}
	}
	switch {
	case len(all) == 0:
		route.Status.MarkTLSNotEnabled(why)
	case worst.state == certificate.Ready:
		route.Status.MarkCertificateReady("")
	case !in.Redirect:
		route.Status.MarkHTTPDowngrade(worst.name, worst.why)
	case worst.state == certificate.Failed:
		route.Status.MarkCertificateProvisionFailed(worst.name, worst.why)
	default:
		route.Status.MarkCertificateNotReady(worst.name, worst.why)
	}
	return r.certificates.Prune(ctx, route.Namespace, route, labels.Set{names.RouteLabel: route.Name}, wanted)
}

// missing says what the cluster lacks for certificates, "" if nothing.
func (r *reconciler) missing(s *settings.Snapshot, wants []certificate.Want) string {
	missing := r.certificates.Missing()
	for _, w := range wants {
		if missing == "" && w.Type == names.CertificateExternalDomain {
			missing = r.listeners.Missing(s.Gateway.External)
		} else if missing == "" {
			missing = r.listeners.Missing(s.Gateway.Local)
		}
	}
	return missing
}

// certificatesNow requests certificates and returns their states, and the names of those that are
// the Route's own. While something is missing, every certificate waits and the status says why.
func (r *reconciler) certificatesNow(ctx context.Context, route *servingv1.Route, wants []certificate.Want, missing string) (all []hostCertificate, wanted map[string]bool, err error) {
	wanted = map[string]bool{}
	for _, w := range wants {
		main := w.Hosts[len(w.Hosts)-1]
		wanted[w.Name] = true
		if missing != "" {
			all = append(all, hostCertificate{main, w.Name, certificate.Pending, missing})
			continue
		}
		// A ready certificate of the host alone is not replaced by a wildcard that is not ready.
		if name, state, why, found := r.certificates.Wildcard(route.Namespace, main); found && w.Type == names.CertificateExternalDomain &&
			(state == certificate.Ready || !r.certificates.Ready(route.Namespace, w.Name)) {
			all = append(all, hostCertificate{main, name, state, why})
			delete(wanted, w.Name)
			continue
		}
		state, why, err := r.certificates.Ensure(ctx, route, w)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, hostCertificate{main, w.Name, state, why})
	}
	return all, wanted, nil
}

// externalTLS reports whether the Route's external hosts get certificates, and if not, why. It also
// sets whether plain requests are redirected.
func externalTLS(route *servingv1.Route, s *settings.Snapshot, in *plan.Input) (bool, string, error) {
	protocol, ferr := names.HTTPProtocol(route.Annotations)
	if ferr != nil {
		return false, "", ferr
	}
	in.Redirect = s.Network.HTTPProtocol == settings.HTTPRedirected
	if protocol != "" {
		in.Redirect = protocol == string(settings.HTTPRedirected)
	}
	disabled, ferr := names.TLSDisabled(route.Annotations)
	switch {
	case ferr != nil:
		return false, "", ferr
	case !s.Network.ExternalDomainTLS:
		return false, servingv1.ExternalTLSNotEnabledMessage, nil
	case disabled:
		return false, servingv1.TLSDisabledByAnnotationMessage, nil
	case !slices.ContainsFunc(slices.Collect(maps.Keys(in.Targets)), func(tag string) bool { return !in.IsLocal(tag) }):
		return false, servingv1.LocalRouteTLSNotEnabledMessage, nil
	}
	return true, "", nil
}

// certificatesOf lists the certificates of a Route, one for each target and visibility.
func (r *reconciler) certificatesOf(route *servingv1.Route, s *settings.Snapshot, in *plan.Input, external bool) ([]certificate.Want, error) {
	var out []certificate.Want
	want := func(tag string, local bool, kind string, issuer settings.IssuerRef, hosts ...string) {
		out = append(out, certificate.Want{
			Namespace: route.Namespace, Name: names.RouteCertificate(route.UID, tag, local), Type: kind, Hosts: hosts, Issuer: issuer,
			Labels: map[string]string{names.RouteLabel: route.Name}, Owner: *kmeta.NewControllerRef(route),
		})
	}
	for _, tag := range slices.Sorted(maps.Keys(in.Targets)) {
		name, err := in.TargetName(tag)
		if err != nil {
			return nil, err
		}
		if external && !in.IsLocal(tag) {
			host, err := in.PublicHost(name)
			if err != nil {
				return nil, err
			}
			want(tag, false, names.CertificateExternalDomain, s.CertManager.Issuer, host)
		}
		if s.Network.ClusterLocalDomainTLS {
			want(tag, true, names.CertificateClusterLocalDomain, s.CertManager.ClusterLocalIssuer, in.LocalHosts(name)...)
		}
	}
	return out, nil
}

// securely reports whether all endpoints of a revision's public Service serve TLS.
func (r *reconciler) securely(namespace, revision string) bool {
	have, err := r.public.Services(namespace).Get(names.PublicService(revision))
	return err == nil && have.Annotations[names.SystemTLSAnnotation] != ""
}
