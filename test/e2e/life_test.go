//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

var (
	services = cluster.Services
	isReady  = cluster.IsReady
	describe = cluster.Describe
)

// All kinds of objects that a Service may create in its namespace.
var children = []schema.GroupVersionResource{
	cluster.Services, cluster.Configurations, cluster.Revisions, cluster.Routes, cluster.PodAutoscalers, cluster.HTTPRoutes,
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "secrets"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
}

func (s *story) objects() (names []string, err error) {
	for _, resource := range children {
		list, err := s.Dynamic.Resource(resource).Namespace(s.namespace).List(s.ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s of %s: %w", resource.Resource, s.namespace, err)
		}
		for _, object := range list.Items {
			names = append(names, resource.Resource+"/"+object.GetName())
		}
	}
	return names, nil
}

func TestDeletingAServiceDeletesEverythingItMade(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("gone", service{name: "gone", traffic: "  - latestRevision: true\n    percent: 100\n    tag: newest\n"}.manifest())
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Fatal(reply)
	}
	made, err := s.objects()
	if err != nil {
		t.Fatal(err)
	}
	if len(made) < 8 {
		t.Fatalf("a Service created only %v", made)
	}
	slow := make(chan probe.Reply, 1)
	go func() { slow <- probe.Get(s.ctx, s.client(), url+"?sleep=4000") }()
	s.until("a slow request is in flight", func() (bool, string, error) {
		var count struct{ OverlapNow int }
		reply := probe.Get(s.ctx, s.client(), url+"/count")
		err := json.Unmarshal([]byte(reply.Body), &count)
		return err == nil && count.OverlapNow > 0, reply.Body, nil
	})
	if err := s.Dynamic.Resource(services).Namespace(s.namespace).Delete(s.ctx, "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if reply := <-slow; !reply.OK() {
		t.Errorf("the request in flight when the Service was deleted: %v", reply)
	}
	s.until("everything that the Service created is deleted", func() (bool, string, error) {
		left, err := s.objects()
		return len(left) == 0, strings.Join(left, " "), err
	})
	s.until("its host returns 404", func() (bool, string, error) {
		reply := probe.Get(s.ctx, s.client(), url)
		return reply.Status == 404, reply.String(), nil
	})
}

func TestDeletingTheActivatorLosesNoHeldRequest(t *testing.T) {
	s := beginAlone(t, 4*time.Minute)
	busy := probe.Start(s.client(), s.ready("busy", service{name: "busy", annotations: map[string]string{
		"autoscaling.knative.dev/target-burst-capacity": "-1"}}.manifest()), 20*time.Millisecond)
	url := s.readyAtZero("held", service{name: "held", env: map[string]string{"START_DELAY_MS": "5000"}}.manifest())
	answers := make(chan []probe.Reply, 1)
	go func() { answers <- probe.Burst(s.ctx, s.client(), url, 10) }()

	// The requests are certainly queued: a pod exists, and its program has not started to listen.
	s.until("a pod is created for the queued requests", func() (bool, string, error) {
		pods, err := s.Pods(s.ctx, s.namespace, "held", false)
		return len(pods) > 0, fmt.Sprintf("%d pods", len(pods)), err
	})
	activators, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + s.Program("activator")})
	if err != nil {
		t.Fatal(err)
	}
	if len(activators.Items) == 0 {
		t.Fatalf("no pod in %s has the label app=%s", cluster.System, s.Program("activator"))
	}
	for _, pod := range activators.Items {
		if err := s.Kube.CoreV1().Pods(cluster.System).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Until the next activator is ready, only the terminating one can accept these.
	later := probe.Start(s.client(), url, 100*time.Millisecond)
	for _, failed := range probe.Failed(<-answers) {
		t.Errorf("queued while the activator was deleted: %v", failed)
	}
	s.until("an activator is ready again", func() (bool, string, error) {
		pods, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + s.Program("activator")})
		if err != nil {
			return false, err.Error(), nil
		}
		ready := len(cluster.ReadyPods(pods.Items))
		return ready >= 1, fmt.Sprintf("%d ready", ready), nil
	})
	if err := later.Stop().Err(10); err != nil {
		t.Errorf("sent at zero, after the activator was deleted: %v", err)
	}
	if err := busy.StopAfter(s.ctx, 100).Err(100); err != nil {
		t.Errorf("through the activator, while it was deleted: %v", err)
	}
	s.awaitZero("held")
	if failed := probe.Failed(probe.Burst(s.ctx, s.client(), url, 3)); len(failed) > 0 {
		t.Errorf("at zero, through the new activator: %v", failed)
	}
}

