package process

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/ingress/plan"
)

// restingService is a Service whose hosts may rest.
type restingService struct {
	*ground
	hosts []string
}

func newRestingService(t *testing.T) restingService {
	s := restingService{newRestingGround(t, 1), []string{"a.ns.example.com", "a.ns.svc.cluster.local"}}
	s.pass(30 * time.Second) // the gateways are seen to have the common HTTPRoutes
	return s
}

// exists brings the Service to Ready. Nobody sends requests after a minute.
func (s restingService) exists() {
	s.t.Helper()
	s.hello("dev.local/hello:1", nil)
	s.pass(2 * time.Minute)
	if c := s.ready(); !c.IsTrue() {
		s.t.Fatalf("not Ready: %s %s\n%s", c.GetReason(), c.GetMessage(), s.store.Names("ns"))
	}
}

func (s restingService) ready() *apis.Condition {
	return get[servingv1.Service](s.ground, services, "a").Status.GetCondition(apis.ConditionReady)
}

// second is what the Service may be not Ready for.
const second = "a second revision"

// serves plays time in small steps and wants each host answered in each of them, and the Service
// Ready, until is says that it is enough.
func (s restingService) serves(what string, is func() bool) {
	s.t.Helper()
	for range 120 * 100 {
		for _, host := range s.hosts {
			if a := s.ask(gatewayOf(host), host, ""); a.code != 200 {
				s.t.Fatalf("%s: host %s answers %d: %s\n%s", what, host, a.code, a.why, s.state())
			}
		}
		if c := s.ready(); !c.IsTrue() && what != second {
			s.t.Fatalf("%s: it is not Ready for a while: %s %s", what, c.GetReason(), c.GetMessage())
		}
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		s.run()
		synctest.Wait()
	}
	s.t.Fatalf("%s: not within two minutes\n%s", what, s.state())
}

func (s restingService) state() string {
	var out strings.Builder
	for _, h := range append(s.systems(), all[gatewayv1.HTTPRoute](s.ground, httpRoutes)...) {
		fmt.Fprintf(&out, "%s/%s %v %d rules\n", h.Namespace, h.Name, h.Spec.Hostnames, len(h.Spec.Rules))
	}
	route := get[servingv1.Route](s.ground, routesResource, "a")
	fmt.Fprintf(&out, "told %s\n", route.Status.Annotations[names.PlanAnnotation])
	for _, c := range route.Status.Conditions {
		fmt.Fprintf(&out, "  %s=%s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	return out.String()
}

func (s restingService) own() bool { return len(s.names(httpRoutes)) == 2 && s.bridges() == 0 }
func (s restingService) atRest() bool {
	return len(s.names(httpRoutes)) == 0 && s.bridges() == 0
}

func (s restingService) bridges() (n int) {
	for _, h := range s.systems() {
		if h.Labels[names.BridgeLabel] != "" {
			n++
		}
	}
	return n
}

// loaded has the gateways send requests to the pods of a revision for a while.
func (s restingService) loaded(revision string, d time.Duration) {
	s.requests[revision], s.busyUntil[revision] = time.Now().Add(d), time.Now().Add(d)
	s.run()
}

// A Service has no HTTPRoute while its requests pass the activators. Under load it gets its own,
// and loses them later.
func TestAServiceRestsWhileActivatorsServeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.exists()
		if !s.atRest() {
			t.Fatalf("a new Service has HTTPRoutes:\n%s", s.state())
		}
		s.store.Writes()
		s.hello("dev.local/hello:2", nil)
		s.serves(second, func() bool { by := s.routedTo(s.hosts[0]); return by[0] == "a-00002" && s.ready().IsTrue() })
		if !s.atRest() {
			t.Errorf("a second revision has HTTPRoutes:\n%s", s.state())
		}
		for round := range 2 {
			s.store.Writes()
			s.loaded("a-00002", 5*time.Minute)
			s.pass(5 * time.Second)
			if !s.atRest() {
				t.Errorf("a short load has HTTPRoutes written:\n%s", s.state())
			}
			s.serves("under load", s.own)
			if !s.ready().IsTrue() {
				t.Errorf("round %d: with HTTPRoutes of its own it is not Ready", round)
			}
			s.pass(8 * time.Minute)
			if !s.own() {
				t.Errorf("round %d: it loses its HTTPRoutes at once", round)
			}
			s.pass(100 * time.Second)
			s.serves("quiet again", s.atRest)
			s.pass(2 * time.Minute) // a minute after the last need, public Services go
			for _, w := range s.store.Writes() {
				if w.Resource == "routes/status" { // nothing that it says has changed
					t.Errorf("round %d: %s", round, describe(w))
				}
			}
		}
		s.store.Writes()
		s.pass(10 * time.Minute)
		for _, w := range s.store.Writes() {
			t.Errorf("at rest, somebody writes %v", w)
		}
	})
}

