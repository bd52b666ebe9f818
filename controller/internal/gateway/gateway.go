// Package gateway is what the reconcilers of Routes and DomainMappings share: they find gateway
// pods, probe them, write HTTPRoutes, and add listeners to Gateways.
//
// Owns: who has a host; which namespaces may add listeners to a Gateway; else it writes for the
// owner that it is called for. Reads: HTTPRoutes, ListenerSets, the Services and EndpointSlices of
// gateways. Writes: HTTPRoutes, ListenerSets, HTTPS listeners and allowedListeners of Gateways,
// ReferenceGrants. Never: changes a listener of somebody else.
package gateway

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewaylisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/settings"
)

// Ports of a gateway's Service.
const (
	HTTP  int32 = 80
	HTTPS int32 = 443
)

// NewProber returns a prober of gateways for the objects of c, which runs with c and reconciles an
// object when its answer changes.
func NewProber(mgr *reconcile.Manager, c *reconcile.Controller) *ready.Prober {
	p := ready.New(NewFinder(mgr.Kube, mgr.Now), func(key types.NamespacedName) { c.Enqueue(key) })
	if mgr.ToGateways != nil {
		p.Through(mgr.ToGateways)
	}
	c.Background = p.Run
	c.Others = p.Forget // the other replica may tell the gateways something else
	return p
}

// Apply makes the HTTPRoutes of owner exist as given, then deletes the others of mine that it
// controls. It reports whether gateways were told something by it.
func Apply(ctx context.Context, client gatewayclient.Interface, lister gatewaylisters.HTTPRouteLister, owner apply.Object,
	routes, mine []*gatewayv1.HTTPRoute) (changed bool, err error) {
	if changed, err = Write(ctx, client, lister, owner, routes); err != nil {
		return changed, err
	}
	wanted := map[string]bool{}
	for _, want := range routes {
		wanted[want.Name] = true
	}
	return changed, apply.Prune(ctx, client.GatewayV1().HTTPRoutes(owner.GetNamespace()), "HTTPRoute", owner, mine, wanted)
}

// Write makes the HTTPRoutes of owner exist as given. It reports whether one was created or got
// another spec, so that nothing is known of what the gateways follow.
func Write(ctx context.Context, client gatewayclient.Interface, lister gatewaylisters.HTTPRouteLister, owner apply.Object,
	routes []*gatewayv1.HTTPRoute) (changed bool, err error) {
	api := client.GatewayV1().HTTPRoutes(owner.GetNamespace())
	for _, want := range routes {
		have, found, err := apply.Found(lister.HTTPRoutes(owner.GetNamespace()).Get(want.Name))
		if err != nil {
			return changed, err
		}
		_, outcome, err := apply.Child(ctx, api, "HTTPRoute", owner, have, found, want, func(have, want *gatewayv1.HTTPRoute) {
			changed = changed || !equality.Semantic.DeepEqual(have.Spec, want.Spec)
			apply.Metadata(have, want)
			have.Spec = want.Spec
		})
		if err != nil {
			return changed, err
		}
		changed = changed || outcome == apply.Created
	}
	return changed, nil
}

// manager is the field manager of a host's listener. Server-side apply merges the listeners of all
// hosts by name, and a host replaces only its own.
func manager(host string) string { return "ebb-" + gatewayapi.ListenerName(host) }

