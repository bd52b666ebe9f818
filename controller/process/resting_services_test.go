package process

import (
	"fmt"
	"maps"
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
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	servingv1beta1 "ebb.dev/ebb/api/serving/v1beta1"
)

// public says what there is of the public Services of the revisions.
func (s restingService) public() string {
	var out []string
	for _, rev := range s.names(revisions) {
		if s.store.Get(coreServices, "ns", rev) != nil {
			out = append(out, "services "+rev)
		}
		if s.store.Get(endpointSlices, "ns", rev) != nil {
			out = append(out, "endpointslices "+rev)
		}
	}
	return strings.Join(out, ", ")
}

var grpcRoutes = schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "grpcroutes"}

const both = "services a-00001, endpointslices a-00001"

// within waits until there is that much of the public Services, while the hosts serve.
func (s restingService) within(d time.Duration, what, want string) {
	s.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); s.pass(time.Second) {
		if s.public() == want {
			return
		}
		for _, host := range s.hosts {
			if a := s.ask(gatewayOf(host), host, ""); a.code != 200 {
				s.t.Fatalf("%s: host %s answers %d: %s\n%s", what, host, a.code, a.why, s.state())
			}
		}
	}
	s.t.Fatalf("%s: there is %q, not %q\n%s", what, s.public(), want, s.state())
}

// events returns the Events since the last call.
func (g *ground) events() (out []string) {
	for {
		select {
		case event := <-g.told:
			out = append(out, event)
		default:
			return out
		}
	}
}

// A new Service that comes to rest never has a public Service for its revision. It has one while
// HTTPRoutes of its own name it.
func TestARevisionHasAPublicServiceWhileSomebodyNeedsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.told = make(chan string, 1000)
		s.start(s.replicas[0])
		s.exists()
		for _, w := range s.store.Writes() {
			if w.Name == "a-00001" && (w.Resource == "services" || w.Resource == "endpointslices") {
				t.Errorf("a new Service, and the controller does this: %s", describe(w))
			}
		}
		for round := range 2 {
			s.loaded("a-00001", 5*time.Minute)
			s.serves("under load", s.own)
			if s.public() != both {
				t.Errorf("round %d: with HTTPRoutes of its own there is %q", round, s.public())
			}
			s.pass(8 * time.Minute)
			if s.public() != both {
				t.Errorf("round %d: while HTTPRoutes name it there is %q", round, s.public())
			}
			s.pass(100 * time.Second)
			s.serves("quiet again", s.atRest)
			if s.public() != both {
				t.Errorf("round %d: at once there is %q", round, s.public())
			}
			s.within(2*time.Minute, "at rest", "")
			if !slices.ContainsFunc(s.events(), func(event string) bool { return strings.Contains(event, "ServiceDeleted") }) {
				t.Errorf("round %d: no event tells that it is gone", round)
			}
		}
		s.store.Writes()
		s.pass(10 * time.Minute)
		for _, w := range s.store.Writes() {
			t.Errorf("at rest, somebody writes %v", w)
		}
	})
}

