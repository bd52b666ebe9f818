package process

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
	networkingv1alpha1 "ebb.dev/ebb/api/networking/v1alpha1"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	servingv1beta1 "ebb.dev/ebb/api/serving/v1beta1"
)

func (g *ground) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(step)
		synctest.Wait()
		g.run()
		synctest.Wait()
	}
}

// hello applies a Service with annotations of its template, and traffic.
func (g *ground) hello(image string, notes map[string]string, traffic ...servingv1.TrafficTarget) {
	v := get[servingv1.Service](g, services, "a").DeepCopy()
	if v == nil {
		v = &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	}
	v.Spec.Template.Annotations, v.Spec.Traffic = notes, traffic
	v.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
	g.put(services, "serving.knative.dev/v1", "Service", v)
}

func (g *ground) refuseCreation(which string) {
	g.forbid(func(verb, resource, subresource string) error {
		if verb != "create" || resource != which || subresource != "" {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "it", errors.New("exceeded quota: few"))
	})
}

// Whatever of a revision's objects is refused, its Service says so in the words of the API server,
// and is Ready within two minutes after that is over.
func TestWhatIsRefusedToARevisionIsToldByItsService(t *testing.T) {
	hpa := map[string]string{names.ClassAnnotation: names.ClassHPA}
	for what, c := range map[string]struct {
		refused string
		notes   map[string]string
		parked  bool
	}{
		"the Services of a new revision":          {"services", nil, false},
		"its EndpointSlice":                       {"endpointslices", nil, false},
		"its PodAutoscaler":                       {"podautoscalers", nil, false},
		"the key of its pods":                     {"secrets", nil, false},
		"its HorizontalPodAutoscaler":             {"horizontalpodautoscalers", hpa, false},
		"the Deployment of one that is parked":    {"deployments", nil, true},
		"the PodAutoscaler of one that is parked": {"podautoscalers", nil, true},
		"the Services of one that is parked":      {"services", nil, true},
	} {
		for _, rests := range []bool{false, true} {
			if rests && c.refused == "endpointslices" { // it has none
				continue
			}
			t.Run(fmt.Sprintf("%s, hosts may rest: %t", what, rests), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					begin := newGround
					if rests {
						begin = func(t *testing.T, n int, _ bool) *ground { return newRestingGround(t, n) }
					}
					g := begin(t, 1, false)
					defer g.end()
					g.pass(30 * time.Second) // the gateways are seen to have the common HTTPRoutes
					ready := func() *apis.Condition {
						v := get[servingv1.Service](g, services, "a")
						if v.Status.ObservedGeneration != v.Generation {
							return nil
						}
						return v.Status.GetCondition(apis.ConditionReady)
					}
					g.hello("dev.local/hello:1", nil)
					g.pass(2 * time.Minute)
					if c.parked {
						g.hello("dev.local/hello:2", nil)
						g.pass(5 * time.Minute)
						if rev := get[servingv1.Revision](g, revisions, "a-00001"); rev.Annotations[names.ParkedAnnotation] == "" {
							t.Fatal("the revision is not parked")
						}
					}
					served := g.routedTo("a.ns.svc.cluster.local")
					g.refuseCreation(c.refused)
					if c.refused == "secrets" {
						if err := g.user.Kube.CoreV1().Secrets("ns").Delete(context.Background(), names.PodSecret, metav1.DeleteOptions{}); err != nil {
							t.Fatal(err)
						}
						g.pass(11 * time.Minute) // until it is looked at again
						if got := ready(); !got.IsTrue() {
							t.Fatalf("what is up says %+v", got)
						}
					}
					if c.parked {
						g.hello("dev.local/hello:2", nil, servingv1.TrafficTarget{RevisionName: "a-00001", Percent: ptr.To(int64(100))})
					} else {
						g.hello("dev.local/hello:3", c.notes)
					}
					g.pass(time.Minute)
					for range 60 {
						g.pass(step)
						if got := ready(); got.IsTrue() || !strings.Contains(got.GetMessage(), "exceeded quota: few") {
							t.Fatalf("the Service says %+v", got)
						}
						if now := g.routedTo("a.ns.svc.cluster.local"); len(now) != 1 || now[0] != served[0] {
							t.Fatalf("requests go to %v, not to %v", now, served)
						}
					}
					g.forbid(nil)
					g.pass(2 * time.Minute)
					if got := ready(); !got.IsTrue() {
						t.Errorf("when nothing is refused any more: %+v", got)
					}
				})
			})
		}
	}
}

// mapDomain maps a domain to the Service.
func (g *ground) mapDomain() {
	g.t.Helper()
	claim := &networkingv1alpha1.ClusterDomainClaim{ObjectMeta: metav1.ObjectMeta{Name: mapped}}
	claim.Spec.Namespace = "ns"
	if _, err := g.user.Ebb.NetworkingV1alpha1().ClusterDomainClaims().Create(context.Background(), claim, metav1.CreateOptions{}); err != nil {
		g.t.Fatal(err)
	}
	m := &servingv1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: mapped}}
	m.Spec.Ref = duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "a", Namespace: "ns"}
	g.put(domainMappings, "serving.knative.dev/v1beta1", "DomainMapping", m)
}

// config-gateway is wrong for a while. A DomainMapping is not Ready, names the setting, and serves
// all the time at the Gateways that it had. Then it is Ready by itself.
func TestAMappedDomainServesWhileTheGatewaysOfTheSettingAreNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, 1, false)
		defer g.end()
		g.hello("dev.local/hello:1", nil)
		g.mapDomain()
		g.pass(2 * time.Minute)
		ready := func() *apis.Condition {
			return get[servingv1beta1.DomainMapping](g, domainMappings, mapped).Status.GetCondition(apis.ConditionReady)
		}
		if !ready().IsTrue() {
			t.Fatalf("at first: %+v", ready())
		}
		g.gateways = absent
		g.set()
		for passed := time.Duration(0); passed < 3*time.Minute; passed += step {
			g.pass(step)
			if a := g.ask(public, mapped, ""); a.code != 200 {
				t.Fatalf("after %s the domain answers %d: %s", passed, a.code, a.why)
			}
		}
		if got := ready(); got.IsTrue() || !strings.Contains(got.GetMessage(), "config-gateway") {
			t.Errorf("while the Gateways are not there: %+v", got)
		}
		g.gateways = ""
		g.set()
		g.pass(time.Minute)
		if !ready().IsTrue() || g.ask(public, mapped, "").code != 200 {
			t.Errorf("when they are: %+v", ready())
		}
	})
}
