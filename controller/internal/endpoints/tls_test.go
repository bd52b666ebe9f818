package endpoints

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
)

func TestGatewaysAreSentToTLSOnceEverybodyServesIt(t *testing.T) {
	store, config := apiservertest.Start(t)
	clients, err := reconcile.ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	knob := settings.NewStore(nil)
	set := func(value string) {
		snapshot, err := settings.Parse(map[string]map[string]string{settings.NetworkName: {"system-internal-tls": value}})
		if err != nil {
			t.Fatal(err)
		}
		knob.Set(snapshot)
	}
	set("Enabled")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	store.Now = func() time.Time { return now }
	world := reconcile.NewManager(clients, knob, record.NewFakeRecorder(100), slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	world.Now = store.Now
	c := &reconcile.Controller{Name: "test", Keys: func() []reconcile.Key { return nil },
		Reconcile: func(context.Context, reconcile.Key) (time.Duration, error) { return 0, nil }}
	s := newSecurity(world, c, c.Keys)
	serves := map[string]bool{}
	s.shake = func(_ context.Context, address string, _ *x509.CertPool) error {
		if !serves[address] {
			return errors.New("connection refused")
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done, synced := make(chan error, 1), make(chan struct{})
	go func() {
		done <- world.Run(ctx, []*reconcile.Controller{c}, reconcile.Options{Timeout: time.Minute, Alone: true,
			Metrics: reconcile.NewMetrics(prometheus.NewRegistry()), Synced: func() { close(synced) }})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	put := func(resource schema.GroupResource, version, kind, namespace, name string, content map[string]any) {
		u := &unstructured.Unstructured{Object: content}
		u.SetAPIVersion(version)
		u.SetKind(kind)
		u.SetNamespace(namespace)
		u.SetName(name)
		store.Put(resource, u)
	}
	definition := func(name string) {
		put(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name, map[string]any{})
	}
	deployment := func(tls string, replicas, updated int64) {
		put(schema.GroupResource{Group: "apps", Resource: "deployments"}, "apps/v1", "Deployment", "default", "hello-00001-deployment", map[string]any{
			"metadata": map[string]any{"labels": map[string]any{names.RevisionUIDLabel: "rev-uid"}, "annotations": map[string]any{names.SystemTLSAnnotation: tls}},
			"status":   map[string]any{"observedGeneration": int64(9), "replicas": replicas, "updatedReplicas": updated}})
	}
	pa := podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1)
	activators := []string{"10.0.9.1", "10.0.9.2"}
	// until waits for the caches: the answer is the same once they are filled.
	until := func(what string, before, want bool) (again time.Duration) {
		t.Helper()
		eventually.Seen(t, what, func() (string, bool) {
			got, after, err := s.ready(ctx, pa, activators, before)
			again = after
			return fmt.Sprintf("%v, %v", got, err), got == want && err == nil
		})
		return again
	}
	<-synced
	until("no certificate yet", false, false)
	definition("certificates.cert-manager.io")
	definition("backendtlspolicies.gateway.networking.k8s.io")
	put(certificate.Resource.GroupResource(), "cert-manager.io/v1", "Certificate", "default", names.NamespaceCertificate, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{names.CertificateTypeLabel: names.CertificateSystemInternal}},
		"status":   map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}})
	put(schema.GroupResource{Resource: "configmaps"}, "v1", "ConfigMap", "default", names.NamespaceAuthority, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{names.NamespaceCertificateLabel: "true"}}, "data": map[string]any{"ca.crt": "x"}})
	deployment("", 1, 1)
	until("pods of before", false, false)
	deployment("true", 2, 1)
	until("a pod of before", false, false)
	deployment("true", 2, 2)
	policies := schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "backendtlspolicies"}
	eventually.True(t, "there is a policy", func() bool {
		until("the policy is new", false, false)
		return store.Get(policies, "default", pa.Name) != nil
	})
	names, _, _ := unstructured.NestedSlice(store.Get(policies, "default", pa.Name).Object, "spec", "validation", "subjectAltNames")
	if len(names) != 2 || names[1].(map[string]any)["hostname"] != "kn-user-default" {
		t.Errorf("the policy accepts %v", names)
	}
	now = now.Add(policyAge)
	if again := until("no activator serves TLS", false, false); again <= 0 {
		t.Error("the activators are not asked again")
	}
	serves["10.0.9.1:8112"] = true
	until("one activator does not", false, false)
	serves["10.0.9.2:8112"] = true
	until("everybody serves TLS", false, true)
	activators = append(activators, "10.0.9.3")
	until("a new activator changes nothing", true, true)
	set("Disabled")
	until("switched off", true, false)
}