// Listen adds a listener with the certificate of host to each Gateway, and lets the Gateways read
// its Secret.
func Listen(ctx context.Context, client gatewayclient.Interface, on []settings.GatewayRef, host, namespace, secret string, meta gatewayapi.Meta) error {
	owner := meta.Owner
	owner.Controller = nil // hosts that share a Secret share its grant
	grant := &gatewayv1beta1.ReferenceGrant{
		TypeMeta: metav1.TypeMeta{APIVersion: gatewayv1beta1.GroupVersion.String(), Kind: "ReferenceGrant"},
		ObjectMeta: metav1.ObjectMeta{Name: gatewayapi.GrantName(secret), Namespace: namespace, Labels: meta.Labels,
			OwnerReferences: []metav1.OwnerReference{owner}},
		Spec: gatewayv1beta1.ReferenceGrantSpec{To: []gatewayv1beta1.ReferenceGrantTo{{
			Kind: "Secret", Name: ptr.To(gatewayv1.ObjectName(secret))}}},
	}
	for _, g := range on {
		grant.Spec.From = append(grant.Spec.From, gatewayv1beta1.ReferenceGrantFrom{
			Group: gatewayv1.GroupName, Kind: "Gateway", Namespace: gatewayv1.Namespace(g.Namespace())})
	}
	raw, err := json.Marshal(grant)
	if err != nil {
		return err
	}
	force := metav1.PatchOptions{FieldManager: manager(host), Force: ptr.To(true)}
	if _, err := client.GatewayV1beta1().ReferenceGrants(namespace).Patch(ctx, grant.Name, types.ApplyPatchType, raw, force); err != nil {
		return fmt.Errorf("let gateways read Secret %s/%s: %w", namespace, secret, err)
	}
	return listeners(ctx, client, on, host, []gatewayv1.Listener{gatewayapi.Listener(host, namespace, secret)})
}

// GrantCourier lets HTTPRoutes of a namespace name the courier's Service.
func GrantCourier(ctx context.Context, client gatewayclient.Interface, system, namespace string) error {
	grant := &gatewayv1beta1.ReferenceGrant{
		TypeMeta:   metav1.TypeMeta{APIVersion: gatewayv1beta1.GroupVersion.String(), Kind: "ReferenceGrant"},
		ObjectMeta: metav1.ObjectMeta{Name: names.Child(namespace, "-calls"), Namespace: system},
		Spec: gatewayv1beta1.ReferenceGrantSpec{
			From: []gatewayv1beta1.ReferenceGrantFrom{{Group: gatewayv1.GroupName, Kind: "HTTPRoute", Namespace: gatewayv1.Namespace(namespace)}},
			To:   []gatewayv1beta1.ReferenceGrantTo{{Kind: "Service", Name: ptr.To(gatewayv1.ObjectName(plan.Courier))}},
		},
	}
	raw, err := json.Marshal(grant)
	if err != nil {
		return err
	}
	force := metav1.PatchOptions{FieldManager: "ebb-courier", Force: ptr.To(true)}
	if _, err := client.GatewayV1beta1().ReferenceGrants(system).Patch(ctx, grant.Name, types.ApplyPatchType, raw, force); err != nil {
		return fmt.Errorf("let HTTPRoutes of namespace %s name the courier: %w", namespace, err)
	}
	return nil
}

// Unlisten removes the listener of host.
func Unlisten(ctx context.Context, client gatewayclient.Interface, on []settings.GatewayRef, host string) error {
	return listeners(ctx, client, on, host, nil)
}

func listeners(ctx context.Context, client gatewayclient.Interface, on []settings.GatewayRef, host string, list []gatewayv1.Listener) error {
	for _, g := range on {
		part := map[string]any{
			"apiVersion": gatewayv1.GroupVersion.String(), "kind": "Gateway",
			"metadata": map[string]any{"name": g.Name(), "namespace": g.Namespace()},
		}
		if len(list) > 0 {
			part["spec"] = map[string]any{"listeners": list}
		} else if _, err := client.GatewayV1().Gateways(g.Namespace()).Get(ctx, g.Name(), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			continue // an apply would create it
		}
		raw, err := json.Marshal(part)
		if err != nil {
			return err
		}
		_, err = client.GatewayV1().Gateways(g.Namespace()).Patch(ctx, g.Name(), types.ApplyPatchType, raw,
			metav1.PatchOptions{FieldManager: manager(host), Force: ptr.To(true)})
		if err != nil {
			return fmt.Errorf("set the listener of host %s on Gateway %s: %w", host, g.Gateway, err)
		}
	}
	return nil
}
