package gc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

func TestChooseDeletesWhatIsOldAndTooMuchOldestFirst(t *testing.T) {
	now := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	hours := func(h int) *time.Duration { d := time.Duration(h) * time.Hour; return &d }
	minutes := func(m int) *time.Duration { d := time.Duration(m) * time.Minute; return &d }
	most := func(n int64) *int64 { return &n }
	// A revision is written "name created last-routed [word]", in hours ago.
	revision := func(text string) *servingv1.Revision {
		var name, word string
		var created, routed int
		if _, err := fmt.Sscan(text+" -", &name, &created, &routed, &word); err != nil {
			t.Fatal(err)
		}
		rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: name,
			CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(created) * time.Hour)),
			Labels:            map[string]string{names.RoutingStateLabel: string(names.RoutingReserve)},
			Annotations:       map[string]string{names.RoutingStateModifiedAnnotation: now.Add(-time.Duration(routed) * time.Hour).Format(time.RFC3339)}}}
		switch word {
		case "active", "pending":
			rev.Labels[names.RoutingStateLabel] = word
		case "no-gc":
			rev.Annotations[names.NoGCAnnotation] = "true"
		}
		return rev
	}
	config := &servingv1.Configuration{}
	config.Status.LatestReadyRevisionName, config.Status.LatestCreatedRevisionName = "latest", "created"

	for _, tt := range []struct {
		why       string
		limits    settings.GC
		revisions string
		want      string
		next      time.Duration
	}{
		{"everything disabled", settings.GC{}, "a 900 900; b 900 900", "", 0},
		{"not more than the minimum", settings.GC{RetainSinceCreateTime: hours(1), MinNonActiveRevisions: 2}, "a 9 9; b 9 9", "", 0},
		{"old ones go while the minimum is left", settings.GC{RetainSinceCreateTime: hours(1), MinNonActiveRevisions: 1}, "a 9 9; b 8 8; c 7 7", "a b", 0},
		{"both times must have passed", settings.GC{RetainSinceCreateTime: hours(5), RetainSinceLastActiveTime: hours(5)}, "a 9 1; b 1 9; c 9 9", "c", 0},
		{"a time that is disabled does not hold", settings.GC{RetainSinceLastActiveTime: hours(5)}, "a 9 1; b 1 9", "b", 0},
		{"too many go whatever their age", settings.GC{MaxNonActiveRevisions: most(1)}, "a 3 3; b 2 2; c 1 1", "a b", 0},
		{"age and number together", settings.GC{RetainSinceCreateTime: hours(5), MaxNonActiveRevisions: most(1)}, "a 9 9; b 2 2; c 1 1", "a b", 0},
		{"routed, never routed, latest, newest and protected stay", settings.GC{MaxNonActiveRevisions: most(0)},
			"a 9 9 active; b 9 9 pending; latest 9 9; created 9 9; e 9 9 no-gc; f 9 9", "f", 0},
		{"it looks again when the first is old enough", settings.GC{RetainSinceCreateTime: minutes(70), RetainSinceLastActiveTime: minutes(65)},
			"a 1 0; b 1 1; c 9 0; latest 1 1", "", 10 * time.Minute},
		{"by when they were last routed, not by when they were made", settings.GC{MaxNonActiveRevisions: most(1)}, "a 9 1; b 1 5", "b", 0},
	} {
		t.Run(tt.why, func(t *testing.T) {
			var all []*servingv1.Revision
			for _, text := range strings.Split(tt.revisions, ";") {
				all = append(all, revision(text))
			}
			slices.Reverse(all) // the order of the cache must not matter
			var got []string
			doomed, next := choose(config, all, tt.limits, now)
			for _, rev := range doomed {
				got = append(got, rev.Name)
			}
			if want := cmp.Or(tt.next, interval); next != want {
				t.Errorf("looks again after %s, want %s", next, want)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("deletes %v, want %q", got, tt.want)
			}
		})
	}
}
