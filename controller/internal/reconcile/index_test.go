package reconcile

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

func TestAnIndexFindsWhatHasItsOwnNameAsWell(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &servingv1.Configuration{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	WithoutNamespaces(informer)
	byTeam := IndexByLabel[*servingv1.Configuration](informer, "team")
	put := func(namespace, name, team string) {
		t.Helper()
		c := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"team": team}}}
		if err := informer.GetStore().Update(c); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, all ...string) {
		t.Helper()
		var names []string
		for _, c := range byTeam.Of("ns", "a") {
			names = append(names, c.Name)
		}
		if slices.Sort(names); !slices.Equal(names, all) {
			t.Errorf("%s: found %v, not %v", when, names, all)
		}
	}
	want("before there are any")
	put("ns", "b", "a")
	put("other", "a", "a")
	put("ns", "a", "b")
	want("one of another name", "b")
	put("ns", "a", "a")
	want("one of its own name, too", "a", "b")
	if keys := informer.GetIndexer().ListIndexFuncValues("team"); len(keys) != 1 {
		t.Errorf("the index has %v", keys)
	}
	if keys, err := informer.GetIndexer().IndexKeys(cache.NamespaceIndex, "ns"); err == nil {
		t.Errorf("there still is an index by namespace: %v", keys)
	}
	put("ns", "a", "")
	want("it has another value", "b")
}
