package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"
	gateways "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// neighbours are the objects of others that may be in the way of hosts that rest.
type neighbours struct {
	routes    []gatewayapi.HTTPRoute // and GRPCRoutes, by their Kind
	routesErr error

	// The controller does not see these. The Revisions and Routes are read if there is one.
	ingresses []networkingv1.Ingress
	virtual   []virtualService
	revisions []serving.Revision
	own       []serving.Route
	blindErr  error
}

// virtualService is what is read of Istio's VirtualService.
type virtualService struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Hosts    []string       `json:"hosts"`
		Gateways []string       `json:"gateways"`
		HTTP     []virtualRoute `json:"http"`
		TLS      []virtualRoute `json:"tls"`
		TCP      []virtualRoute `json:"tcp"`
	} `json:"spec"`
}

type virtualRoute struct {
	Route   []routedTo   `json:"route"`
	Mirror  *destination `json:"mirror"`
	Mirrors []routedTo   `json:"mirrors"`
}

type routedTo struct {
	Destination destination `json:"destination"`
}

type destination struct {
	Host string `json:"host"`
}

// inspectResting reads the HTTPRoutes and GRPCRoutes, where hosts may rest (docs/decisions/0020).
func (x *installation) inspectResting(ctx context.Context, client gateways.Interface) {
	if !x.settings.Gateway.Resting {
		return
	}
	list, err := client.GatewayV1().HTTPRoutes("").List(ctx, metav1.ListOptions{})
	if err == nil {
		x.beside.routes = list.Items
	}
	also, grpcErr := client.GatewayV1().GRPCRoutes("").List(ctx, metav1.ListOptions{})
	if grpcErr == nil {
		for i := range also.Items {
			g := &also.Items[i]
			x.beside.routes = append(x.beside.routes, gatewayapi.HTTPRoute{TypeMeta: metav1.TypeMeta{Kind: "GRPCRoute"}, ObjectMeta: g.ObjectMeta,
				Spec: gatewayapi.HTTPRouteSpec{CommonRouteSpec: g.Spec.CommonRouteSpec, Hostnames: g.Spec.Hostnames}})
		}
	}
	x.beside.routesErr = cmp.Or(err, served(grpcErr))
}

