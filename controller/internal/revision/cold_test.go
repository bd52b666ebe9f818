package revision

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

func TestTheFallbackIsTheRevisionWithMostOfTheTraffic(t *testing.T) {
	target := func(revision string, percent int64) servingv1.TrafficTarget {
		return servingv1.TrafficTarget{RevisionName: revision, Percent: ptr.To(percent)}
	}
	for _, c := range []struct {
		name    string
		traffic []servingv1.TrafficTarget
		want    string
	}{
		{"none", nil, ""},
		{"one", []servingv1.TrafficTarget{target("a", 100)}, "a"},
		{"a tag gets no traffic", []servingv1.TrafficTarget{{RevisionName: "new", Tag: "next"}, target("a", 100)}, "a"},
		{"only a tag", []servingv1.TrafficTarget{{RevisionName: "new", Tag: "next"}}, ""},
		{"parts of one are summed", []servingv1.TrafficTarget{target("a", 40), target("b", 30), target("b", 30)}, "b"},
		{"the first of equals", []servingv1.TrafficTarget{target("a", 50), target("b", 50)}, "a"},
	} {
		if got := busiest(c.traffic); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// Pages may be long, and nobody but activators needs them.
func TestChildrenHaveNoWaitingPage(t *testing.T) {
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "hello-00001", Annotations: map[string]string{
		names.WaitingPageAnnotation: strings.Repeat("x", names.MaxPageBytes), names.MaxWaitAnnotation: "5s", "other": "y"}}}
	for name, annotations := range map[string]map[string]string{
		"pod": podAnnotations(rev), "PodAutoscaler": MakePodAutoscaler(rev, autoscalingv1alpha1.ReachabilityReachable).Annotations,
	} {
		if len(annotations) != 1 || annotations["other"] != "y" {
			t.Errorf("the %s has %d annotations", name, len(annotations))
		}
	}
}
