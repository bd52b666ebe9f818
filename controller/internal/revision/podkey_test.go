package revision

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/wire"
)

func TestEachNamespaceHasTheKeyOfItsPods(t *testing.T) {
	key, now := []byte("the first key"), time.Now()
	kube := fake.NewClientset()
	revisions := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	p := newPodKeys(kube, func() []byte { return key }, func() time.Time { return now }, listers.NewRevisionLister(revisions),
		func(context.Context, string) (bool, error) { return len(revisions.List()) > 0, nil })
	secrets := kube.CoreV1().Secrets("default")
	check := func(what string, calls int) {
		t.Helper()
		kube.ClearActions()
		if err := p.ensure(t.Context(), "default"); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := len(kube.Actions()); got != calls {
			t.Errorf("%s: %d calls, want %d: %v", what, got, calls, kube.Actions())
		}
		got, err := secrets.Get(t.Context(), names.PodSecret, metav1.GetOptions{})
		if err != nil || wire.PodToken(got.Data[wire.TokenSecretKey], "hello-00001") != wire.Token(key, "default", "hello-00001") {
			t.Errorf("%s: the Secret has %q, %v", what, got.Data, err)
		}
	}
	check("the first revision of a namespace", 2)
	first := p.name("default")
	check("a second revision", 0)
	key = []byte("the next key")
	check("a key that was rotated", 2)
	if name := p.name("default"); name == first || len(name) != 8 {
		t.Errorf("the key %q is followed by %q", first, name)
	}
	if _, err := secrets.Update(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: names.PodSecret}}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(podKeysAgain)
	check("somebody has emptied the Secret", 2)
	last := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello-00001"}}
	revisions.Add(last)
	p.deleted(last)
	p.remove(t.Context(), "default")
	check("a Revision of several is deleted", 0)
	revisions.Delete(last)
	p.deleted(cache.DeletedFinalStateUnknown{Obj: last})
	p.remove(t.Context(), <-p.emptied)
	if _, err := secrets.Get(t.Context(), names.PodSecret, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the last Revision is deleted, the Secret: %v", err)
	}
	check("the next Revision", 2)
}

// A Service is deleted and applied again. Each replica is told of the deleted Revision, and one
// whose watch is a moment behind the leader's does not see the next Revision yet.
func TestAReplicaThatIsBehindDoesNotTakeTheKeyFromTheNextRevision(t *testing.T) {
	_, config := apiservertest.Start(t)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	now, used := time.Now(), false
	var meanwhile func() // happens after a replica has asked whether the namespace is in use
	replica := func() (*podKeys, cache.Indexer) {
		seen := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		return newPodKeys(kube, func() []byte { return []byte("key") }, func() time.Time { return now }, listers.NewRevisionLister(seen),
			func(context.Context, string) (bool, error) {
				was := used
				if meanwhile != nil {
					meanwhile()
				}
				return was, nil
			}), seen
	}
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello-00001", CreationTimestamp: metav1.NewTime(now)}}
	ensure := func(p *podKeys) {
		t.Helper()
		if err := p.ensure(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
	}
	there := func(what string) {
		t.Helper()
		if _, err := kube.CoreV1().Secrets("default").Get(t.Context(), names.PodSecret, metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	leader, seen := replica()
	other, _ := replica()
	ensure(leader)
	next := func() { used = true; seen.Add(rev); leader.deleted(rev); ensure(leader) }

	other.deleted(rev)
	next()
	other.remove(t.Context(), <-other.emptied)
	there("the other replica asks after the next Revision was made")

	used = false
	seen.Delete(rev)
	other.deleted(rev)
	meanwhile = next
	other.remove(t.Context(), <-other.emptied)
	there("the other replica asks before the next Revision is made, and deletes after")
}

// A Service is deleted, and a reconcile that has seen its Revision makes the Secret after that.
func TestTheKeyOfARevisionThatIsGoneDoesNotStay(t *testing.T) {
	_, config := apiservertest.Start(t)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	seen := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	p := newPodKeys(kube, func() []byte { return []byte("key") }, time.Now, listers.NewRevisionLister(seen),
		func(context.Context, string) (bool, error) { return false, nil })
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello-00001"}}
	for what, late := range map[string]func(){
		"between two that are deleted": func() { p.deleted(rev); p.deleted(rev) },
		"after all are deleted":        func() { p.deleted(rev); p.remove(t.Context(), <-p.emptied) },
	} {
		late()
		if err := p.ensure(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		for len(p.emptied) > 0 {
			p.remove(t.Context(), <-p.emptied)
		}
		if _, err := kube.CoreV1().Secrets("default").Get(t.Context(), names.PodSecret, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// KServe's webhook copies the environment of queue-proxy, with what it refers to, into another
// container of the pod.
func TestNoKeyIsInAnEnvironmentThatIsCopied(t *testing.T) {
	for label, want := range map[string]string{"": "EBB_KEY", "model": "EBB_KEY_FILE"} {
		rev, in := readCase(t, "testdata/no-volumes.in.yaml")
		rev.Labels[kserveLabel] = label
		d, err := MakeDeployment(rev, 1, in)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range proxyOf(t, d).Env {
			if strings.HasPrefix(e.Name, "EBB_KEY") {
				got = append(got, e.Name)
			}
			if secret := e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil; secret != (e.Name == "EBB_KEY") {
				t.Errorf("label %q: %s refers to a Secret: %v", label, e.Name, secret)
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("label %q: queue-proxy has %v, want %s", label, got, want)
		}
	}
}
