package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"knative.dev/pkg/webhook/certificates/resources"
)

func registrations() []runtime.Object {
	webhook := func(name string) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{Name: name}
	}
	return []runtime.Object{
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: mutatingName},
			Webhooks:   []admissionregistrationv1.MutatingWebhook{{Name: mutatingName}, {Name: validatingName}},
		},
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: validatingName}, Webhooks: []admissionregistrationv1.ValidatingWebhook{webhook(validatingName)},
		},
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: configMapName}, Webhooks: []admissionregistrationv1.ValidatingWebhook{webhook(configMapName)},
		},
	}
}

// inAMoment is late enough for a certificate that is made now to be valid.
func inAMoment() time.Time { return time.Now().Add(time.Minute) }

func newKeeper(client *fake.Clientset, now *time.Time) *Keeper {
	k := New(client, "knative-serving", "webhook", slog.New(slog.NewTextHandler(io.Discard, nil)))
	k.now = func() time.Time { return *now }
	return k
}

// bundles returns the CA bundles of all registered webhooks.
func bundles(t *testing.T, client *fake.Clientset) (found [][]byte) {
	t.Helper()
	api := client.AdmissionregistrationV1()
	m, err := api.MutatingWebhookConfigurations().Get(context.Background(), mutatingName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range m.Webhooks {
		found = append(found, w.ClientConfig.CABundle)
	}
	for _, name := range []string{validatingName, configMapName} {
		v, err := api.ValidatingWebhookConfigurations().Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range v.Webhooks {
			found = append(found, w.ClientConfig.CABundle)
		}
	}
	return found
}

// trusted performs a handshake as the API server does with a bundle.
func trusted(t *testing.T, k *Keeper, bundle []byte, now time.Time) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	go func() { _ = tls.Server(server, &tls.Config{GetCertificate: k.Certificate}).Handshake() }()
	return tls.Client(client, &tls.Config{
		RootCAs: roots, ServerName: "webhook.knative-serving.svc", Time: func() time.Time { return now },
	}).Handshake()
}

func TestCertificateIsMadeRegisteredAndKept(t *testing.T) {
	now := inAMoment()
	client := fake.NewClientset(registrations()...)
	k := newKeeper(client, &now)
	if k.Ready() {
		t.Error("ready before there is a certificate")
	}
	if err := k.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !k.Ready() {
		t.Error("not ready")
	}
	for i, bundle := range bundles(t, client) {
		if err := trusted(t, k, bundle, now); err != nil {
			t.Errorf("webhook %d: %v", i, err)
		}
	}
	client.ClearActions()
	if err := k.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("a check of what is in order does %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

func TestReplicasShareOneCertificate(t *testing.T) {
	now := inAMoment()
	behind := now.Add(-time.Hour)
	client := fake.NewClientset(registrations()...)
	a, b := newKeeper(client, &now), newKeeper(client, &behind)
	for _, k := range []*Keeper{a, b} {
		if err := k.Check(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	one, _ := a.Certificate(nil)
	other, _ := b.Certificate(nil)
	if !bytes.Equal(one.Certificate[0], other.Certificate[0]) {
		t.Error("two replicas serve different certificates")
	}
}

// At every moment of a rotation both the old and the new certificate are trusted by the registered bundle.
func TestRotationIsTrustedThroughout(t *testing.T) {
	now := inAMoment()
	client := fake.NewClientset(registrations()...)
	k := newKeeper(client, &now)
	if err := k.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	old, _ := k.Certificate(nil)
	now = now.Add(lifetime - renewBefore + time.Minute)
	if err := k.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	if current, _ := k.Certificate(nil); current != old {
		t.Error("the new certificate is served before API servers know its authority")
	}
	check := func(moment string) {
		for i, bundle := range bundles(t, client) {
			if err := trusted(t, k, bundle, now); err != nil {
				t.Errorf("%s: webhook %d: %v", moment, i, err)
			}
		}
	}
	check("just renewed")
	now = now.Add(settle + time.Second)
	if err := k.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	if current, _ := k.Certificate(nil); current == old {
		t.Error("the old certificate is still served")
	}
	check("settled")
}

func TestDamageIsMended(t *testing.T) {
	now := inAMoment()
	client := fake.NewClientset(registrations()...)
	k := newKeeper(client, &now)
	ctx := context.Background()
	if err := k.Check(ctx); err != nil {
		t.Fatal(err)
	}
	t.Run("a bundle was overwritten", func(t *testing.T) {
		api := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
		v, _ := api.Get(ctx, validatingName, metav1.GetOptions{})
		v.Webhooks[0].ClientConfig.CABundle = nil
		if _, err := api.Update(ctx, v, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := k.Check(ctx); err != nil {
			t.Fatal(err)
		}
		for i, bundle := range bundles(t, client) {
			if len(bundle) == 0 {
				t.Errorf("webhook %d has no bundle", i)
			}
		}
	})
	for name, data := range map[string]map[string][]byte{
		"the Secret was emptied":     nil,
		"the Secret holds something": {resources.ServerKey: []byte("x"), resources.ServerCert: []byte("y"), resources.CACert: []byte("z")},
	} {
		t.Run(name, func(t *testing.T) {
			secret, err := client.CoreV1().Secrets("knative-serving").Get(ctx, SecretName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			secret.Data = data
			if _, err := client.CoreV1().Secrets("knative-serving").Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := k.Check(ctx); err != nil {
				t.Fatal(err)
			}
			now = now.Add(settle + time.Second)
			if err := k.Check(ctx); err != nil {
				t.Fatal(err)
			}
			for i, bundle := range bundles(t, client) {
				if err := trusted(t, k, bundle, now); err != nil {
					t.Errorf("webhook %d: %v", i, err)
				}
			}
		})
	}
	t.Run("the Secret was deleted", func(t *testing.T) {
		if err := client.CoreV1().Secrets("knative-serving").Delete(ctx, SecretName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := k.Check(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWithoutRegistrationsItIsNotReady(t *testing.T) {
	now := inAMoment()
	k := newKeeper(fake.NewClientset(), &now)
	if err := k.Check(context.Background()); err == nil || k.Ready() {
		t.Errorf("error %v, ready %v", err, k.Ready())
	}
}
