package v1

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
)

func TestTheLastGoodRevision(t *testing.T) {
	make := func(generation int, kind string) *Revision {
		r := &Revision{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(generation), Generation: 1, Labels: map[string]string{names.ConfigurationGenerationLabel: fmt.Sprint(generation)}}}
		r.Status.ObservedGeneration = 1
		r.Status.Conditions = duckv1.Conditions{{Type: "Ready", Status: corev1.ConditionTrue}}
		switch kind {
		case "failed":
			r.Status.Conditions[0].Status = corev1.ConditionFalse
		case "back":
			r.Annotations = map[string]string{names.WentBackAnnotation: "why"}
		}
		return r
	}
	for _, row := range []struct {
		behaviour string
		kinds     []string // of the revisions 1, 2, ...; the last one went back
		serves    string
		want      string
	}{
		{"there is no other one", []string{"back"}, "", ""},
		{"the one before", []string{"", "", "back"}, "", "2"},
		{"not one that went back, too", []string{"", "back", "back"}, "", "1"},
		{"nor one that never was Ready", []string{"", "failed", "back"}, "", "1"},
		{"the one before, not one that is kept under a tag", []string{"", "", "back"}, "3", "2"},
		{"one that serves, before a newer one", []string{"", "", "", "back"}, "2", "2"},
		{"also if it is not Ready at the moment", []string{"", "failed", "", "back"}, "2", "2"},
		{"also if it is newer, as after a return to an older name", []string{"", "back", ""}, "3", "3"},
		{"not a newer one that does not serve", []string{"failed", "back", "", ""}, "", ""},
	} {
		var all []*Revision
		var latest *Revision
		for i, kind := range row.kinds {
			all = append(all, make(i+1, kind))
			if kind == "back" {
				latest = all[i]
			}
		}
		route := &Route{}
		if row.serves != "" {
			route.Status.Traffic = []TrafficTarget{{RevisionName: row.serves, LatestRevision: new(true)}, {RevisionName: "1", LatestRevision: new(false), Tag: "first"}}
		}
		got := ""
		if good := route.LastGood(latest, all); good != nil {
			got = good.Name
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.behaviour, got, row.want)
		}
	}
}
