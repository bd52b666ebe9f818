package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

const (
	byHost = "host"
	// ReasonHostTaken is the reason of IngressReady if somebody in another namespace has the host.
	ReasonHostTaken = "HostTaken"
)

// Hosts tells to which namespace a host belongs: to the one whose Route or DomainMapping has it.
// If two have it, these decide, in this order:
//
//	the Route whose host inside the cluster it is, if its gateway is a public one, too
//	the one in a namespace to which the settings give the host (plan.Gives), if they do not to the other
//	the one whose HTTPRoute is older, as in the Gateway API
//
// A Route has a host in its HTTPRoutes or, if it rests, in its plan. The plan is as old as the
// Route.
//
// Among DomainMappings the ClusterDomainClaim decides. Who loses has no HTTPRoute for the host: a
// rule with a header would win over those of the other.
type Hosts struct {
	client        gatewayclient.Interface
	httpRoutes    cache.Indexer
	planned       Planned
	listeners     *Listeners
	clusterDomain string
}

// NewHosts returns Hosts of a Manager whose informers have not started yet.
func NewHosts(mgr *reconcile.Manager, listeners *Listeners) Hosts {
	informer := mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer()
	if _, there := informer.GetIndexer().GetIndexers()[byHost]; !there {
		err := informer.AddIndexers(cache.Indexers{byHost: func(object any) (hosts []string, _ error) {
			if h, ok := object.(*gatewayv1.HTTPRoute); ok && ownerKind(h) != "" {
				for _, host := range h.Spec.Hostnames {
					hosts = append(hosts, string(host))
				}
			}
			return hosts, nil
		}})
		if err != nil {
			panic(fmt.Sprintf("index HTTPRoutes by host: %v", err)) // only a started informer refuses
		}
	}
	planned := NewPlanned(mgr.EbbInformers.Serving().V1().Routes().Informer())
	return Hosts{mgr.Gateways, informer.GetIndexer(), planned, listeners, mgr.ClusterDomain}
}

// ownerKind returns Route or DomainMapping, or "" for the HTTPRoute of somebody else.
func ownerKind(h *gatewayv1.HTTPRoute) string {
	owner := metav1.GetControllerOfNoCopy(h)
	if owner == nil || owner.Kind != "Route" && owner.Kind != "DomainMapping" {
		return ""
	}
	if group, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || group.Group != names.ServingGroup {
		return ""
	}
	return owner.Kind
}

// Of returns the HTTPRoutes of Routes and DomainMappings that have a host.
func (h Hosts) Of(host string) (out []*gatewayv1.HTTPRoute) {
	same, _ := h.httpRoutes.ByIndex(byHost, host) // fails only if there is no such index
	for _, object := range same {
		out = append(out, object.(*gatewayv1.HTTPRoute))
	}
	return out
}

// Planned returns the Routes that have a host in their plans.
func (h Hosts) Planned(host string) []*servingv1.Route { return h.planned.With(host) }

// Holder is who has a host: a Route or DomainMapping.
type Holder struct{ Kind, Name, Namespace, Host string }

// Yield deletes those HTTPRoutes of owner, with their ListenerSets, whose host belongs to another
// namespace, if it is among the given public hosts. Owner is a Route or DomainMapping, as kind
// says, and need not have an HTTPRoute for a host yet. Yield returns whom each of those hosts
// belongs to.
func (h Hosts) Yield(ctx context.Context, s *settings.Snapshot, owner apply.Object, kind string, hosts []string) (lost []Holder, err error) {
	for _, host := range hosts {
		var own []*gatewayv1.HTTPRoute
		var mine, others []claim
		for _, one := range h.Of(host) {
			switch {
			case metav1.IsControlledBy(one, owner):
				own, mine = append(own, one), append(mine, claimOf(one))
			case one.Namespace == owner.GetNamespace() || kind == "DomainMapping" && ownerKind(one) == kind:
			case !local(one) || onPublic(one, s.Gateway):
				others = append(others, claimOf(one))
			}
		}
		for _, one := range h.planned.With(host) {
			c := claim{kind: "Route", name: one.Name, namespace: one.Namespace, since: one.CreationTimestamp}
			switch {
			case one.UID == owner.GetUID():
				mine = append(mine, c)
			case one.Namespace == owner.GetNamespace() && kind == "DomainMapping": // the names of HTTPRoutes decide
			default:
				others = append(others, c)
			}
		}
		winner := h.winner(s, owner.GetNamespace(), host, mine, others)
		if winner == nil {
			continue
		}
		lost = append(lost, Holder{winner.kind, winner.name, winner.namespace, host})
		for _, one := range own {
			if err := h.listeners.remove(ctx, owner, one); err != nil {
				return lost, err
			}
			if err := apply.Delete(ctx, h.client.GatewayV1().HTTPRoutes(one.Namespace), "HTTPRoute", one, metav1.DeleteOptions{}); err != nil {
				return lost, err
			}
		}
	}
	return lost, nil
}

// claim is what gives somebody a host.
type claim struct {
	kind, name, namespace string
	local                 bool // the host is that of a Route inside the cluster
	since                 metav1.Time
}

func claimOf(h *gatewayv1.HTTPRoute) claim {
	by := metav1.GetControllerOfNoCopy(h)
	return claim{by.Kind, by.Name, h.Namespace, local(h), h.CreationTimestamp}
}

// winner returns who has the host in place of somebody in a namespace, nil if nobody has.
func (h Hosts) winner(s *settings.Snapshot, namespace, host string, own, others []claim) *claim {
	if len(others) == 0 {
		return nil
	}
	rank := func(namespace string, local bool) int {
		switch {
		case local:
			return 2
		case plan.Gives(s, h.clusterDomain, host, namespace):
			return 1
		}
		return 0
	}
	// The greater one has the host.
	against := func(a, b claim) int {
		return cmp.Or(cmp.Compare(rank(a.namespace, a.local), rank(b.namespace, b.local)),
			b.since.Compare(a.since.Time), cmp.Compare(b.namespace, a.namespace), cmp.Compare(b.name, a.name))
	}
	other := slices.MaxFunc(others, against)
	if len(own) == 0 {
		if rank(namespace, false) > rank(other.namespace, other.local) {
			return nil // the other one will see that it loses
		}
		return &other
	}
	if against(slices.MaxFunc(own, against), other) > 0 {
		return nil
	}
	return &other
}

// local reports whether an HTTPRoute has the hosts of a Route inside the cluster.
func local(h *gatewayv1.HTTPRoute) bool {
	return h.Labels[names.VisibilityLabel] == names.VisibilityClusterLocal
}

// onPublic reports whether an HTTPRoute is at a Gateway for public hosts.
func onPublic(h *gatewayv1.HTTPRoute, g settings.Gateway) bool {
	return slices.ContainsFunc(h.Spec.ParentRefs, func(p gatewayv1.ParentReference) bool {
		return slices.ContainsFunc(g.External, func(on settings.GatewayRef) bool {
			return string(p.Name) == on.Name() && p.Namespace != nil && string(*p.Namespace) == on.Namespace()
		})
	})
}
