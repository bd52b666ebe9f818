//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	view "ebb.dev/ebb/api/view/v1alpha1"
)

// withToken returns a client with a token of a ServiceAccount that may view the namespace.
func (s *story) withToken(account string) kubernetes.Interface {
	s.Helper()
	accounts := s.Kube.CoreV1().ServiceAccounts(s.namespace)
	if _, err := accounts.Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: s.namespace}}}
	if _, err := s.Kube.RbacV1().RoleBindings(s.namespace).Create(s.ctx, binding, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	token, err := accounts.CreateToken(s.ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	return client
}

// The API answers with the rights of its caller only, and it, and the commands that read it, tell
// what really happened.
func TestTheAPITellsOfAColdStartToWhoMayReadIt(t *testing.T) {
	s := begin(t, 4*time.Minute)
	run := s.plugin()
	s.readyAtZero("waker", service{name: "waker"}.manifest())
	viewer := s.withToken("viewer")
	get := func(path string) ([]byte, error) {
		result := viewer.Discovery().RESTClient().Get().RequestURI("/apis/" + view.GroupVersion.String() + path).Do(s.ctx)
		if err := result.Error(); err != nil {
			return nil, err
		}
		return result.Raw()
	}
	var v view.ServiceView
	s.until("the viewer may read", func() (bool, string, error) {
		text, err := get("/namespaces/" + s.namespace + "/services/waker")
		if err != nil {
			return false, err.Error(), nil
		}
		return true, "", json.Unmarshal(text, &v)
	})
	if v.Name != "waker" || len(v.Revisions) != 1 || v.Revisions[0].Decision == nil || v.Now.Replicas.Ready != 0 {
		t.Errorf("at zero: %+v", v)
	}
	for _, path := range []string{"/namespaces/default/services", "/namespaces/default/services/hello-go", "/namespaces/default/services?watch=true", "/services"} {
		if text, err := get(path); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v %.200s", path, err, text)
		}
	}
	if _, err := get("/namespaces/" + s.namespace + "/services/nobody"); !apierrors.IsNotFound(err) {
		t.Errorf("a Service that is not there: %v", err)
	}

	out, ok := run("trace", "waker", "--gateway", s.Gateway, "-o", "json")
	var told struct {
		TraceID string
		Status  int
		TotalMs float64
		Cold    *view.ColdStart `json:"coldStart"`
	}
	if err := json.Unmarshal([]byte(out), &told); !ok || err != nil || told.Status != 200 || told.Cold == nil {
		t.Fatalf("trace: %v %s", err, out)
	}
	sum := 0.0
	for _, p := range told.Cold.Phases {
		sum += p.DurationMs
	}
	if len(told.Cold.Phases) != 6 || sum < 0.9*told.Cold.TotalMs || told.Cold.TotalMs > told.TotalMs || !strings.HasPrefix(told.Cold.Pod, "waker-00001-deployment-") {
		t.Errorf("the phases of a request of %v ms: %+v", told.TotalMs, told.Cold)
	}
	for command, parts := range map[string][]string{
		"coldstarts waker":                 {"waker: the newest cold start took ", told.TraceID, "  pull "},
		"trace waker --id " + told.TraceID: {"waited for a pod from zero", "  decide "},
		"explain waker":                    {"Now: ", "history  ", "waker-00001 gets 100 % of the requests"},
		"top":                              {"SERVICE  READY", "waker    True"},
	} {
		if out, ok := run(strings.Fields(command)...); !ok || !containsAll(out, parts) {
			t.Errorf("%s: want %q in %s", command, parts, out)
		}
	}
	text, err := get("/namespaces/" + s.namespace + "/services?watch=true&timeoutSeconds=2")
	var event view.Event
	if first, _, _ := strings.Cut(string(text), "\n"); err != nil || json.Unmarshal([]byte(first), &event) != nil || event.Type != "ADDED" || event.Object.Name != "waker" {
		t.Errorf("a stream: %v %.200s", err, text)
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
