package route

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

func TestRolloutsAreCounted(t *testing.T) {
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	add := func(r *servingv1.Route) {
		if err := index.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	for i, mark := range []func(*servingv1.RouteStatus){
		func(s *servingv1.RouteStatus) { s.MarkIngressReady() },
		func(s *servingv1.RouteStatus) { s.MarkIngressRolloutInProgress() },
		func(s *servingv1.RouteStatus) { s.MarkIngressRolloutJudged("nothing is wrong") },
		func(s *servingv1.RouteStatus) { s.MarkIngressRolloutHeld("one client fails") },
		// The one before went back, and now this one is on its way back to an older one.
		func(s *servingv1.RouteStatus) { s.MarkIngressRolloutInProgress(); s.MarkWentBack("b", "a", "why") },
	} {
		r := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i)}}
		r.Status.InitializeConditions()
		mark(&r.Status)
		add(r)
	}
	// A guard alone makes a series: an alert and a panel have an answer before anything goes back.
	add(&servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "calm", Name: "guarded", Annotations: map[string]string{names.RolloutGuardAnnotation: "on"}}})
	add(&servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "none", Name: "off", Annotations: map[string]string{names.RolloutGuardAnnotation: "off"}}})
	add(&servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "none", Name: "without"}})
	registry := prometheus.NewRegistry()
	registry.MustRegister(rollouts{listers.NewRouteLister(index)})
	want := `# HELP ebb_rollouts Routes whose requests move to the latest revision (state in_progress), stand still on the way to it (held), or went back from it (went_back).
# TYPE ebb_rollouts gauge
ebb_rollouts{k8s_namespace_name="calm",state="held"} 0
ebb_rollouts{k8s_namespace_name="calm",state="in_progress"} 0
ebb_rollouts{k8s_namespace_name="calm",state="went_back"} 0
ebb_rollouts{k8s_namespace_name="ns",state="held"} 1
ebb_rollouts{k8s_namespace_name="ns",state="in_progress"} 2
ebb_rollouts{k8s_namespace_name="ns",state="went_back"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
