package routes

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

var of = call.Service{Namespace: "ns", Name: "svc"}

// table has a Route to two revisions: a with three pods of two requests each, b without pods.
func table(annotations map[string]string) *Table {
	t := New(&Table{Settings: settings.NewStore(nil), ClusterDomain: "cluster.local"})
	half, three := int64(50), int32(3)
	route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc", UID: "uid", Annotations: annotations}}
	route.Status.Traffic = []servingv1.TrafficTarget{{RevisionName: "a", Percent: &half}, {RevisionName: "b", Percent: &half}}
	t.route(route, false)
	a := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	a.Spec.ContainerConcurrency, a.Status.ActualScale = 2, &three
	t.autoscaler(a, false)
	b := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}}
	b.Spec.ContainerConcurrency = 5
	t.autoscaler(b, false)
	return t
}

func TestAsManyCallsAreUnderWayAsThePodsTake(t *testing.T) {
	if rules, ok := table(nil).Delivery().Rules(of); !ok || rules.Concurrency != 11 || rules.UID != "uid" {
		t.Errorf("3 pods of 2 and, to wake it, one of 5: %+v", rules)
	}
	bounded := table(map[string]string{names.AsyncConcurrencyAnnotation: "4", names.AsyncRateAnnotation: "0.5"})
	if rules, _ := bounded.Delivery().Rules(of); rules.Concurrency != 4 || rules.Rate != 0.5 {
		t.Errorf("bounded by annotations: %+v", rules)
	}
	if _, ok := table(nil).Delivery().Rules(call.Service{Namespace: "ns", Name: "other"}); ok {
		t.Error("a Route that is not there has rules")
	}
}

// A client that reaches the courier past the gateway has to know the UID of a Route, and then
// reaches hosts of its namespace inside the cluster only.
func TestOnlyARouteNamesATarget(t *testing.T) {
	good := wire.AsyncTarget{Namespace: "ns", Route: "svc", UID: "uid", Host: "svc.ns.svc.cluster.local"}
	for what, c := range map[string]struct {
		change func(*wire.AsyncTarget)
		want   bool
	}{
		"its own host":         {func(*wire.AsyncTarget) {}, true},
		"the host of a tag":    {func(a *wire.AsyncTarget) { a.Host = "v1-svc.ns.svc.cluster.local" }, true},
		"a UID that is none":   {func(a *wire.AsyncTarget) { a.UID = "guess" }, false},
		"another Route":        {func(a *wire.AsyncTarget) { a.Route = "other" }, false},
		"another namespace":    {func(a *wire.AsyncTarget) { a.Host = "svc.kube-system.svc.cluster.local" }, false},
		"a host outside":       {func(a *wire.AsyncTarget) { a.Host = "example.com" }, false},
		"a host with a port":   {func(a *wire.AsyncTarget) { a.Host = "svc:80.ns.svc.cluster.local" }, false},
		"a host with two dots": {func(a *wire.AsyncTarget) { a.Host = "a.b.ns.svc.cluster.local" }, false},
	} {
		target := good
		c.change(&target)
		if _, ok := table(map[string]string{names.AsyncAnnotation: "allowed"}).Acceptance().Rules(target); ok != c.want {
			t.Errorf("%s: %v", what, ok)
		}
	}
	for _, annotations := range []map[string]string{nil, {names.AsyncAnnotation: "never"}} {
		if _, ok := table(annotations).Acceptance().Rules(good); ok {
			t.Errorf("a Route that asks for no asynchronous requests has rules (%v)", annotations)
		}
	}
}

func FuzzAsyncTarget(f *testing.F) {
	f.Add("ns/svc/uid/svc.ns.svc.cluster.local")
	f.Add("a//b/c")
	f.Fuzz(func(t *testing.T, text string) {
		if target, ok := wire.ParseAsyncTarget(text); ok && target.String() != text {
			t.Errorf("%q became %q", text, target.String())
		}
	})
}