// What others name stays, or is made.
func TestAPublicServiceIsKeptForWhoNamesIt(t *testing.T) {
	mirror := gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestMirror,
		RequestMirror: &gatewayv1.HTTPRequestMirrorFilter{BackendRef: gatewayv1.BackendObjectReference{Name: "a-00001", Namespace: ptr.To(gatewayv1.Namespace("ns"))}}}
	for what, c := range map[string]struct{ begin, end func(restingService) }{
		"somebody's HTTPRoute in another namespace": {
			func(s restingService) { s.naming("other", gatewayv1.HTTPRouteRule{BackendRefs: backend("ns")}) },
			func(s restingService) { s.store.Remove(httpRoutes, "other", "names-it") },
		},
		"somebody's HTTPRoute": {
			func(s restingService) { s.naming("ns", gatewayv1.HTTPRouteRule{BackendRefs: backend("")}) },
			func(s restingService) { s.store.Remove(httpRoutes, "ns", "names-it") },
		},
		"somebody's HTTPRoute that copies requests": {
			func(s restingService) {
				s.naming("other", gatewayv1.HTTPRouteRule{Filters: []gatewayv1.HTTPRouteFilter{mirror}})
			},
			func(s restingService) { s.naming("other", gatewayv1.HTTPRouteRule{BackendRefs: backend("other")}) },
		},
		"somebody's GRPCRoute": {
			func(s restingService) {
				s.knowsGRPCRoutes()
				s.pass(time.Minute)
				g := &gatewayv1.GRPCRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "names-it"}}
				g.Spec.Rules = []gatewayv1.GRPCRouteRule{{BackendRefs: []gatewayv1.GRPCBackendRef{{BackendRef: backend("ns")[0].BackendRef}}}}
				s.put(grpcRoutes, "gateway.networking.k8s.io/v1", "GRPCRoute", g)
			},
			func(s restingService) { s.store.Remove(grpcRoutes, "other", "names-it") },
		},
		"a DomainMapping that refers to it": {
			func(s restingService) {
				m := &servingv1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "revision.test"}}
				m.Spec.Ref = duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "a-00001", Namespace: "ns"}
				s.put(domainMappings, "serving.knative.dev/v1beta1", "DomainMapping", m)
			},
			func(s restingService) { s.store.Remove(domainMappings, "ns", "revision.test") },
		},
		"no-gc": {
			func(s restingService) { s.noGC("true") },
			func(s restingService) { s.noGC("") },
		},
		"the setting": {
			func(s restingService) { s.rests = false; s.set() },
			func(s restingService) { s.rests = true; s.set(); s.pass(6 * time.Minute) },
		},
		"an annotation": {
			func(s restingService) { s.annotate("disabled") },
			func(s restingService) { s.annotate("enabled"); s.pass(6 * time.Minute) },
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRestingService(t)
				defer s.end()
				s.exists()
				c.begin(s)
				s.within(time.Minute, what, both)
				s.pass(5 * time.Minute)
				if s.public() != both {
					t.Errorf("after a while there is %q", s.public())
				}
				c.end(s)
				s.within(3*time.Minute, "without "+what, "")
			})
		})
	}
}

func backend(namespace string) []gatewayv1.HTTPBackendRef {
	ref := gatewayv1.HTTPBackendRef{}
	ref.Name = "a-00001"
	if namespace != "" {
		ref.Namespace = ptr.To(gatewayv1.Namespace(namespace))
	}
	return []gatewayv1.HTTPBackendRef{ref}
}

// naming has somebody make an HTTPRoute at a Gateway of his own.
func (s restingService) naming(namespace string, rule gatewayv1.HTTPRouteRule) {
	h := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "names-it"}}
	h.Spec.ParentRefs = []gatewayv1.ParentReference{{Kind: ptr.To(gatewayv1.Kind("Gateway")), Name: "mine"}}
	h.Spec.Rules = []gatewayv1.HTTPRouteRule{rule}
	s.put(httpRoutes, "gateway.networking.k8s.io/v1", "HTTPRoute", h)
}

func (s restingService) noGC(value string) {
	rev := get[servingv1.Revision](s.ground, revisions, "a-00001").DeepCopy()
	delete(rev.Annotations, names.NoGCAnnotation)
	if value != "" {
		rev.Annotations[names.NoGCAnnotation] = value
	}
	s.put(revisions, "serving.knative.dev/v1", "Revision", rev)
}

// The controller dies after each write on the way from rest to own HTTPRoutes and back, and until
// the Service is gone.
func TestAControllerThatDiesBesideAPublicService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.exists()
		s.loaded("a-00001", 2*time.Minute)
		last := ""
		die := func() {
			if now := s.state() + s.public(); now != last {
				last = now
				s.start(s.replicas[0])
			}
		}
		s.serves("under load", func() bool { die(); return s.own() })
		s.pass(6*time.Minute + 40*time.Second)
		s.serves("quiet again", func() bool { die(); return s.atRest() })
		s.pass(50 * time.Second)
		s.serves("at rest", func() bool { die(); return s.public() == "" })
	})
}

