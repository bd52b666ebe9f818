// Package certificate requests certificates from cert-manager and reports their state.
//
// Owns: the Certificates that it creates for an owner. Reads: those Certificates, if the cluster
// has the kind. Writes: Certificates. Never: reads a Secret; needs cert-manager for anything but
// certificates; changes a Certificate of somebody else.
package certificate

import (
	"context"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/certificate"
)

// Certificates makes and deletes the Certificates that others need.
type Certificates struct{ kind *reconcile.Optional }

// New returns Certificates. When a Certificate changes, c reconciles the keys that it concerns.
func New(mgr *reconcile.Manager, c *reconcile.Controller, keys func(object any) []reconcile.Key) *Certificates {
	k := &Certificates{kind: mgr.Optional(certificate.Resource, certificate.Selector)}
	c.WatchOptional(k.kind, keys)
	return k
}

// Concerns maps a Certificate to its owner, which is of the given kind, and a wildcard to all
// possible owners in its namespace.
func Concerns(owners cache.SharedIndexInformer, ownerKind string) func(object any) []reconcile.Key {
	one := reconcile.ControllerOf(ownerKind)
	return func(object any) (keys []reconcile.Key) {
		m, ok := object.(metav1.Object)
		if !ok || m.GetLabels()[names.WildcardDomainLabel] == "" {
			return one(object)
		}
		for _, key := range owners.GetStore().ListKeys() { // there need be no index by namespace
			if name, is := strings.CutPrefix(key, m.GetNamespace()+"/"); is {
				keys = append(keys, reconcile.Key{Namespace: m.GetNamespace(), Name: name})
			}
		}
		return keys
	}
}

// Missing returns why there can be no certificates at all, or "".
func (k *Certificates) Missing() string {
	if k.kind.Present() {
		return ""
	}
	return "cert-manager is not installed (there is no kind certificates.cert-manager.io)"
}

// Ensure makes the Certificate of owner exist as wanted, and returns its state. The error is an
// apply.NotOwnedError if the name is taken.
func (k *Certificates) Ensure(ctx context.Context, owner metav1.Object, want certificate.Want) (certificate.State, string, error) {
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
		return certificate.Pending, "cert-manager has just been asked", nil
	}
	state, why := certificate.StateOf(now)
	return state, why, nil
}

// Wildcard returns the namespace's wildcard certificate that covers a host, and its state.
func (k *Certificates) Wildcard(namespace, host string) (name string, state certificate.State, why string, found bool) {
	for _, have := range k.kind.Labelled(namespace, names.WildcardDomainLabel) {
		hosts, _, _ := unstructured.NestedStringSlice(have.Object, "spec", "dnsNames")
		if slices.ContainsFunc(hosts, func(name string) bool { return certificate.Covers(name, host) }) {
			state, why := certificate.StateOf(have)
			return have.GetName(), state, why, true
		}
	}
	return "", certificate.Pending, "", false
}

// Ready reports whether a certificate exists and can be used.
func (k *Certificates) Ready(namespace, name string) bool {
	have, found := k.kind.Get(namespace, name)
	if !found {
		return false
	}
	state, _ := certificate.StateOf(have)
	return state == certificate.Ready
}

// Soonest returns a function that returns when the Certificate of all that ends first does, by its
// namespace and name. The others need no series: there may be thousands.
func Soonest(mgr *reconcile.Manager) func() map[string]time.Time {
	kind := mgr.Optional(certificate.Resource, certificate.Selector)
	return func() map[string]time.Time { return soonest(kind.All()) }
}

func soonest(all []*unstructured.Unstructured) map[string]time.Time {
	var first map[string]time.Time
	var end time.Time
	for _, have := range all {
		text, _, _ := unstructured.NestedString(have.Object, "status", "notAfter")
		if at, err := time.Parse(time.RFC3339, text); err == nil && (first == nil || at.Before(end)) {
			first, end = map[string]time.Time{have.GetNamespace() + "/" + have.GetName(): at}, at
		}
	}
	return first
}

// Drop deletes the Certificates of owner with the given labels that are for a host.
func (k *Certificates) Drop(ctx context.Context, owner metav1.Object, mine labels.Set, host string) error {
	list := slices.DeleteFunc(k.kind.Owned(owner, mine), func(have *unstructured.Unstructured) bool {
		hosts, _, _ := unstructured.NestedStringSlice(have.Object, "spec", "dnsNames")
		return !slices.Contains(hosts, host)
	})
	return apply.Prune(ctx, k.kind.Client(owner.GetNamespace()), "Certificate", owner, list, nil)
}

// Prune deletes the Certificates of owner with the given labels that are not wanted any more. Their
// Secrets are cert-manager's.
func (k *Certificates) Prune(ctx context.Context, namespace string, owner metav1.Object, mine labels.Set, wanted map[string]bool) error {
	return apply.Prune(ctx, k.kind.Client(namespace), "Certificate", owner, k.kind.Owned(owner, mine), wanted)
}
