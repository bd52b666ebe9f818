package route

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// foreign puts the HTTPRoute of a Route or DomainMapping in another namespace.
func (s *stage) foreign(kind, namespace, host string) {
	h := &gatewayv1.HTTPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: host, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "serving.knative.dev/v1", Kind: kind, Name: "theirs", UID: "theirs", Controller: ptr.To(true)}}},
		Spec: gatewayv1.HTTPRouteSpec{Hostnames: []gatewayv1.Hostname{gatewayv1.Hostname(host)}},
	}
	if kind == "Route" {
		h.Labels = map[string]string{names.RouteLabel: "theirs"}
	}
	s.put(httpRoutes, "gateway.networking.k8s.io/v1", "HTTPRoute", h)
}

func (s *stage) template(template string) {
	s.t.Helper()
	snapshot, err := settings.Parse(map[string]map[string]string{settings.DomainName: {"example.com": ""},
		settings.NetworkName: {"domain-template": template}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.settings.Set(snapshot)
}

// hello puts what Route ns/hello leads to.
func (s *stage) hello() {
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
}

func taken(r *servingv1.Route) bool { return condition(r, "IngressReady") == "False HostTaken" }
func isReady(r *servingv1.Route) bool {
	return condition(r, "Ready") == "True " && r.Status.ObservedGeneration == r.Generation
}

// Where the settings give a host to both, the older one has it. In this test all objects are of one
// age, so the first of the namespaces is the older one.
func TestAHostOfARouteInAnotherNamespaceIsNotTaken(t *testing.T) {
	const host = "hello.example.com"
	s := set(t)
	now := time.Now()
	s.store.Now = func() time.Time { return now }
	s.template("{{.Name}}.{{.Domain}}")
	s.foreign("Route", "an-older", host)
	s.hello()
	s.route("latest=100")
	r := s.until("the host is taken", taken)
	if got := r.Status.GetCondition("IngressReady").Message; !strings.HasPrefix(got, `Route "theirs" in namespace "an-older" has the host "hello.example.com"`) {
		t.Errorf("the winner is not named: %s", got)
	}
	if got := s.names(httpRoutes); got != "" {
		t.Errorf("it has the HTTPRoutes %s", got)
	}
	s.store.Remove(httpRoutes, "an-older", host)
	s.route("hello-00001=100")
	s.until("Ready when the other is gone", isReady)

	s.foreign("Route", "younger", host)
	s.route("latest=100")
	s.until("a younger one takes nothing", func(r *servingv1.Route) bool {
		return isReady(r) && len(r.Status.Traffic) == 1 && *r.Status.Traffic[0].LatestRevision
	})

	// As after a race that both Routes entered: the younger one gives way, with all of its rules.
	s.foreign("Route", "a-still-older", host)
	s.until("the older one has it", taken)
	if got := s.names(httpRoutes); got != "hello.ns.svc.cluster.local" {
		t.Errorf("it has the HTTPRoutes %s", got)
	}
}

// The attack: whoever is faster maps, or names, a host that the settings give to this namespace.
func TestAHostThatTheSettingsGiveToANamespaceIsNotTakenFromIt(t *testing.T) {
	for _, kind := range []string{"DomainMapping", "Route"} {
		for _, host := range []string{"hello.ns.example.com", "blue-hello.ns.example.com"} {
			t.Run(kind+" "+host, func(t *testing.T) {
				s := set(t)
				now := time.Now()
				s.store.Now = func() time.Time { return now }
				s.foreign(kind, "an-older", host)
				s.hello()
				s.route("latest=100", "blue:hello-00001=0")
				s.until("Ready beside an older one", isReady)
				s.foreign(kind, "younger", host)
				s.route("hello-00001=100", "blue:hello-00001=0")
				s.until("Ready beside a younger one", func(r *servingv1.Route) bool {
					return isReady(r) && !ptr.Deref(r.Status.Traffic[0].LatestRevision, false)
				})
				if s.store.Get(httpRoutes, "ns", host) == nil {
					t.Error("the HTTPRoute of the host is gone")
				}
			})
		}
	}
}

// The other side: an annotation that the template repeats gives a Route no host of another
// namespace, and if it had it first, it loses it, also while the Route leads nowhere.
func TestARouteYieldsAHostThatTheSettingsGiveToAnotherNamespace(t *testing.T) {
	const host = "theirs.another.example.com"
	s := set(t)
	s.template(`{{with index .Annotations "host"}}{{.}}{{else}}{{.Name}}.{{.Namespace}}{{end}}.{{.Domain}}`)
	s.hello()
	s.route("latest=100")
	s.until("Ready", isReady)
	annotate := func(object *unstructured.Unstructured) {
		object.SetAnnotations(map[string]string{"host": "theirs.another"})
		object.SetGeneration(object.GetGeneration() + 1)
		s.store.Put(routes, object)
	}
	annotate(s.store.Get(routes, "ns", "hello"))
	s.until("it has the host while nobody else does", func(r *servingv1.Route) bool {
		return isReady(r) && s.store.Get(httpRoutes, "ns", host) != nil
	})
	s.configuration("")
	s.revision("hello-00001", corev1.ConditionFalse)
	s.foreign("Route", "another", host)
	s.until("the younger one has it", func(r *servingv1.Route) bool {
		return s.store.Get(httpRoutes, "ns", host) == nil && condition(r, "Ready") != "True "
	})
	s.configuration("hello-00001")
	s.revision("hello-00001", corev1.ConditionTrue)
	r := s.until("the winner is named", taken)
	if got := r.Status.GetCondition("IngressReady").Message; !strings.HasPrefix(got, `Route "theirs" in namespace "another" has the host "`+host+`"`) {
		t.Error(got)
	}
	s.store.Remove(httpRoutes, "another", host)
	s.until("Ready again", isReady)
}

// Nobody asks anew for the certificate of a host that somebody else has.
func TestACertificateGoesWithItsHost(t *testing.T) {
	s := set(t)
	now := time.Now()
	s.store.Now = func() time.Time { return now } // of two of one age, the first by name has the host
	s.secure()
	s.foreign("Route", "a-other", plainSet)
	s.network("external-domain-tls=Enabled", "domain-template=hello.ns.{{.Domain}}")
	s.until("the host is lost with all that it had", func(r *servingv1.Route) bool {
		return taken(r) && s.names(certificates) == "" && s.names(listenerSets) == "" && s.names(httpRoutes) == "hello.ns.svc.cluster.local"
	})
	s.store.Remove(httpRoutes, "a-other", plainSet)
	s.until("a certificate is asked for again", func(*servingv1.Route) bool { return s.names(certificates) != "" })
}
