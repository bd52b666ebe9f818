package settings

import (
	"log/slog"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/test/apiservertest"
)

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "knative-serving"}, Data: data}
}

func TestWatchFollowsTheClusterAndKeepsTheLastGoodContent(t *testing.T) {
	ctx := t.Context()
	client := fake.NewClientset(configMap(GCName, map[string]string{"min-non-active-revisions": "3"}))
	watched := apiservertest.Watches(t, client)
	store := NewStore(nil)
	if err := Watch(ctx, client, "knative-serving", store, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	watched(1)
	if got := store.Load().GC.MinNonActiveRevisions; got != 3 {
		t.Errorf("after the first reading: %d, want 3", got)
	}
	change := func(m *corev1.ConfigMap, until func(*Snapshot) bool) {
		t.Helper()
		api := client.CoreV1().ConfigMaps("knative-serving")
		_, err := api.Update(ctx, m, metav1.UpdateOptions{})
		if err != nil {
			_, err = api.Create(ctx, m, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		for {
			s, replaced := store.Current()
			if until(s) {
				return
			}
			select {
			case <-replaced:
			case <-t.Context().Done():
				t.Fatal("the change never arrived")
			}
		}
	}
	change(configMap(GCName, map[string]string{"min-non-active-revisions": "4"}),
		func(s *Snapshot) bool { return s.GC.MinNonActiveRevisions == 4 })
	// The faulty map and the good one are read together: the good one counts, the faulty one stays
	// as it was.
	bad := configMap(GCName, map[string]string{"min-non-active-revisions": "many"})
	if _, err := client.CoreV1().ConfigMaps("knative-serving").Update(ctx, bad, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// (A valid ConfigMap that is read afterwards shows that the invalid one was read, too.)
	change(configMap(NetworkName, map[string]string{"rollout-duration": "9"}),
		func(s *Snapshot) bool { return s.Network.RolloutDuration > 0 })
	if got := store.Load().GC.MinNonActiveRevisions; got != 4 {
		t.Errorf("after a faulty change: %d, want the last good 4", got)
	}
}

// Replacing a ConfigMap by force deletes it first, and so does a tool that prunes. The cluster's
// domain and its gateways must not change for that.
func TestAConfigMapThatIsDeletedKeepsItsContent(t *testing.T) {
	store, good := NewStore(nil), map[string]map[string]string{}
	log := slog.New(slog.DiscardHandler)
	all := map[string]map[string]string{}
	for _, name := range configMaps {
		all[name] = map[string]string{}
	}
	all[DomainName] = map[string]string{"example.com": ""}
	all[GatewayName] = map[string]string{"external-gateways": "- class: other\n  gateway: a/b\n  service: a/c\n"}
	all[GCName] = map[string]string{"min-non-active-revisions": "3"}
	publish(store, log, good, all)
	before := store.Load()
	publish(store, log, good, map[string]map[string]string{})
	if !reflect.DeepEqual(before, store.Load()) {
		t.Errorf("deleting every ConfigMap makes %+v of %+v", store.Load(), before)
	}
	publish(store, log, good, map[string]map[string]string{GCName: {"min-non-active-revisions": "5"}})
	if got := store.Load().GC.MinNonActiveRevisions; got != 5 {
		t.Errorf("one that comes again has no effect: %d", got)
	}
	// A process that starts knows nothing of before.
	fresh := NewStore(nil)
	publish(fresh, log, map[string]map[string]string{}, map[string]map[string]string{})
	if got := fresh.Load().GC.MinNonActiveRevisions; got != Default().GC.MinNonActiveRevisions {
		t.Errorf("a process without ConfigMaps has %d", got)
	}
}