// A controller that ends between both deletions, or may not do the second one, leaves an
// EndpointSlice of activators that may be gone when the Service is needed again. kube-proxy and
// gateways would take it for the new Service's.
func TestNoServiceIsMadeBesideWhatAnEarlierOneListed(t *testing.T) {
	deletes := func(r *http.Request) bool {
		return r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/endpointslices/a-00001")
	}
	for what, need := range map[string]func(s restingService){
		"a Route needs it": func(s restingService) {
			s.loaded("a-00001", 10*time.Minute)
			for range 12 {
				s.pass(step)
				s.within(time.Minute, "refused", "endpointslices a-00001")
			}
		},
		"somebody's HTTPRoute names it": func(s restingService) {
			s.naming("other", gatewayv1.HTTPRouteRule{BackendRefs: backend("ns")})
			s.within(2*time.Minute, "refused", both)
			s.loaded("a-00001", 10*time.Minute)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRestingService(t)
				defer s.end()
				s.exists()
				s.loaded("a-00001", time.Minute)
				s.serves("under load", s.own)
				s.judge(deletes)
				s.pass(5 * time.Minute)
				s.serves("quiet again", s.atRest)
				s.within(2*time.Minute, "refused", "endpointslices a-00001")
				s.slice("activator-service", "10.0.0.2")
				s.pass(time.Minute)
				made := 0
				looks := func(r *http.Request) {
					if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/namespaces/ns/services") {
						return
					}
					made++
					if slice := s.store.Get(endpointSlices, "ns", "a-00001"); slice != nil && strings.Contains(fmt.Sprint(slice.Object["endpoints"]), "10.0.0.1") {
						t.Error("the Service is made, and the activator that is gone is behind it")
					}
				}
				s.judge(func(r *http.Request) bool { looks(r); return deletes(r) })
				need(s)
				s.judge(func(r *http.Request) bool { looks(r); return false })
				s.within(2*time.Minute, "not refused any more", both)
				s.pass(time.Minute)
				s.serves("not refused any more", s.own)
				if s.public() != both || made == 0 {
					t.Errorf("there is %q; Services made: %d", s.public(), made)
				}
			})
		})
	}
}

// Hosts that rested stay with the activators, which serve them, while the API server takes no
// Services.
func TestHostsMayNotRestAnyMoreAndNoServiceCanBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.exists()
		s.refuseCreation("services")
		s.rests = false
		s.set()
		for range 60 {
			s.pass(step)
			s.within(time.Minute, "refused", "endpointslices a-00001")
		}
		rev := get[servingv1.Revision](s.ground, revisions, "a-00001")
		if c := rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable); !c.IsTrue() {
			t.Errorf("the revision serves, and says %+v", c)
		}
		route := get[servingv1.Route](s.ground, routesResource, "a")
		if c := route.Status.GetCondition(servingv1.RouteConditionIngressReady); !strings.Contains(c.GetMessage(), "exceeded quota: few") {
			t.Errorf("the Route says %+v", c)
		}
		s.forbid(nil)
		s.within(3*time.Minute, "not refused any more", both)
	})
}

