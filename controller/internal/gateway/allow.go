package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewaylisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/settings"
)

// allower lets each Gateway accept ListenerSets from the namespaces that have one of Ebb's, and
// from no others, so that a tenant without TLS adds no listeners. It is a reconciler of its own
// because the list belongs to the Gateway: the lease of its key makes one replica the only writer.
//
// A Gateway whose allowedListeners somebody else has set is left alone. Ebb's selector has a mark
// (see allowed). An annotation of the Gateway cannot be the mark: Istio copies annotations to the
// gateway's pods, so it would replace them. The shipped Gateways do not have the field, because a
// Gateway API before 1.5 does not know it.
type allower struct {
	settings *settings.Store
	sets     *reconcile.Optional
	client   gatewayclient.Interface
	lister   gatewaylisters.GatewayLister
}

// New returns the reconciler of the Gateways' allowedListeners.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	all := mgr.GatewayInformers.Gateway().V1().Gateways()
	a := &allower{settings: mgr.Settings, client: mgr.Gateways, lister: all.Lister(),
		sets: mgr.Optional(gatewayapi.ListenerSets, gatewayapi.ListenerSetSelector)}
	c := &reconcile.Controller{Name: "gateway", Workers: 1, Reconcile: a.reconcile, Keys: a.keys}
	c.Watch(all.Informer(), reconcile.Self)
	c.WatchOptional(a.sets, func(object any) []reconcile.Key {
		if set, ok := object.(*unstructured.Unstructured); ok {
			return []reconcile.Key{gatewayapi.GatewayOf(set)}
		}
		return nil
	})
	return c
}

// keys lists the Gateways of Ebb that take ListenerSets.
func (a *allower) keys() (out []reconcile.Key) {
	g := a.settings.Load().Gateway
	for _, on := range slices.Concat(g.External, g.Local) {
		if gatewayapi.TakesListenerSets(on) {
			out = append(out, reconcile.Key{Namespace: on.Namespace(), Name: on.Name()})
		}
	}
	return out
}

func (a *allower) reconcile(ctx context.Context, key reconcile.Key) (time.Duration, error) {
	have, found, err := apply.Found(a.lister.Gateways(key.Namespace).Get(key.Name))
	if err != nil || !found || !a.sets.Present() || !slices.Contains(a.keys(), key) {
		return 0, err
	}
	if !a.sets.Synced() { // an incomplete list would take listeners away
		return time.Second, nil
	}
	if have.Spec.AllowedListeners != nil && !ours(have) {
		return 0, nil
	}
	want := allowed(a.sets.All(), key)
	if equality.Semantic.DeepEqual(have.Spec.AllowedListeners, want) {
		return 0, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": have.ResourceVersion},
		"spec":     map[string]any{"allowedListeners": want},
	})
	if err != nil {
		return 0, fmt.Errorf("let Gateway %s take ListenerSets: %w", key, err)
	}
	_, err = a.client.GatewayV1().Gateways(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "ebb-controller"})
	if err != nil {
		return 0, fmt.Errorf("let Gateway %s take ListenerSets: %w", key, err)
	}
	return 0, nil
}

// ours reports whether Ebb has set a Gateway's allowedListeners. Earlier versions marked the
// Gateway with an annotation of the same name.
func ours(g *gatewayv1.Gateway) bool {
	from := g.Spec.AllowedListeners.Namespaces
	if from == nil || from.Selector == nil || from.From == nil || *from.From != gatewayv1.NamespacesFromSelector {
		return false
	}
	return g.Annotations[names.AllowedListenersLabel] != "" ||
		slices.ContainsFunc(from.Selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == names.AllowedListenersLabel })
}

// allowed selects the namespaces of the ListenerSets of a Gateway. It is nil if there are none. Its
// second expression is the mark: no namespace has this label.
func allowed(sets []*unstructured.Unstructured, key reconcile.Key) *gatewayv1.AllowedListeners {
	namespaces := map[string]bool{}
	for _, set := range sets {
		if gatewayapi.GatewayOf(set) == key && set.GetDeletionTimestamp() == nil {
			namespaces[set.GetNamespace()] = true
		}
	}
	if len(namespaces) == 0 {
		return nil
	}
	return &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{
		From: new(gatewayv1.NamespacesFromSelector),
		Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: slices.Sorted(maps.Keys(namespaces))},
			{Key: names.AllowedListenersLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
		}},
	}}
}