// What HTTPRoutes of its own are for, they are there for; then they go again.
func TestWhatKeepsAServiceFromResting(t *testing.T) {
	for what, c := range map[string]struct{ begin, end func(restingService) }{
		"an annotation": {
			func(s restingService) { s.annotate("disabled") },
			func(s restingService) { s.annotate("enabled") },
		},
		"the setting": {
			func(s restingService) { s.rests = false; s.set() },
			func(s restingService) { s.rests = true; s.set() },
		},
		"a DomainMapping": {
			func(s restingService) { s.mapDomain() },
			func(s restingService) {
				if err := s.user.Ebb.ServingV1beta1().DomainMappings("ns").Delete(context.Background(), mapped, metav1.DeleteOptions{}); err != nil {
					s.t.Fatal(err)
				}
			},
		},
		"somebody's HTTPRoute for all hosts inside the cluster": {
			func(s restingService) { s.foreign(httpRoutes, "HTTPRoute", "", local) },
			func(s restingService) { s.store.Remove(httpRoutes, "other", "foreign") },
		},
		"somebody's HTTPRoute for another wildcard": {
			func(s restingService) { s.foreign(httpRoutes, "HTTPRoute", "*.ns.example.com", public) },
			func(s restingService) { s.store.Remove(httpRoutes, "other", "foreign") },
		},
		"somebody's GRPCRoute for its host": {
			func(s restingService) {
				s.knowsGRPCRoutes()
				s.pass(6 * time.Minute) // the kind alone keeps nothing from resting
				if !s.atRest() {
					s.t.Errorf("there is no GRPCRoute:\n%s", s.state())
				}
				s.foreign(grpcRoutes, "GRPCRoute", s.hosts[0], public)
			},
			func(s restingService) { s.store.Remove(grpcRoutes, "other", "foreign") },
		},
		"somebody's GRPCRoute that was there before its kind was known": {
			func(s restingService) {
				s.foreign(grpcRoutes, "GRPCRoute", "*.ns.example.com", public)
				s.knowsGRPCRoutes()
			},
			func(s restingService) { s.store.Remove(grpcRoutes, "other", "foreign") },
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRestingService(t)
				defer s.end()
				s.exists()
				c.begin(s)
				s.serves("with "+what, func() bool {
					own := slices.DeleteFunc(s.names(httpRoutes), func(name string) bool { return name == mapped })
					return len(own) == 2 && s.bridges() == 0 && get[servingv1.Route](s.ground, routesResource, "a").Status.Annotations[names.PlanAnnotation] == ""
				})
				if !s.ready().IsTrue() {
					t.Errorf("it is not Ready:\n%s", s.state())
				}
				if what == "a DomainMapping" {
					s.serves("mapped", func() bool { return s.ask(public, mapped, "").code == 200 })
				}
				if what == "the setting" {
					s.pass(2 * time.Minute)
					for _, h := range s.systems() {
						t.Errorf("HTTPRoute %s is left", h.Name)
					}
					if s.resting() || s.store.Get(endpointSlices, "knative-serving", plan.Resting) != nil || s.store.Get(coreServices, "knative-serving", plan.Resting) != nil {
						t.Error("the Service or its EndpointSlice is left")
					}
				}
				c.end(s)
				s.pass(7 * time.Minute)
				s.serves("without "+what, s.atRest)
			})
		})
	}
}

// A cluster may not let the controller list its GRPCRoutes. Who rests goes on, and nobody else
// comes to rest.
func TestNobodyComesToRestWhileGRPCRoutesAreUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.exists()
		s.judge(func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/grpcroutes") })
		s.knowsGRPCRoutes()
		s.pass(2 * time.Minute)
		if !s.atRest() {
			t.Errorf("it rested, and does not:\n%s", s.state())
		}
		s.loaded("a-00001", time.Minute)
		s.serves("under load", s.own)
		s.pass(10 * time.Minute)
		if !s.own() {
			t.Errorf("it rests, and somebody may have its host:\n%s", s.state())
		}
		s.judge(nil)
		s.pass(2 * time.Minute)
		s.serves("known", s.atRest)
	})
}

// Another Gateway is named while a switch cannot end. It may never serve, so the hosts stay where
// they are, until it is over.
func TestTheGatewayChangesWhileAServiceIsBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.exists()
		s.refuseCreation("httproutes")
		s.annotate("disabled")
		s.pass(time.Minute)
		if s.bridges() != 2 {
			t.Fatalf("it is not between:\n%s", s.state())
		}
		s.gateways = absent
		s.set()
		for range 20 {
			s.pass(5 * time.Second)
			for _, host := range s.hosts {
				if a := s.ask(gatewayOf(host), host, ""); a.code != 200 {
					t.Fatalf("host %s answers %d: %s\n%s", host, a.code, a.why, s.state())
				}
			}
		}
		s.gateways = ""
		s.forbid(nil)
		s.set()
		s.pass(2 * time.Minute)
		s.serves("over", s.own)
	})
}

// knowsGRPCRoutes has the kind installed.
func (s restingService) knowsGRPCRoutes() {
	s.put(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "apiextensions.k8s.io/v1",
		"CustomResourceDefinition", &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: grpcRoutes.Resource + "." + grpcRoutes.Group}})
}

// foreign has somebody make an HTTPRoute or a GRPCRoute, whose rule takes a path that nobody asks
// for here.
func (s restingService) foreign(resource schema.GroupResource, kind, host, gateway string) {
	namespace, name, _ := strings.Cut(gateway, "/")
	h := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "foreign"}}
	h.Spec.ParentRefs = []gatewayv1.ParentReference{{Kind: ptr.To(gatewayv1.Kind("Gateway")), Namespace: ptr.To(gatewayv1.Namespace(namespace)), Name: gatewayv1.ObjectName(name)}}
	if host != "" {
		h.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(host)}
	}
	s.put(resource, "gateway.networking.k8s.io/v1", kind, h)
}

func (s restingService) annotate(value string) {
	v := get[servingv1.Service](s.ground, services, "a").DeepCopy()
	v.Annotations = map[string]string{names.RestingAnnotation: value}
	s.put(services, "serving.knative.dev/v1", "Service", v)
}

// The controller dies in the middle of a switch, again and again.
func TestAControllerThatDiesWhileAServiceComesToRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.exists()
		s.loaded("a-00001", 10*time.Minute)
		last := ""
		s.serves("under load", func() bool {
			if now := s.state(); now != last {
				last = now
				s.start(s.replicas[0])
			}
			return s.own()
		})
	})
}
