//go:build e2e && kserve

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// Services as KServe's controller (0.20) makes them of InferenceServices. Where it has names of its
// own, the images are ours.
const (
	kserveService = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: NAME
  labels: {component: PART, serving.kserve.io/inferenceservice: MODEL}
  annotations: {serving.knative.dev/rollout-duration: "0"}
spec:
  template:
    metadata:
      labels: {component: PART, serving.kserve.io/inferenceservice: MODEL}
      annotations:
        autoscaling.knative.dev/class: kpa.autoscaling.knative.dev
        autoscaling.knative.dev/min-scale: "0"
        MORE: "true"
    spec:
      containerConcurrency: 0
      timeoutSeconds: 300
      containers:
      - name: kserve-container
        image: dev.local/ebb-test/autoscale:dev
        env: [{name: TEXT, value: MODEL}]
        ports: [{containerPort: 8080, protocol: TCP}]
        readinessProbe: {tcpSocket: {port: 8080}, successThreshold: 1}
`
	// kserveStored is one with a storage initializer.
	kserveStored = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: stored-predictor
  labels: {component: predictor, serving.kserve.io/inferenceservice: stored}
spec:
  template:
    metadata:
      labels: {component: predictor, serving.kserve.io/inferenceservice: stored}
      annotations:
        autoscaling.knative.dev/min-scale: "0"
        internal.serving.kserve.io/storage-initializer-sourceuri: s3://models/stored
    spec:
      initContainers:
      - name: storage-initializer
        image: dev.local/ebb-test/autoscale:dev
        env: [{name: WRITE_FILE, value: /mnt/models/model}, {name: TEXT, value: stored}]
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts: [{name: kserve-provision-location, mountPath: /mnt/models}]
      containers:
      - name: kserve-container
        image: dev.local/ebb-test/autoscale:dev
        env: [{name: TEXT_FILE, value: /mnt/models/model}]
        ports: [{containerPort: 8080, protocol: TCP}]
        readinessProbe: {tcpSocket: {port: 8080}, successThreshold: 1}
        volumeMounts: [{name: kserve-provision-location, mountPath: /mnt/models, readOnly: true}]
      volumes: [{name: kserve-provision-location, emptyDir: {}}]
`
	// kserveHost is what the controller makes besides, unless disableIstioVirtualHost is true.
	kserveHost = `
apiVersion: v1
kind: Service
metadata: {name: MODEL}
spec: {type: ExternalName, externalName: knative-local-gateway.istio-system.svc.cluster.local, sessionAffinity: None}
---
apiVersion: networking.istio.io/v1beta1
kind: VirtualService
metadata: {name: MODEL}
spec:
  hosts: [MODEL.NAMESPACE.svc.cluster.local, MODEL.NAMESPACE.DOMAIN]
  gateways: [knative-serving/knative-local-gateway, mesh, knative-serving/knative-ingress-gateway]
  http:
  - match:
    - authority: {regex: 'INSIDE(?::\d{1,5})?$'}
      gateways: [knative-serving/knative-local-gateway, mesh]
    - authority: {regex: 'OUTSIDE(?::\d{1,5})?$'}
      gateways: [knative-serving/knative-ingress-gateway]
    headers: {request: {set: {Host: BACKEND.NAMESPACE.svc.cluster.local}}}
    route:
    - destination: {host: knative-local-gateway.istio-system.svc.cluster.local, port: {number: 80}}
      weight: 100
`
)

// model is an InferenceService: what is asked of the Service in front, and what it answers.
type model struct{ name, front, path, says string }

func kserve(model, part string) string {
	return strings.NewReplacer("NAME", model+"-"+part, "MODEL", model, "PART", part, "MORE", "internal.serving.kserve.io/"+model).Replace(kserveService)
}

