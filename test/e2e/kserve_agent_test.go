//go:build e2e && kserve

package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// agent listens where queue-proxy is told to send requests, after a while, as KServe's agent does
// that waits for its configuration. It marks what passes.
const agent = `
import http.server, os, signal, time, urllib.request

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

class Agent(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("K-Network-Probe"):
            body = b"queue"
        else:
            body = urllib.request.urlopen("http://127.0.0.1:8080" + self.path).read()
        self.send_response(200)
        self.send_header("X-Logged", "yes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

time.sleep(3)
http.server.ThreadingHTTPServer(("", 9081), Agent).serve_forever()
`

// injectsAgents does to pods in the namespace what KServe's webhook does to a model with a logger:
// a container agent with queue-proxy's environment, and queue-proxy sends to the agent's port.
func (s *story) injectsAgents() {
	s.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var pod corev1.Pod
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if err := json.Unmarshal(review.Request.Object.Raw, &pod); err != nil {
			s.Error(err)
		}
		if pod.Annotations["internal.serving.kserve.io/logger"] == "true" {
			patch, err := json.Marshal(withAgent(s.T, &pod))
			if err != nil {
				s.Error(err)
			}
			answer.Patch, answer.PatchType = patch, ptr.To(admissionv1.PatchTypeJSONPatch)
		}
		review.Response, review.Request = answer, nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	s.Cleanup(server.Close)
	name := "inferenceservice." + s.namespace + ".test"
	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "inferenceservice.kserve-webhook-server.pod-mutator",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.namespace}},
			ObjectSelector:          &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "serving.kserve.io/inferenceservice", Operator: metav1.LabelSelectorOpExists}}},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			ReinvocationPolicy:      ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
		}},
	}
	client := s.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := client.Create(s.ctx, webhook, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
}

// withAgent returns the changes, or none if the pod has an agent.
func withAgent(t *testing.T, pod *corev1.Pod) (patch []map[string]any) {
	for i, c := range pod.Spec.Containers {
		if c.Name == "agent" {
			return nil
		}
		if c.Name != "queue-proxy" {
			continue
		}
		for j, e := range c.Env {
			if e.Name == "USER_PORT" {
				patch = append(patch, map[string]any{"op": "replace", "path": fmt.Sprintf("/spec/containers/%d/env/%d/value", i, j), "value": "9081"})
			}
			if e.Name == "EBB_KEY" || e.Name == "EBB_TOKEN" {
				t.Errorf("queue-proxy's environment, which KServe copies, has %s", e.Name)
			}
		}
		patch = append(patch, map[string]any{"op": "add", "path": "/spec/containers/-", "value": corev1.Container{
			Name: "agent", Image: "dev.local/ebb/hello-python:dev", Command: []string{"/usr/bin/python3.11", "-c", agent}, Env: c.Env,
			Ports: []corev1.ContainerPort{{Name: "agent-port", ContainerPort: 9081, Protocol: corev1.ProtocolTCP}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(9081),
				HTTPHeaders: []corev1.HTTPHeader{{Name: "K-Network-Probe", Value: "queue"}}}}},
		}})
	}
	if len(patch) != 2 {
		t.Errorf("pod %s has no queue-proxy with a USER_PORT: %d changes", pod.GenerateName, len(patch))
	}
	return patch
}

// remove deletes an object, after the test.
func (s *story) remove(t *testing.T, del func(context.Context, string, metav1.DeleteOptions, ...string) error, object *unstructured.Unstructured) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := del(ctx, object.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
