package migrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/api/names"
)

// hosts replaces the Ingress of each Route and DomainMapping: when the gateways have accepted Ebb's
// HTTPRoutes, the Ingress goes, and with it what its plugin has made. The first one goes alone. An
// HTTPRoute that has the name of Ebb's does not go: Ebb writes over it.
func (m *Move) hosts(ctx context.Context) error {
	all, err := m.list(ctx, ingresses, "")
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return nil
	}
	if err := m.host(ctx, all[0]); err != nil {
		return err
	}
	return each(all[1:], func(ingress Object) error { return m.host(ctx, ingress) })
}

// seen are the HTTPRoutes of a namespace, for all hosts that are moved at the same time.
type seen struct {
	at     time.Time
	routes []Object
}

// routesIn lists the HTTPRoutes of a namespace. A list is used for as long as one pause.
func (m *Move) routesIn(ctx context.Context, namespace string) ([]Object, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if s, is := m.seen[namespace]; is && time.Since(s.at) < pause {
		return s.routes, nil
	}
	began := time.Now()
	list, err := m.listIn(ctx, httpRouteResource, namespace, "")
	if err != nil {
		return nil, err
	}
	if m.seen == nil {
		m.seen = map[string]seen{}
	}
	m.seen[namespace] = seen{began, list}
	return list, nil
}

func (m *Move) host(ctx context.Context, ingress Object) error {
	owner := controllerOf(ingress)
	if owner.UID == "" {
		return fmt.Errorf("%s belongs to nobody: delete it, or find out who needs it", nameOf(ingress))
	}
	of := object(owner.APIVersion, owner.Kind, ingress.GetNamespace(), owner.Name)
	of.SetUID(owner.UID)
	if _, err := m.handOver(ctx, ingress, of); err != nil {
		return err
	}
	if conditionOf(ingress, "Ready") == "True" {
		if err := m.accepted(ctx, ingress, owner); err != nil {
			return err
		}
	}
	if err := m.release(ctx, ingress); err != nil {
		return err
	}
	return until(ctx, 2*time.Minute, func(ctx context.Context) (string, error) {
		routes, err := m.routesIn(ctx, ingress.GetNamespace())
		if err != nil {
			return "", err
		}
		for _, r := range routes {
			if controllerOf(r).UID == ingress.GetUID() {
				return nameOf(r) + ", which the plugin has made, is not deleted", nil
			}
		}
		have, err := m.get(ctx, of)
		if err != nil || have == nil || conditionOf(ingress, "Ready") != "True" || conditionOf(have, "Ready") == "True" {
			return "", err
		}
		return fmt.Sprintf("%s is not Ready without its Ingress: kubectl -n %s describe %s %s", nameOf(of), of.GetNamespace(), of.GetKind(), of.GetName()), nil
	})
}

// handOver makes another object the owner of those HTTPRoutes of from that have the name of their
// host, as Ebb's have, and reports how many there are. Their rules stay until the new owner's
// controller writes.
func (m *Move) handOver(ctx context.Context, from, to Object) (n int, err error) {
	routes, err := m.routesIn(ctx, from.GetNamespace())
	if err != nil {
		return 0, err
	}
	for _, r := range routes {
		if controllerOf(r).UID != from.GetUID() || !hasNameOfHost(r) {
			continue
		}
		n++
		if to.GetKind() == "Route" { // Ebb finds them by the label
			if err := m.patch(ctx, r, map[string]any{"metadata": map[string]any{"labels": map[string]any{names.RouteLabel: to.GetName()}}}); err != nil {
				return n, err
			}
		}
		if err := m.own(ctx, r, to); err != nil {
			return n, err
		}
	}
	return n, nil
}

func hasNameOfHost(r Object) bool {
	hosts, _, _ := unstructured.NestedStringSlice(r.Object, "spec", "hostnames")
	return slices.Contains(hosts, r.GetName())
}

// accepted waits until gateways have accepted Ebb's HTTPRoutes of a Route or DomainMapping.
func (m *Move) accepted(ctx context.Context, ingress Object, owner metav1.OwnerReference) error {
	return until(ctx, 2*time.Minute, func(ctx context.Context) (string, error) {
		routes, err := m.routesIn(ctx, ingress.GetNamespace())
		if err != nil {
			return "", err
		}
		found := 0
		for _, r := range routes {
			if controllerOf(r).UID != owner.UID {
				continue
			}
			if found++; !isAccepted(r) {
				return nameOf(r) + " is not accepted by its gateway", nil
			}
		}
		if found == 0 {
			return fmt.Sprintf("%s %s/%s has no HTTPRoute from Ebb: kubectl -n %s logs deployment/controller", owner.Kind, ingress.GetNamespace(), owner.Name, names.SystemNamespace), nil
		}
		return "", nil
	})
}

// isAccepted reports whether all parents of an HTTPRoute have accepted it, in any generation: Istio
// may leave out the status of a generation that another follows at once.
func isAccepted(r Object) bool {
	parents, _, _ := unstructured.NestedSlice(r.Object, "status", "parents")
	for _, parent := range parents {
		p, _ := parent.(map[string]any)
		conditions, _, _ := unstructured.NestedSlice(p, "conditions")
		accepted := false
		for _, entry := range conditions {
			c, _ := entry.(map[string]any)
			accepted = accepted || c["type"] == "Accepted" && c["status"] == "True"
		}
		if !accepted {
			return false
		}
	}
	return len(parents) > 0
}
