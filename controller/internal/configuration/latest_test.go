package configuration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

func TestLatestReady(t *testing.T) {
	// A revision is written "name generation status".
	parse := func(text string) (all []*servingv1.Revision) {
		for _, one := range strings.Split(text, ";") {
			var name, status string
			var generation int64
			if _, err := fmt.Sscan(one, &name, &generation, &status); err != nil {
				t.Fatal(err)
			}
			rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: name,
				Labels: map[string]string{names.ConfigurationGenerationLabel: strconv.FormatInt(generation, 10)}}}
			rev.Status.Conditions = duckv1.Conditions{{Type: apis.ConditionReady, Status: corev1.ConditionStatus(status)}}
			all = append(all, rev)
		}
		return all
	}
	for _, tt := range []struct {
		why, present, named string
		generation          int64
		revisions           string
		want                string
	}{
		{"nothing is ready yet", "", "", 1, "a 1 Unknown", ""},
		{"the first", "", "", 1, "a 1 True", "a"},
		{"the newest of those that became ready", "a", "", 3, "a 1 True; b 2 True; c 3 True", "c"},
		{"a newer one fails: the older stays", "a", "", 2, "a 1 True; b 2 False", "a"},
		{"the present one fails: no going back", "b", "", 2, "a 1 True; b 2 False", "b"},
		{"an older one becomes ready late", "b", "", 2, "a 1 True; b 2 True", "b"},
		{"one that was made between", "a", "", 3, "a 1 True; b 2 True; c 3 False", "b"},
		{"a revision from the future of another cache", "a", "", 1, "a 1 True; b 2 True", "a"},
		{"going back by name", "b", "a", 3, "a 1 True; b 2 True", "a"},
		{"going back by name to one that fails", "b", "a", 3, "a 1 False; b 2 True", "b"},
		{"the present one is gone", "gone", "", 3, "a 1 True; b 2 True", "b"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			config := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Generation: tt.generation}}
			config.Spec.Template.Name = tt.named
			config.Status.LatestReadyRevisionName = tt.present
			all := parse(tt.revisions)
			created := all[len(all)-1]
			for _, rev := range all {
				if rev.Name == tt.named {
					created = rev
				}
			}
			if got := latestReady(config, created, all); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
