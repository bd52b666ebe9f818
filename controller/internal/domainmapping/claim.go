package domainmapping

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	networkingv1alpha1 "ebb.dev/ebb/api/networking/v1alpha1"
	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// yield reports whether the domain is a host of a Route in another namespace, which keeps it.
func (r *reconciler) yield(ctx context.Context, dm *v1beta1.DomainMapping, s *settings.Snapshot) (bool, error) {
	lost, err := r.hosts.Yield(ctx, s, dm, "DomainMapping", []string{dm.Name})
	if err != nil || len(lost) == 0 {
		return false, err
	}
	by := lost[0]
	dm.Status.MarkIngressFailed(gateway.ReasonHostTaken, fmt.Sprintf("%s %q in namespace %q has the host %q: map another domain.",
		by.Kind, by.Name, by.Namespace, by.Host))
	return true, r.release(ctx, dm, s)
}

// claim reports whether the domain belongs to the mapping's namespace, and creates the claim if
// that is allowed. If the domain belongs to another namespace, nothing leads it here any more.
func (r *reconciler) claim(ctx context.Context, dm *v1beta1.DomainMapping, s *settings.Snapshot) (claimed bool, again time.Duration, err error) {
	claim, err := r.claims.Get(dm.Name)
	if apierrors.IsNotFound(err) {
		if !s.Network.AutoCreateClusterDomainClaims {
			dm.Status.MarkDomainClaimMissing(dm.Namespace, dm.Name)
			return false, 0, nil
		}
		var other string
		if other, err = r.givenTo(dm, s); err != nil {
			return false, 0, err
		}
		if other != "" {
			dm.Status.MarkDomainNotClaimable(dm.Name, other)
			return false, askAgain, nil
		}
		claim, err = r.makeClaim(ctx, dm)
	}
	if err != nil {
		return false, 0, err
	}
	if claim.Spec.Namespace != dm.Namespace {
		dm.Status.MarkDomainClaimNotOwned(dm.Name, claim.Spec.Namespace)
		return false, 0, r.release(ctx, dm, s)
	}
	return true, 0, nil
}

func (r *reconciler) makeClaim(ctx context.Context, dm *v1beta1.DomainMapping) (*networkingv1alpha1.ClusterDomainClaim, error) {
	api := r.ebb.NetworkingV1alpha1().ClusterDomainClaims()
	made, err := api.Create(ctx, &networkingv1alpha1.ClusterDomainClaim{ObjectMeta: metav1.ObjectMeta{Name: dm.Name},
		Spec: networkingv1alpha1.ClusterDomainClaimSpec{Namespace: dm.Namespace}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = api.Get(ctx, dm.Name, metav1.GetOptions{}) // somebody was faster; it counts for which namespace
	}
	if err != nil {
		dm.Status.MarkDomainClaimFailed(fmt.Sprintf("The ClusterDomainClaim cannot be created: %v", err))
		return nil, fmt.Errorf("create ClusterDomainClaim %s: %w", dm.Name, err)
	}
	return made, nil
}

// givenTo returns the namespace to which the settings give the domain, if it is not the mapping's.
// A Service there may have the domain one day, and nobody claims it before.
func (r *reconciler) givenTo(dm *v1beta1.DomainMapping, s *settings.Snapshot) (string, error) {
	if plan.Gives(s, r.clusterDomain, dm.Name, dm.Namespace) {
		return "", nil
	}
	all, err := r.namespaces.List(labels.Everything())
	for _, ns := range all {
		if plan.Gives(s, r.clusterDomain, dm.Name, ns.Name) {
			return ns.Name, err
		}
	}
	return "", err
}

// release takes the domain off the gateways.
func (r *reconciler) release(ctx context.Context, dm *v1beta1.DomainMapping, s *settings.Snapshot) error {
	r.prober.Forget(types.NamespacedName{Namespace: dm.Namespace, Name: dm.Name})
	if _, err := gateway.Apply(ctx, r.gateways, r.httpRoutes, dm, nil, r.ownHTTPRoutes(dm)); err != nil {
		return err
	}
	if err := r.listeners.Prune(ctx, dm, nil, mine(dm)); err != nil {
		return err
	}
	if err := r.unheld(ctx, dm, s); err != nil {
		return err
	}
	return r.certificates.Prune(ctx, dm.Namespace, dm, mine(dm), nil)
}

// unheld removes the listener of the domain with a certificate in the mapping's namespace.
func (r *reconciler) unheld(ctx context.Context, dm *v1beta1.DomainMapping, s *settings.Snapshot) error {
	return gateway.Unlisten(ctx, r.gateways, r.listeners.Holding(s.Gateway.External, dm.Name, dm.Namespace), dm.Name)
}

// finalize removes the listener, and the claim if claims are created automatically.
func (r *reconciler) finalize(ctx context.Context, dm *v1beta1.DomainMapping) error {
	s := r.settings.Load()
	if err := r.unheld(ctx, dm, s); err != nil || !s.Network.AutoCreateClusterDomainClaims {
		return err
	}
	claim, found, err := apply.Found(r.claims.Get(dm.Name))
	if err != nil || !found || claim.Spec.Namespace != dm.Namespace {
		return err
	}
	return apply.Delete(ctx, r.ebb.NetworkingV1alpha1().ClusterDomainClaims(), "ClusterDomainClaim", claim, metav1.DeleteOptions{})
}