func TestABadManifestIsRefusedWithTheFieldsPath(t *testing.T) {
	s := begin(t, time.Minute)
	good := service{name: "bad"}.manifest()
	for _, test := range []struct{ name, manifest, path string }{
		{"a negative containerConcurrency", service{name: "bad", concurrency: -1}.manifest(), "spec.template.spec.containerConcurrency"},
		{"a reserved environment variable", service{name: "bad", env: map[string]string{"K_SERVICE": "me"}}.manifest(), "spec.template.spec.containers[0].env[0].name"},
		{"an invalid image reference", service{name: "bad", image: "Not:An:Image"}.manifest(), "spec.template.spec.containers[0].image"},
		{"a bound that is not a number", service{name: "bad", annotations: map[string]string{"autoscaling.knative.dev/max-scale": "many"}}.manifest(), "autoscaling.knative.dev/max-scale"},
		{"percentages that do not add up", service{name: "bad", traffic: "  - latestRevision: true\n    percent: 60\n"}.manifest(), "spec.traffic"},
		{"a timeout beyond the limit", good + "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			manifest := test.manifest
			if test.path == "" {
				manifest = strings.Replace(good, "containerConcurrency: 0", "timeoutSeconds: 100000", 1)
				test.path = "spec.template.spec.timeoutSeconds"
			}
			err := s.Apply(s.ctx, s.namespace, manifest)
			if err == nil {
				t.Fatalf("this manifest was accepted:\n%s", manifest)
			}
			if !strings.Contains(err.Error(), test.path) {
				t.Errorf("the error does not name %s: %v", test.path, err)
			}
		})
	}
	left, err := s.objects()
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("rejected manifests left %v", left)
	}
}

func TestADryRunSaysWhyThePodWouldBeRefused(t *testing.T) {
	s := begin(t, time.Minute)
	manifest := strings.Replace(service{name: "tried"}.manifest(), "containerConcurrency: 0", "serviceAccountName: nobody", 1)
	objects, err := cluster.Decode(manifest)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Dynamic.Resource(services).Namespace(s.namespace).Create(s.ctx, objects[0], metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil || !strings.Contains(err.Error(), "dry run failed with") || !strings.Contains(err.Error(), `"nobody" not found: spec.template`) {
		t.Errorf("dry run of a pod whose service account does not exist: %v", err)
	}
}

func TestAnImageThatCannotStartSaysWhy(t *testing.T) {
	s := begin(t, 3*time.Minute)
	s.apply(service{name: "broken", env: map[string]string{"CRASH": "1"}}.manifest())
	object, err := s.Await(s.ctx, services, s.namespace, "broken", failed)
	if err != nil {
		t.Fatal(err)
	}
	conditions := cluster.Conditions(object)
	if c := conditions["ConfigurationsReady"]; c.Status != "False" || c.Reason == "" || !strings.Contains(c.Message, "CRASH=1") {
		t.Errorf("the condition does not contain the program's output: %v", c)
	}
	// Ready repeats the condition that turned False last. That may be the Route's, which only
	// reports the missing revision.
	if c := conditions["Ready"]; c.Reason == "" || c.Message == "" {
		t.Errorf("Ready gives no reason: %v", c)
	}
}

func TestAnImageThatDoesNotExistSaysWhy(t *testing.T) {
	s := begin(t, 3*time.Minute)
	s.apply(service{name: "absent", image: "dev.local/ebb-test/absent:dev"}.manifest())
	object, err := s.Await(s.ctx, services, s.namespace, "absent", failed)
	if err != nil {
		t.Fatal(err)
	}
	if c := cluster.Conditions(object)["ConfigurationsReady"]; c.Status != "False" || c.Reason == "" || !strings.Contains(c.Message, "dev.local/ebb-test/absent") {
		t.Errorf("the condition does not name the image: %v", c)
	}
}

// The revision of the Service worked once and cannot start any more. Its route exists, so a request
// can wait for it.
func TestARequestForARevisionThatCannotStartGetsTheReason(t *testing.T) {
	s := begin(t, 4*time.Minute)
	s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: switch\ndata:\n  CRASH: \"0\"\n")
	manifest := strings.Replace(service{name: "once", env: map[string]string{"TEXT": "works"}}.manifest(),
		"        env:\n", "        env:\n        - name: CRASH\n          valueFrom:\n            configMapKeyRef:\n              name: switch\n              key: CRASH\n", 1)
	url := s.readyAtZero("once", manifest)
	s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: switch\ndata:\n  CRASH: \"1\"\n")

	// The first request shows that the pod does not start. It must not hang until its timeout.
	first := probe.Get(s.ctx, s.client(), url)
	if first.Status != 503 {
		t.Errorf("the first request: %v", first)
	}
	again := probe.Get(s.ctx, s.client(), url)
	if again.Status != 503 || !strings.Contains(again.Body, "ExitCode") || strings.Contains(again.Body, "CRASH=1") {
		t.Errorf("a request to a revision known not to start: %v, want 503 with the reason and without the log", again)
	}
	if again.Took > 5*time.Second {
		t.Errorf("the error took %s, want at most 5 s", again.Took)
	}
}

// failed reports whether the Service's newest generation is observed and Ready is False.
func failed(object *unstructured.Unstructured) bool {
	observed, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	conditions := cluster.Conditions(object)
	return observed == object.GetGeneration() && conditions["Ready"].Status == "False" && conditions["ConfigurationsReady"].Status == "False"
}