// A gateway that is led to a Service without endpoints answers 503. Where an HTTPRoute has no room
// for spare rules, no probe tells of it.
func TestNoGatewayIsLedToAServiceWithoutEndpoints(t *testing.T) {
	for what, tags := range map[string]int{"an HTTPRoute without room for a spare rule": 15, "one with room": 1} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRestingService(t)
				defer s.end()
				s.byHeader = true
				s.set()
				s.exists()
				s.hello("dev.local/hello:2", nil)
				s.annotate("disabled")
				s.pass(time.Minute)
				var traffic []servingv1.TrafficTarget
				for i := range tags {
					traffic = append(traffic, servingv1.TrafficTarget{Tag: fmt.Sprintf("t%d", i), RevisionName: "a-00002"})
				}
				to := func(revision string) {
					s.hello("dev.local/hello:2", nil, append(traffic, servingv1.TrafficTarget{RevisionName: revision, Percent: ptr.To[int64](100)})...)
				}
				to("a-00002")
				s.pass(5 * time.Minute)
				if rev := get[servingv1.Revision](s.ground, revisions, "a-00001"); rev.Annotations[names.ParkedAnnotation] == "" || !s.ready().IsTrue() {
					t.Fatalf("it is not parked, or the Service is not Ready\n%s", s.state())
				}
				s.refuseCreation("endpointslices")
				to("a-00001")
				for range 60 {
					s.pass(step)
					for _, host := range s.hosts {
						if by := s.routedTo(host); !slices.Equal(by, []string{"a-00002"}) {
							t.Fatalf("host %s is answered by %v: %+v\n%s", host, by, s.ask(gatewayOf(host), host, ""), s.state())
						}
					}
				}
				route := get[servingv1.Route](s.ground, routesResource, "a")
				if c := route.Status.GetCondition(servingv1.RouteConditionIngressReady); c.IsTrue() || !strings.Contains(c.GetMessage(), "exceeded quota: few") {
					t.Errorf("the Route says %+v", c)
				}
				s.forbid(nil)
				s.pass(2 * time.Minute)
				s.serves("not refused any more", func() bool { return slices.Equal(s.routedTo(s.hosts[0]), []string{"a-00001"}) })
			})
		})
	}
}

// A Route that rests, and whose revision cannot have endpoints, goes on resting. Others do not wait
// for it: they may go between.
func TestARouteStaysAtRestWhileItsServiceHasNoEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.exists()
		s.refuseCreation("endpointslices")
		s.annotate("disabled")
		for range 60 {
			s.pass(step)
			s.within(time.Minute, "refused", "services a-00001")
			if !s.atRest() {
				t.Fatalf("gateways are told\n%s", s.state())
			}
		}
		rev := get[servingv1.Revision](s.ground, revisions, "a-00001")
		if c := rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable); !c.IsTrue() || !strings.Contains(c.GetMessage(), "exceeded quota: few") {
			t.Errorf("the revision serves, and says %+v", c)
		}
		route := get[servingv1.Route](s.ground, routesResource, "a")
		if c := route.Status.GetCondition(servingv1.RouteConditionIngressReady); !strings.Contains(c.GetMessage(), "exceeded quota: few") {
			t.Errorf("the Route says %+v", c)
		}
		s.forbid(nil)
		s.within(3*time.Minute, "not refused any more", both)
		s.pass(time.Minute)
		s.serves("not refused any more", s.own)
		rev = get[servingv1.Revision](s.ground, revisions, "a-00001")
		if c := rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable); !c.IsTrue() || c.GetMessage() != "" {
			t.Errorf("the revision says %+v", c)
		}
	})
}

// The first request after a long time has the Deployment and its private Service made. Its pod
// announces itself and serves, and is forgotten after a minute if nobody lists it.
func TestAFirstRequestLearnsThatNobodyMayListItsPods(t *testing.T) {
	for _, rests := range []bool{true, false} {
		t.Run(fmt.Sprintf("hosts may rest: %t", rests), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRestingService(t)
				defer s.end()
				s.rests, s.putsAway = rests, true
				s.set()
				s.exists()
				s.pass(5 * time.Minute)
				private := names.PrivateService("a-00001")
				if s.store.Get(coreServices, "ns", private) != nil {
					t.Fatal("the private Service is there")
				}
				s.refuseCreation("services")
				said := func() *apis.Condition {
					return get[servingv1.Revision](s.ground, revisions, "a-00001").Status.GetCondition(servingv1.RevisionConditionResourcesAvailable)
				}
				for passed := step; passed < 5*time.Minute; passed += step {
					s.requests["a-00001"] = time.Now()
					s.pass(step)
					for _, host := range s.hosts {
						a := s.ask(gatewayOf(host), host, "")
						switch up := slices.ContainsFunc(s.pods("a-00001"), s.known); {
						case up && a.code != 200:
							t.Fatalf("after %s its pod serves, and host %s answers %d: %s", passed, host, a.code, a.why)
						case passed > 90*time.Second && (a.code != 503 || !strings.Contains(a.why, "FailedCreate") || !strings.Contains(a.why, "exceeded quota: few")):
							t.Fatalf("after %s host %s answers %d: %s", passed, host, a.code, a.why)
						}
					}
					if c := said(); !c.IsFalse() || !strings.Contains(c.GetMessage(), "exceeded quota: few") {
						t.Fatalf("after %s the revision says %+v", passed, c)
					}
				}
				s.forbid(nil)
				for range 24 {
					s.requests["a-00001"] = time.Now()
					s.pass(step)
				}
				if c := said(); !c.IsTrue() || c.GetMessage() != "" || s.store.Get(coreServices, "ns", private) == nil {
					t.Errorf("when nothing is refused any more it says %+v", c)
				}
				s.serves("not refused any more", func() bool { return true })
			})
		})
	}
}

