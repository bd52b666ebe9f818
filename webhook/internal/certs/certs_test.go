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

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/internal/servingcert"
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

func newRotator(client *fake.Clientset, now *time.Time) *servingcert.Rotator {
	k := New(client, "knative-serving", "webhook", slog.New(slog.NewTextHandler(io.Discard, nil)))
	k.Now = func() time.Time { return *now }
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
func trusted(t *testing.T, k *servingcert.Rotator, bundle []byte, now time.Time) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	go func() { _ = tls.Server(server, &tls.Config{GetCertificate: k.Certificate}).Handshake() }()
	// A client that ends the handshake because of the certificate would wait for a server that
	// still writes, so it is verified afterwards.
	connection := tls.Client(client, &tls.Config{InsecureSkipVerify: true})
	if err := connection.Handshake(); err != nil {
		return err
	}
	_, err := connection.ConnectionState().PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, DNSName: "webhook.knative-serving.svc", CurrentTime: now})
	return err
}

func TestCertificateIsMadeRegisteredAndKept(t *testing.T) {
	now := inAMoment()
	client := fake.NewClientset(registrations()...)
	k := newRotator(client, &now)
	if k.Ready() || k.Ends() != nil {
		t.Error("ready before there is a certificate")
	}
	if err := k.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !k.Ready() {
		t.Error("not ready")
	}
	if left := k.Ends()[SecretName].Sub(now); left < servingcert.Lifetime-time.Minute || left > servingcert.Lifetime {
		t.Errorf("the certificate ends in %v", left)
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
	a, b := newRotator(client, &now), newRotator(client, &behind)
	for _, k := range []*servingcert.Rotator{a, b} {
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

// At every moment of a rotation both the old and the new certificate are trusted by the registered
// bundle.
func TestRotationIsTrustedThroughout(t *testing.T) {
	now := inAMoment()
	client := fake.NewClientset(registrations()...)
	k := newRotator(client, &now)
	if err := k.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	old, _ := k.Certificate(nil)
	now = now.Add(servingcert.Lifetime - servingcert.RenewBefore + time.Minute)
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
	now = now.Add(servingcert.Settle + time.Second)
	if err := k.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	if current, _ := k.Certificate(nil); current == old {
		t.Error("the old certificate is still served")
	}
	check("settled")
}

// A webhook that could not renew its certificate in time does so at its first chance, and serves
// with it at once.
func TestAnExpiredCertificateIsReplacedAtOnce(t *testing.T) {
	now := time.Now()
	client := fake.NewClientset(registrations()...)
	k := newRotator(client, &now)
	if err := k.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(servingcert.Lifetime + time.Minute)
	if err := trusted(t, k, bundles(t, client)[0], now); err == nil {
		t.Error("an expired certificate is trusted")
	}
	if err := k.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, bundle := range bundles(t, client) {
		if err := trusted(t, k, bundle, now); err != nil {
			t.Errorf("webhook %d: %v", i, err)
		}
	}
}

// The clock of the webhook's node may be ahead of the API server's.
func TestANewCertificateIsValidForAServerWhoseClockIsBehind(t *testing.T) {
	now := time.Now()
	client := fake.NewClientset(registrations()...)
	k := newRotator(client, &now)
	if err := k.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := trusted(t, k, bundles(t, client)[0], now.Add(-10*time.Minute)); err != nil {
		t.Error(err)
	}
}

func TestDamageIsMended(t *testing.T) {
	now := inAMoment()
	client := fake.NewClientset(registrations()...)
	k := newRotator(client, &now)
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
		"the Secret holds something": {servingcert.ServerKey: []byte("x"), servingcert.ServerCert: []byte("y"), servingcert.CACert: []byte("z")},
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
			now = now.Add(servingcert.Settle + time.Second)
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
	k := newRotator(fake.NewClientset(), &now)
	if err := k.Check(context.Background()); err == nil || k.Ready() {
		t.Errorf("error %v, ready %v", err, k.Ready())
	}
}

// Somebody edits a registration by hand, or deletes what they do not like in it: it is what it was,
// in the next check.
func TestAnEditedRegistrationHeals(t *testing.T) {
	now := inAMoment()
	client := fake.NewClientset(registrations()...)
	k := newRotator(client, &now)
	check := func() {
		t.Helper()
		if err := k.Check(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	check()
	api := client.AdmissionregistrationV1()
	mutating := func() *admissionregistrationv1.MutatingWebhookConfiguration {
		m, err := api.MutatingWebhookConfigurations().Get(t.Context(), mutatingName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	validating := func(name string) *admissionregistrationv1.ValidatingWebhookConfiguration {
		v, err := api.ValidatingWebhookConfigurations().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	before, beforeValidating, beforeConfig := mutating(), validating(validatingName), validating(configMapName)
	if len(before.Webhooks) != 2 || len(before.Webhooks[0].Rules) == 0 || len(before.Webhooks[0].ClientConfig.CABundle) == 0 ||
		*before.Webhooks[0].ClientConfig.Service.Path != "/defaulting" || len(beforeConfig.Webhooks[0].ObjectSelector.MatchLabels) == 0 {
		t.Fatalf("registered as %+v and %+v", before.Webhooks, beforeConfig.Webhooks)
	}
	for what, edit := range map[string]func(*admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration){
		"rules are dropped": func(m *admissionregistrationv1.MutatingWebhookConfiguration, v, c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			m.Webhooks[0].Rules, v.Webhooks[0].Rules, c.Webhooks[0].Rules = nil, v.Webhooks[0].Rules[:1], nil
		},
		"selectors are widened": func(m *admissionregistrationv1.MutatingWebhookConfiguration, v, c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			m.Webhooks[1].NamespaceSelector, v.Webhooks[0].NamespaceSelector, c.Webhooks[0].ObjectSelector = nil, &metav1.LabelSelector{}, nil
		},
		"it no longer matters whether it answers": func(m *admissionregistrationv1.MutatingWebhookConfiguration, v, c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			ignore := admissionregistrationv1.Ignore
			m.Webhooks[0].FailurePolicy, v.Webhooks[0].FailurePolicy, c.Webhooks[0].FailurePolicy = &ignore, &ignore, &ignore
		},
		"one is taken out": func(m *admissionregistrationv1.MutatingWebhookConfiguration, v, c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			m.Webhooks, v.Webhooks, c.Webhooks = m.Webhooks[1:], nil, nil
		},
		"it leads elsewhere": func(m *admissionregistrationv1.MutatingWebhookConfiguration, v, c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			path := "/elsewhere"
			m.Webhooks[0].ClientConfig.Service.Path, v.Webhooks[0].ClientConfig.CABundle, c.Webhooks[0].ClientConfig.Service.Name = &path, nil, "another"
		},
	} {
		m, v, c := mutating(), validating(validatingName), validating(configMapName)
		m.Labels = map[string]string{"of": "somebody"}
		edit(m, v, c)
		if _, err := api.MutatingWebhookConfigurations().Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, one := range []*admissionregistrationv1.ValidatingWebhookConfiguration{v, c} {
			if _, err := api.ValidatingWebhookConfigurations().Update(t.Context(), one, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		check()
		for name, same := range map[string]bool{
			mutatingName: cmp.Equal(before.Webhooks, mutating().Webhooks), validatingName: cmp.Equal(beforeValidating.Webhooks, validating(validatingName).Webhooks),
			configMapName: cmp.Equal(beforeConfig.Webhooks, validating(configMapName).Webhooks),
		} {
			if !same {
				t.Errorf("%s: %s is not what it was", what, name)
			}
		}
		if mutating().Labels["of"] != "somebody" {
			t.Errorf("%s: somebody's label is gone", what)
		}
	}
}
