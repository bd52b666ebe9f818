package admit

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const tried = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, namespace: default, annotations: {serving.knative.dev/lastModifier: alice}}
spec:
  template:
    metadata:
      labels: {team: blue}
      annotations: {owner: bob, autoscaling.knative.dev/min-scale: "1"}
    spec:
      serviceAccountName: builder
      containers:
      - {image: example.test/hello, ports: [{name: h2c}], readinessProbe: {tcpSocket: {port: 0}}}
`

// The pod that the API server is asked about, and how it is asked: what a policy of the cluster
// looks at must be there, or a dry run is refused whose real pod passes.
func TestADryRunAsksForThePodWithItsLabelsAndCreatesNothing(t *testing.T) {
	var created []clienttesting.CreateActionImpl
	refuse := errors.New("pods \"x\" is forbidden: error looking up service account default/builder")
	var answer error
	client := fake.NewClientset()
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create := a.(clienttesting.CreateActionImpl)
		created = append(created, create)
		return true, create.GetObject(), answer
	})
	h := newHandler(t, nil, PodDryRun(client))

	request := requestFor(t, tried)
	request.DryRun = new(true)
	if r := ask(t, h, PathValidation, request); !r.Allowed {
		t.Fatal(r.Result.Message)
	}
	if len(created) != 1 {
		t.Fatalf("%d pods were asked for", len(created))
	}
	if created[0].Namespace != "default" || !cmp.Equal(created[0].CreateOptions, metav1.CreateOptions{DryRun: []string{"All"}}) {
		t.Errorf("namespace %q, options %+v: want a dry run in default", created[0].Namespace, created[0].CreateOptions)
	}
	pod := created[0].GetObject().(*corev1.Pod)
	want := metav1.ObjectMeta{
		Name: "dry-run-validation-hello", Namespace: "default",
		Labels: map[string]string{"team": "blue", "app": "dry-run-validation-hello", "serving.knative.dev/service": "hello",
			"serving.knative.dev/configuration": "hello", "serving.knative.dev/revision": "dry-run-validation-hello"},
		Annotations: map[string]string{"owner": "bob", "serving.knative.dev/creator": "alice"},
	}
	if diff := cmp.Diff(want, pod.ObjectMeta); diff != "" {
		t.Errorf("metadata (-want +got)\n%s", diff)
	}
	c := pod.Spec.Containers[0]
	if pod.Spec.ServiceAccountName != "builder" || c.Image != "example.test/hello" || c.ReadinessProbe != nil || c.Ports[0].ContainerPort != 8080 {
		t.Errorf("spec %+v", pod.Spec)
	}

	answer = refuse
	r := ask(t, h, PathValidation, request)
	if r.Allowed || r.Result.Message != "validation callback failed: dry run failed with "+refuse.Error()+": spec.template" {
		t.Errorf("the API server refused, the webhook says %+v", r.Result)
	}

	// A Configuration of a Service is tried with the Service; one of its own is tried, without the
	// label of a Service.
	created, answer = nil, nil
	alone := strings.NewReplacer("kind: Service", "kind: Configuration", "labels: {team: blue}", "labels: {team: blue, app: mine}\n      name: hello-one").Replace(tried)
	request = requestFor(t, alone)
	request.DryRun = new(true)
	if r := ask(t, h, PathValidation, request); !r.Allowed || len(created) != 1 {
		t.Fatalf("%+v, %d pods", r.Result, len(created))
	}
	labels := map[string]string{"team": "blue", "app": "mine", "serving.knative.dev/configuration": "hello", "serving.knative.dev/revision": "hello-one"}
	if got := created[0].GetObject().(*corev1.Pod).Labels; !maps.Equal(got, labels) {
		t.Errorf("labels %v, want %v", got, labels)
	}
	owned := requestFor(t, strings.Replace(alone, "namespace: default", "namespace: default, ownerReferences: [{apiVersion: serving.knative.dev/v1, kind: Service, name: hello, uid: u, controller: true}]", 1))
	owned.DryRun = new(true)
	if r := ask(t, h, PathValidation, owned); !r.Allowed || len(created) != 1 {
		t.Errorf("%+v, %d pods in all", r.Result, len(created))
	}
}

// Clients look for these words, whatever the reason (Knative's contract).
func TestARefusedDryRunOfATemplateSaysThatTheCallbackFailed(t *testing.T) {
	h := newHandler(t, nil, nil)
	for spec, paths := range map[string]map[string]string{
		"containers: [{image: a, name: Not_A_Name}]": {
			PathEarly: "validation failed: ", PathValidation: "validation failed: ",
		},
		"containerConcurrency: x, containers: [{image: a}]": {
			PathDefaulting: "mutation failed: ", PathEarly: "validation failed: ", PathValidation: "validation failed: ",
		},
	} {
		for _, kind := range []string{"Service", "Configuration"} {
			request := requestFor(t, "{apiVersion: serving.knative.dev/v1, kind: "+kind+", metadata: {name: hello}, spec: {template: {spec: {"+spec+"}}}}")
			for path, want := range paths {
				for _, dry := range []bool{false, true} {
					request.DryRun = &dry
					if dry {
						want = "validation callback failed: " + want
					}
					if r := ask(t, h, path, request); r.Allowed || !strings.HasPrefix(r.Result.Message, want) {
						t.Errorf("%s of a %s, dry run %v: %+v, want %q", path, kind, dry, r.Result, want)
					}
				}
			}
		}
	}
}