// A Route that is deleted before it has HTTPRoutes leaves a mark, and nobody else tells of it.
func TestTheMarkOfADeletedRouteDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.exists()
		s.refuseCreation("httproutes")
		route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", Annotations: map[string]string{names.RestingAnnotation: "disabled"}}}
		route.Spec.Traffic = []servingv1.TrafficTarget{{RevisionName: "a-00001", Percent: ptr.To[int64](100)}}
		s.put(routesResource, "serving.knative.dev/v1", "Route", route)
		s.within(time.Minute, "marked", both)
		s.pass(5 * time.Minute)
		if s.public() != both {
			t.Errorf("a Route waits for it, and there is %q", s.public())
		}
		s.store.Remove(routesResource, "ns", "b")
		s.within(3*time.Minute, "the Route is gone", "")
	})
}

// A mark in a template is nobody's: the reconcilers would write and unwrite it for ever.
func TestAMarkInATemplateDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRestingService(t)
		defer s.end()
		s.rests = false
		s.set()
		s.hello("dev.local/hello:1", map[string]string{names.NeededByAnnotation: "a"})
		s.pass(2 * time.Minute)
		s.hello("dev.local/hello:2", nil)
		s.pass(time.Minute)
		s.store.Writes()
		s.pass(time.Minute)
		for _, w := range s.store.Writes() {
			if w.Verb == "update" && w.Resource == "services" {
				t.Fatalf("somebody writes %s", describe(w))
			}
		}
	})
}

// A Service without load has these objects where hosts may rest.
func TestWhatAServiceAtRestConsistsOf(t *testing.T) {
	api := []string{"configurations a", "podautoscalers a-00001", "revisions a-00001", "routes a", "services a", "services a"}
	minutes := append([]string{"deployments a-00001-deployment", "services a-00001-private"}, api...)
	for what, c := range map[string]struct {
		rests, putsAway bool
		want            []string
	}{
		"rests":                {true, false, minutes},
		"rests for long":       {true, true, api},
		"does not, by default": {false, false, append([]string{"endpointslices a-00001", "httproutes a.ns.example.com", "httproutes a.ns.svc.cluster.local", "services a-00001"}, minutes...)},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRestingService(t)
				defer s.end()
				s.rests, s.putsAway = c.rests, c.putsAway
				s.set()
				s.pass(time.Minute)
				s.store.Writes()
				s.exists()
				writes := map[string]int{}
				for _, w := range s.store.Writes() {
					writes[w.Verb+" "+w.Resource]++
				}
				n := 0
				for _, what := range slices.Sorted(maps.Keys(writes)) {
					n += writes[what]
				}
				t.Logf("%d writes: %v", n, writes)
				s.pass(2 * time.Minute)
				consists := func(want []string) {
					t.Helper()
					have := slices.DeleteFunc(s.store.Names("ns"), func(name string) bool {
						return strings.HasPrefix(name, "secrets") || strings.HasPrefix(name, "leases") || strings.HasPrefix(name, "pods")
					})
					slices.Sort(have)
					if want = slices.Sorted(slices.Values(want)); !slices.Equal(have, want) {
						t.Errorf("it consists of %q, not %q", have, want)
					}
				}
				consists(c.want)
				if c.putsAway {
					s.requests["a-00001"] = time.Now()
					s.pass(10 * time.Second)
					consists(minutes)
					s.pass(5 * time.Minute)
					consists(c.want)
				}
			})
		})
	}
}
