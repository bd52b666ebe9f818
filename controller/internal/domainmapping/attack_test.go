package domainmapping

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/serving/v1beta1"
)

// may is what a reference of a mapping in namespace ns can make the controller ask for.
var may = regexp.MustCompile(`^(/apis/[a-z0-9.-]+/[a-z0-9-]+(/namespaces/ns/things/[a-z0-9.-]+)?|/api/v1|/api/v1/namespaces/ns/services/[a-z0-9.-]+)$`)

// asked resolves a reference against an API server that knows the kind Thing in every group, and
// returns the paths asked for.
func asked(t *testing.T, ref duckv1.KReference) []string {
	var mu sync.Mutex
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			APIResources: []metav1.APIResource{{Name: "things", Kind: "Thing", Namespaced: true}}})
	}))
	defer server.Close()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	r := &reconciler{kube: kube, clusterDomain: "cluster.local"}
	dm := &v1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns"}, Spec: v1beta1.DomainMappingSpec{Ref: ref}}
	if target, _, err := r.resolve(t.Context(), dm); err == nil && target != ref.Name+".ns.svc.cluster.local" {
		t.Errorf("%+v resolves to %s", ref, target)
	}
	mu.Lock()
	defer mu.Unlock()
	return paths
}

// A mapping whose reference is a path must not make the controller ask for it with its own rights.
func FuzzAReferenceIsNoPath(f *testing.F) {
	f.Add("things.example.org/v1", "", "", "hello")
	f.Add("v1", "", "", "hello")
	f.Add("things.example.org/v1", "", "", "../../../../../../api/v1/namespaces/knative-serving/secrets/ebb-token-key")
	f.Add("things.example.org/v1", "", "", "hello/../../../../../../../api/v1/secrets")
	f.Add("things.example.org/v1", "", "", "hello?watch=true")
	f.Add("things.example.org/v1", "", "", "hello%2f..")
	f.Add("things.example.org/v1", "", "", "..")
	f.Add("things.example.org/v1", "", "", "")
	f.Add("things.example.org/v1", "", "kube-system", "hello")
	f.Add("things.example.org/v1", "", "../..", "hello")
	f.Add("../api", "", "", "hello")
	f.Add("x/..", "", "", "hello")
	f.Add("v1", "../../api/v1/secrets", "", "hello")
	f.Add("v1", "x/y", "", "hello")
	f.Add("", "things.example.org", "", "hello")
	f.Fuzz(func(t *testing.T, apiVersion, group, namespace, name string) {
		for _, kind := range []string{"Thing", "Service"} {
			if kind == "Service" && regexp.MustCompile(`^serving\.knative\.dev(/|$)`).MatchString(apiVersion+group) {
				continue // read from the cache
			}
			for _, path := range asked(t, duckv1.KReference{Kind: kind, APIVersion: apiVersion, Group: group, Namespace: namespace, Name: name}) {
				if !may.MatchString(path) {
					t.Errorf("apiVersion %q, group %q, namespace %q, name %q: the controller asks for %s", apiVersion, group, namespace, name, path)
				}
			}
		}
	})
}

func TestAReferenceThatIsAPathIsRefusedAtAdmission(t *testing.T) {
	for _, c := range []struct {
		ref  duckv1.KReference
		want string
	}{
		{duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "hello"}, ""},
		{duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "hello"}, ""},
		{duckv1.KReference{APIVersion: "v1", Group: "things.example.org", Kind: "Thing", Name: "hello"}, ""},
		{duckv1.KReference{APIVersion: "things.example.org/v1", Kind: "Thing", Name: "../../secrets"}, "invalid value: ../../secrets: name"},
		{duckv1.KReference{APIVersion: "things.example.org/v1", Kind: "Thing", Name: ".."}, "invalid value: ..: name"},
		{duckv1.KReference{APIVersion: "..", Kind: "Thing", Name: "hello"}, "invalid value: ..: apiVersion"},
		{duckv1.KReference{APIVersion: "a/b/c", Kind: "Thing", Name: "hello"}, "invalid value: a/b/c: apiVersion"},
		{duckv1.KReference{APIVersion: "v1", Group: "../x", Kind: "Thing", Name: "hello"}, "invalid value: ../x: group"},
		{duckv1.KReference{APIVersion: "v1", Kind: "Thing", Name: "hello", Namespace: "a/b"}, "invalid value: a/b: namespace"},
	} {
		if got := v1beta1.ValidateRef(c.ref); got == nil && c.want != "" || got != nil && got.Error() != c.want {
			t.Errorf("%+v: %v, want %q", c.ref, got, c.want)
		}
	}
}