// It runs alone because what it sets counts for every service of the cluster, and so do the names
// of config/kserve.
func TestModelsOfKServeAnswerFromZero(t *testing.T) {
	s := beginAlone(t, 8*time.Minute)
	s.config("config-features", map[string]string{"kubernetes.podspec-init-containers": "Enabled"})
	s.injectsAgents()
	models := []model{
		{"custom", "custom-predictor", "/", "custom\n"},
		// The test image asks the predictor, as a transformer does, by the name that KServe gives
		// it.
		{"chain", "chain-transformer", "/?fetch=http://chain-predictor." + s.namespace + ".svc.cluster.local/", "chain\n"},
		{"stored", "stored-predictor", "/", "stored\n"},
		{"logger", "logger-predictor", "/", "logger\n"},
	}
	canary := model{name: "canary", front: "canary-predictor"}
	s.until("the webhook follows the settings", func() (bool, string, error) {
		err := s.Apply(s.ctx, s.namespace, kserveStored)
		return err == nil, fmt.Sprint(err), nil
	})
	for _, service := range [][2]string{{"custom", "predictor"}, {"chain", "predictor"}, {"chain", "transformer"}, {"logger", "predictor"}, {"canary", "predictor"}} {
		s.apply(kserve(service[0], service[1]))
	}
	urls := map[string]string{}
	for _, name := range []string{"custom-predictor", "chain-predictor", "chain-transformer", "stored-predictor", "logger-predictor", "canary-predictor"} {
		url, err := s.AwaitReady(s.ctx, s.namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		urls[name] = url
	}
	s.apply(strings.Replace(kserve("canary", "predictor"), "value: canary", "value: second", 1) +
		"  traffic:\n  - {latestRevision: true, percent: 50}\n  - {revisionName: canary-predictor-00001, percent: 50, tag: prev}\n")
	if _, err := s.AwaitReady(s.ctx, s.namespace, "canary-predictor"); err != nil {
		t.Fatal(err)
	}

	outside, inside := s.client(), s.insideClient()
	local := "." + s.namespace + ".svc.cluster.local"
	t.Run("by the hosts of their predictors", func(t *testing.T) {
		s.answerFromZero(t, models, outside, func(m model) string { return urls[m.front] })
		s.answerFromZero(t, models, inside, func(m model) string { return "http://" + m.front + local })
		s.splits(t, outside, urls["canary-predictor"])
		s.splits(t, inside, "http://canary-predictor"+local)
	})
	t.Run("by hosts of their own", func(t *testing.T) {
		domain := s.kserveNames(t, urls["custom-predictor"])
		for _, m := range append(models, canary) {
			inside, outside := m.name+local, m.name+"."+s.namespace+"."+domain
			s.apply(strings.NewReplacer("MODEL", m.name, "NAMESPACE", s.namespace, "DOMAIN", domain, "BACKEND", m.front,
				"INSIDE", "^"+regexp.QuoteMeta(inside), "OUTSIDE", "^"+regexp.QuoteMeta(outside)).Replace(kserveHost))
		}
		public := func(m model) string { return "http://" + m.name + "." + s.namespace + "." + domain }
		private := func(m model) string { return "http://" + m.name + local }
		s.answerFromZero(t, models, outside, public)
		s.answerFromZero(t, models, inside, private)
		s.splits(t, outside, public(canary))
		s.splits(t, inside, private(canary))
		// The cluster's DNS leads the name to the gateway, for a pod.
		asking := model{front: "custom-predictor", path: "/?fetch=" + private(models[0]) + "/", says: "custom\n"}
		s.answerFromZero(t, []model{asking}, outside, func(m model) string { return urls[m.front] })
		if reply := probe.Get(s.ctx, outside, "http://nobody."+s.namespace+"."+domain); reply.Status != http.StatusNotFound {
			t.Errorf("a host that no model has: %v", reply)
		}
	})
}

// answerFromZero waits until the models have no pod, and sends a burst to each. Gateways may need a
// moment to know the hosts.
func (s *story) answerFromZero(t *testing.T, models []model, client *http.Client, url func(model) string) {
	t.Helper()
	for _, m := range models {
		s.until(url(m)+" is known", func() (bool, string, error) {
			reply := probe.Get(s.ctx, client, url(m)+m.path)
			return reply.Status != http.StatusNotFound, reply.String(), nil
		})
	}
	for _, m := range models {
		s.awaitZero(m.front)
		for _, reply := range probe.Burst(s.ctx, client, url(m)+m.path, 10) {
			if !reply.OK() || reply.Body != m.says {
				t.Errorf("%s from zero: %v, want %q", url(m)+m.path, reply, m.says)
			}
			if m.name == "logger" && reply.Header.Get("X-Logged") != "yes" {
				t.Errorf("%s: the response has not passed the agent: %v", url(m), reply.Header)
			}
		}
	}
}

// splits asks a model with a canary.
func (s *story) splits(t *testing.T, client *http.Client, url string) {
	t.Helper()
	seen := map[string]int{}
	s.until("both revisions of "+url+" have answered", func() (bool, string, error) {
		for _, reply := range probe.Burst(s.ctx, client, url, 10) {
			if !reply.OK() && (reply.Status != http.StatusNotFound || len(seen) > 0) {
				return false, "", fmt.Errorf("%v", reply)
			}
			seen[reply.Body]++
		}
		return seen["canary\n"] > 0 && seen["second\n"] > 0, fmt.Sprint(seen), nil
	})
}

// kserveNames installs config/kserve until the test ends, and returns the domain of a Service's
// URL.
func (s *story) kserveNames(t *testing.T, url string) (domain string) {
	t.Helper()
	names, err := os.ReadFile("../../config/kserve/gateways.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := cluster.Decode(string(names))
	if err != nil {
		t.Fatal(err)
	}
	resources := map[string]schema.GroupVersionResource{"Service": {Version: "v1", Resource: "services"},
		"Gateway":        {Group: "networking.istio.io", Version: "v1", Resource: "gateways"},
		"VirtualService": {Group: "networking.istio.io", Version: "v1", Resource: "virtualservices"}}
	if _, err := s.Dynamic.Resource(resources["Gateway"]).List(s.ctx, metav1.ListOptions{Limit: 1}); err != nil {
		t.Skipf("these names are Istio's: %v", err)
	}
	for _, object := range objects {
		client := s.Dynamic.Resource(resources[object.GetKind()]).Namespace(object.GetNamespace())
		if _, err := client.Apply(s.ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "ebb-test", Force: true}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.remove(t, client.Delete, object) })
	}
	host, err := cluster.HostOf(url)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(host, "custom-predictor."+s.namespace+".")
}