// served returns an error, but for that of a kind that the cluster does not have.
func served(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// inspectBlind reads the Ingresses and VirtualServices, which the controller does not.
func (x *installation) inspectBlind(ctx context.Context, a *access) {
	b := &x.beside
	if !x.settings.Gateway.Resting {
		return
	}
	list := &networkingv1.IngressList{}
	if b.blindErr = served(a.read(ctx, "/apis/networking.k8s.io/v1/ingresses", list)); b.blindErr != nil {
		return
	}
	b.ingresses = list.Items
	for _, version := range []string{"v1", "v1beta1"} {
		var list struct{ Items []virtualService }
		err := a.read(ctx, "/apis/networking.istio.io/"+version+"/virtualservices", &list)
		if b.blindErr = served(err); b.blindErr != nil {
			return
		}
		if b.virtual = list.Items; err == nil {
			break
		}
	}
	if len(b.ingresses)+len(b.virtual) == 0 {
		return
	}
	cached := metav1.ListOptions{ResourceVersion: "0"}
	revisions, err := a.ebb.ServingV1().Revisions("").List(ctx, cached)
	if b.blindErr = err; err != nil {
		return
	}
	routes, err := a.ebb.ServingV1().Routes("").List(ctx, cached)
	if b.blindErr = err; err != nil {
		return
	}
	b.revisions, b.own = revisions.Items, routes.Items
}

// checkResting tells of the HTTPRoutes and GRPCRoutes of others that keep hosts from resting, and
// of what does not and is in the way.
func (x *installation) checkResting(j *checklist) {
	const about = "resting hosts"
	if x.settings == nil || !x.settings.Gateway.Resting || j.unread(about, x.beside.routesErr, "") {
		return
	}
	before := len(j.findings)
	for i := range x.beside.routes {
		if what := x.keeps(&x.beside.routes[i]); what != "" {
			j.warn(about, fmt.Sprintf("%s %s/%s has %s, so they have HTTPRoutes of their own", cmp.Or(x.beside.routes[i].Kind, "HTTPRoute"),
				x.beside.routes[i].Namespace, x.beside.routes[i].Name, what), "Give it only hosts that no Service has.")
		}
	}
	if !j.unread("resting hosts, Ingresses and VirtualServices", x.beside.blindErr, "") {
		x.beside.check(j, about)
	}
	if len(j.findings) == before {
		j.ok(about, "no object of others is in their way")
	}
}

// blind is what an Ingress or a VirtualService names. The hosts are those that it may take from
// Ebb's gateways.
type blind struct {
	what     string
	services []types.NamespacedName
	hosts    []string
}

func ofIngress(in *networkingv1.Ingress) blind {
	b := blind{what: "Ingress " + in.Namespace + "/" + in.Name}
	to := func(backend *networkingv1.IngressBackend) {
		if backend != nil && backend.Service != nil {
			b.services = append(b.services, types.NamespacedName{Namespace: in.Namespace, Name: backend.Service.Name})
		}
	}
	// Others have pods of their own.
	atOurs := ptr.Deref(in.Spec.IngressClassName, in.Annotations["kubernetes.io/ingress.class"]) == "istio"
	if to(in.Spec.DefaultBackend); in.Spec.DefaultBackend != nil && atOurs {
		b.hosts = append(b.hosts, "*")
	}
	for i := range in.Spec.Rules {
		rule := &in.Spec.Rules[i]
		if atOurs {
			b.hosts = append(b.hosts, cmp.Or(rule.Host, "*")) // a rule without a host has all
		}
		if rule.HTTP != nil {
			for j := range rule.HTTP.Paths {
				to(&rule.HTTP.Paths[j].Backend)
			}
		}
	}
	return b
}

func ofVirtualService(v *virtualService) blind {
	b := blind{what: "VirtualService " + v.Namespace + "/" + v.Name}
	to := func(d destination) {
		name, rest, _ := strings.Cut(d.Host, ".")
		namespace, _, _ := strings.Cut(rest, ".")
		b.services = append(b.services, types.NamespacedName{Namespace: cmp.Or(namespace, v.Namespace), Name: name})
	}
	for _, rule := range slices.Concat(v.Spec.HTTP, v.Spec.TLS, v.Spec.TCP) {
		for _, d := range slices.Concat(rule.Route, rule.Mirrors) {
			to(d.Destination)
		}
		if rule.Mirror != nil {
			to(*rule.Mirror)
		}
	}
	if slices.ContainsFunc(v.Spec.Gateways, func(name string) bool { return name != "mesh" }) {
		b.hosts = v.Spec.Hosts
	}
	return b
}

// check tells of Ingresses and VirtualServices that name Services which are not always there, or
// hosts that rest.
func (b *neighbours) check(j *checklist, about string) {
	may := map[types.NamespacedName]bool{} // the Routes whose hosts may rest
	hosts := map[string]string{}           // theirs, with the Route
	for i := range b.own {
		r := &b.own[i]
		if value, there := r.Annotations[names.RestingAnnotation]; there && !strings.EqualFold(value, "enabled") {
			continue
		}
		may[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = true
		urls := []*apis.URL{r.Status.URL}
		if inside := r.Status.Address; inside != nil {
			urls = append(urls, inside.URL)
		}
		for _, t := range r.Status.Traffic {
			urls = append(urls, t.URL)
		}
		for _, url := range urls {
			if url != nil {
				hosts[url.Host] = r.Namespace + "/" + r.Name
			}
		}
	}
	goes := map[types.NamespacedName]bool{} // the Services of Revisions that nothing keeps
	for i := range b.revisions {
		r := &b.revisions[i]
		if route := r.Labels[names.ServiceLabel]; r.Annotations[names.NoGCAnnotation] != "true" && (route == "" || may[types.NamespacedName{Namespace: r.Namespace, Name: route}]) {
			goes[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = true
		}
	}
	var all []blind
	for i := range b.ingresses {
		all = append(all, ofIngress(&b.ingresses[i]))
	}
	for i := range b.virtual {
		all = append(all, ofVirtualService(&b.virtual[i]))
	}
	for _, one := range all {
		told := map[any]bool{}
		for _, s := range one.services {
			if goes[s] && !told[s] {
				told[s] = true
				j.warn(about, fmt.Sprintf("%s leads to Service %s of a Revision, which is there only while an HTTPRoute or a GRPCRoute names it", one.what, s),
					fmt.Sprintf("kubectl -n %s annotate revision %s %s=true", s.Namespace, s.Name, names.NoGCAnnotation))
			}
		}
		for _, host := range one.hosts {
			if route := within(hosts, host); route != "" && !told[host] {
				told[host] = true
				has := "has the host %s of Route %s"
				if strings.HasPrefix(host, "*") {
					has = "has the hosts %s, and so one of Route %s"
				}
				j.warn(about, fmt.Sprintf("%s "+has+", whose requests it takes while that rests, at gateways that both have", one.what, host, route),
					fmt.Sprintf("If both have a gateway, set %s: disabled on the Knative Service.", names.RestingAnnotation))
			}
		}
	}
}

// within returns the first Route with a host, or with one of a wildcard.
func within(hosts map[string]string, host string) string {
	suffix, wildcard := strings.CutPrefix(host, "*")
	if !wildcard {
		return hosts[host]
	}
	first := ""
	for have, route := range hosts {
		if strings.HasSuffix(have, suffix) && (first == "" || route < first) {
			first = route
		}
	}
	return first
}

// keeps says which hosts of Services an HTTPRoute or GRPCRoute of somebody else may have: all at a
// Gateway, or those of a wildcard. A single host may be a Service's or not.
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
