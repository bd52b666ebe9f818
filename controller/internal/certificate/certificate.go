// Package certificate asks cert-manager for certificates and says how far it is.
//
// Owns: the Certificates it makes for an owner. Reads: those Certificates, as far as the cluster has the kind. Writes:
// Certificates. Never: reads a Secret; needs cert-manager for anything but certificates; touches a Certificate of somebody else.
package certificate

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/certificate"
)

// Keeper keeps Certificates.
type Keeper struct{ kind *reconcile.Optional }

// NewKeeper makes a Keeper, and has c look again at whom keys says a Certificate concerns.
func NewKeeper(w *reconcile.World, c *reconcile.Controller, keys func(object any) []reconcile.Key) *Keeper {
	k := &Keeper{kind: w.Optional(certificate.Resource, certificate.Selector)}
	c.WatchOptional(k.kind, keys)
	return k
}

// Concerns maps a Certificate to its owner, of the given kind, or a wildcard to all owners in its namespace.
func Concerns(owners cache.SharedIndexInformer, ownerKind string) func(object any) []reconcile.Key {
	one := reconcile.ControllerOf(ownerKind)
	return func(object any) (keys []reconcile.Key) {
		m, ok := object.(metav1.Object)
		if !ok || m.GetLabels()[names.WildcardDomainLabel] == "" {
			return one(object)
		}
		_ = cache.ListAllByNamespace(owners.GetIndexer(), m.GetNamespace(), labels.Everything(), func(owner any) {
			keys = append(keys, reconcile.Self(owner)...)
		})
		return keys
	}
}

// Missing is what stands in the way of every certificate, or "".
func (k *Keeper) Missing() string {
	if k.kind.Present() {
		return ""
	}
	return "cert-manager is not installed (there is no kind certificates.cert-manager.io)"
}

// Ensure makes the Certificate exist as wanted, for owner, and tells its state. It fails with an apply.NotOwnedError if the name
// is taken.
func (k *Keeper) Ensure(ctx context.Context, owner metav1.Object, want certificate.Want) (certificate.State, string, error) {
	object := certificate.Object(want)
	have, found := k.kind.Get(want.Namespace, want.Name)
	now, outcome, err := apply.Child(ctx, k.kind.Client(want.Namespace), "Certificate", owner, have, found, object,
		func(have, want *unstructured.Unstructured) {
			apply.Metadata(have, want)
			spec, _ := have.Object["spec"].(map[string]any)
			for key, value := range want.Object["spec"].(map[string]any) {
				if spec == nil {
					spec = map[string]any{}
					have.Object["spec"] = spec
				}
				spec[key] = value // and keep what cert-manager or an admission policy added
			}
		})
	if err != nil {
		return certificate.Pending, "", err
	}
	if outcome != apply.Unchanged {
		return certificate.Pending, "cert-manager was asked a moment ago", nil
	}
	state, why := certificate.Judge(now)
	return state, why, nil
}

// Wildcard finds the certificate of the namespace that is good for a host among others, and tells its state.
func (k *Keeper) Wildcard(namespace, host string) (name string, state certificate.State, why string, found bool) {
	for _, have := range k.kind.List(namespace, wildcards) {
		hosts, _, _ := unstructured.NestedStringSlice(have.Object, "spec", "dnsNames")
		if slices.ContainsFunc(hosts, func(name string) bool { return certificate.Covers(name, host) }) {
			state, why := certificate.Judge(have)
			return have.GetName(), state, why, true
		}
	}
	return "", certificate.Pending, "", false
}

var wildcards = func() labels.Selector {
	selector, err := labels.Parse(names.WildcardDomainLabel)
	if err != nil {
		panic(err) // the selector is a constant
	}
	return selector
}()

// Ready tells whether a certificate is there to be used.
func (k *Keeper) Ready(namespace, name string) bool {
	have, found := k.kind.Get(namespace, name)
	if !found {
		return false
	}
	state, _ := certificate.Judge(have)
	return state == certificate.Ready
}

// Prune deletes the Certificates of owner in a namespace that carry the labels and are not wanted any more. Their Secrets are
// cert-manager's.
func (k *Keeper) Prune(ctx context.Context, namespace string, owner metav1.Object, mine labels.Set, wanted map[string]bool) error {
	for _, have := range k.kind.List(namespace, labels.SelectorFromSet(mine)) {
		if wanted[have.GetName()] || !metav1.IsControlledBy(have, owner) {
			continue
		}
		if err := k.kind.Client(have.GetNamespace()).Delete(ctx, have.GetName()); err != nil {
			return fmt.Errorf("delete Certificate %s/%s: %w", have.GetNamespace(), have.GetName(), err)
		}
	}
	return nil
}
