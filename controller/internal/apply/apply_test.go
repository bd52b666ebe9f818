package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
)

func TestKeysKeepThirdPartiesAndDropOurs(t *testing.T) {
	for _, tt := range []struct {
		why              string
		have, want, then map[string]string
	}{
		{"nothing there", nil, map[string]string{"a": "1"}, map[string]string{"a": "1"}},
		{"a restart by kubectl stays", map[string]string{"kubectl.kubernetes.io/restartedAt": "now"}, nil,
			map[string]string{"kubectl.kubernetes.io/restartedAt": "now"}},
		{"a key the owner lost goes", map[string]string{"serving.knative.dev/creator": "x"}, map[string]string{}, map[string]string{}},
		{"a key that only sounds like ours stays", map[string]string{"notknative.dev/x": "y"}, map[string]string{},
			map[string]string{"notknative.dev/x": "y"}},
		{"app is ours", map[string]string{"app": "old"}, map[string]string{"app": "new"}, map[string]string{"app": "new"}},
		{"ours wins over drift", map[string]string{"team": "theirs"}, map[string]string{"team": "ours"}, map[string]string{"team": "ours"}},
	} {
		t.Run(tt.why, func(t *testing.T) {
			if diff := cmp.Diff(tt.then, Keys(tt.have, tt.want)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestChildWritesOnlyWhatDiffersAndOnlyToItsOwn(t *testing.T) {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "owner", UID: "1"}}
	yes := true
	reference := []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "1", Controller: &yes}}
	want := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "child", OwnerReferences: reference,
		Labels: map[string]string{"app": "child"}}}
	merge := func(have, want *corev1.Service) { Metadata(have, want) }
	foreign := want.DeepCopy()
	foreign.OwnerReferences = nil
	old := want.DeepCopy()
	old.Labels = map[string]string{"app": "old", "team": "a"}

	for _, tt := range []struct {
		why      string
		cached   *corev1.Service
		stored   *corev1.Service
		outcome  Outcome
		notOwned bool
		verbs    []string
	}{
		{why: "absent", outcome: Created, verbs: []string{"create"}},
		{why: "as wanted", cached: want, stored: want, outcome: Unchanged},
		{why: "differs", cached: old, stored: old, outcome: Updated, verbs: []string{"update"}},
		{why: "somebody else's", cached: foreign, stored: foreign, outcome: Unchanged, notOwned: true},
		{why: "ours, but not yet in the cache", stored: want, outcome: Unchanged, verbs: []string{"create", "get"}},
		{why: "somebody else's, hidden from the filtered cache", stored: foreign, outcome: Unchanged, notOwned: true,
			verbs: []string{"create", "get"}},
	} {
		t.Run(tt.why, func(t *testing.T) {
			client := fake.NewClientset()
			if tt.stored != nil {
				if err := client.Tracker().Add(tt.stored.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			_, outcome, err := Child(context.Background(), client.CoreV1().Services("ns"), "Service", owner,
				tt.cached, tt.cached != nil, want.DeepCopy(), merge)
			if outcome != tt.outcome || IsNotOwned(err) != tt.notOwned || (err != nil) != tt.notOwned {
				t.Errorf("got %v, %v; want %v, not owned %v", outcome, err, tt.outcome, tt.notOwned)
			}
			var verbs []string
			for _, action := range client.Actions() {
				verbs = append(verbs, action.GetVerb())
			}
			if diff := cmp.Diff(tt.verbs, verbs); diff != "" {
				t.Errorf("calls (-want +got): %s", diff)
			}
			if tt.notOwned {
				var not *NotOwnedError
				if !errors.As(err, &not) || not.Name != "child" {
					t.Errorf("error does not name the child: %v", err)
				}
			}
		})
	}
}

func TestARefusalIsToldWhoeverRefuses(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for what, c := range map[string]struct {
		err  error
		want bool
	}{
		"quota":                      {apierrors.NewForbidden(pods, "a", errors.New("exceeded quota")), true},
		"schema":                     {apierrors.NewInvalid(schema.GroupKind{}, "a", nil), true},
		"a webhook without server":   {apierrors.NewInternalError(errors.New(`failed calling webhook "x": connection refused`)), true},
		"the API server is at fault": {apierrors.NewInternalError(errors.New("etcdserver: no leader")), false},
		"another was faster":         {apierrors.NewConflict(pods, "a", errors.New("changed")), false},
		"no API server":              {errors.New("failed calling webhook"), false},
	} {
		if IsRefused(fmt.Errorf("create: %w", c.err)) != c.want {
			t.Errorf("%s: refused is not %v", what, c.want)
		}
	}
}
