package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"
	gateways "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/settings"
)

// inspectResting reads the HTTPRoutes, where hosts may rest (docs/decisions/0020).
func (x *installation) inspectResting(ctx context.Context, client gateways.Interface) {
	if !x.settings.Gateway.Resting {
		return
	}
	list, err := client.GatewayV1().HTTPRoutes("").List(ctx, metav1.ListOptions{})
	if x.routesErr = err; err == nil {
		x.routes = list.Items
	}
}

// checkResting tells of the HTTPRoutes of others that keep hosts from resting.
func (x *installation) checkResting(j *checklist) {
	const about = "resting hosts"
	if x.settings == nil || !x.settings.Gateway.Resting || j.unread(about, x.routesErr, "") {
		return
	}
	found := false
	for i := range x.routes {
		if what := x.keeps(&x.routes[i]); what != "" {
			found = true
			j.warn(about, fmt.Sprintf("HTTPRoute %s/%s has %s, so they have HTTPRoutes of their own", x.routes[i].Namespace, x.routes[i].Name, what),
				"Give it only hosts that no Service has.")
		}
	}
	if !found {
		j.ok(about, "no HTTPRoute of others keeps them from resting")
	}
}

// keeps says which hosts of Services an HTTPRoute of somebody else may have: all at a Gateway, or
// those of a wildcard. A single host may be a Service's or not.
func (x *installation) keeps(h *gatewayapi.HTTPRoute) string {
	if owner := metav1.GetControllerOfNoCopy(h); owner != nil && strings.HasPrefix(owner.APIVersion, names.ServingGroup+"/") ||
		h.Namespace == names.SystemNamespace && h.Labels[names.CommonLabel]+h.Labels[names.BridgeLabel] != "" {
		return ""
	}
	at := func(on []settings.GatewayRef) bool {
		return slices.ContainsFunc(h.Spec.ParentRefs, func(p gatewayapi.ParentReference) bool {
			return slices.ContainsFunc(on, func(g settings.GatewayRef) bool {
				return string(p.Name) == g.Name() && string(ptr.Deref(p.Namespace, gatewayapi.Namespace(h.Namespace))) == g.Namespace()
			})
		})
	}
	if len(h.Spec.Hostnames) == 0 && at(x.settings.Gateway.Local) {
		return "all hosts inside the cluster"
	}
	for _, host := range h.Spec.Hostnames {
		wildcard, is := strings.CutPrefix(string(host), "*.")
		if is && at(x.settings.Gateway.Local) {
			return "the hosts " + string(host)
		}
		for _, choice := range x.settings.Domain.Choices {
			if is && at(x.settings.Gateway.External) && (wildcard == choice.Domain || strings.HasSuffix(wildcard, "."+choice.Domain)) {
				return "the hosts " + string(host)
			}
		}
	}
	return ""
}
