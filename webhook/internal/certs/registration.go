// Package certs gives the webhook its certificate, and keeps the registrations that send the API
// server there.
//
// Owns: Secret webhook-certs, by internal/servingcert, and the webhooks in the three registrations.
// Reads: these four objects, by name. Writes: them, only when they differ from what they must be.
// Never: decides what is right.
package certs

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/internal/servingcert"
)

const (
	// SecretName is the Secret with the certificate.
	SecretName = "webhook-certs"

	// The registrations that carry the bundle.
	mutatingName   = "webhook.serving.knative.dev"
	validatingName = "validation.webhook.serving.knative.dev"
	configMapName  = "config.webhook.serving.knative.dev"
)

// registrar keeps the registrations.
type registrar struct {
	client             kubernetes.Interface
	namespace, service string
	log                *slog.Logger
}

// New returns what keeps the certificate of the Service of the given name, and the registrations.
func New(client kubernetes.Interface, namespace, service string, log *slog.Logger) *servingcert.Rotator {
	r := &registrar{client, namespace, service, log}
	return servingcert.New(servingcert.Options{Client: client, Namespace: namespace, Service: service, Secret: SecretName,
		Register: r.register, Log: log, Now: time.Now})
}

// The three registrations as config/core/webhook.yaml has them; a test holds that they are the
// same.
//
//go:embed registrations.yaml
var shipped []byte

// wanted is what the registrations are to be, but for the CA bundle.
type wanted struct {
	mutating   []admissionregistrationv1.MutatingWebhook
	validating map[string][]admissionregistrationv1.ValidatingWebhook
}

func readWanted(text []byte, namespace, service string) (wanted, error) {
	w := wanted{validating: map[string][]admissionregistrationv1.ValidatingWebhook{}}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var meta metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(document, &meta); err != nil {
			return w, fmt.Errorf("read the registrations: %w", err)
		}
		switch meta.Kind {
		case "MutatingWebhookConfiguration":
			var c admissionregistrationv1.MutatingWebhookConfiguration
			if err := yaml.UnmarshalStrict(document, &c); err != nil {
				return w, fmt.Errorf("read MutatingWebhookConfiguration %s: %w", meta.Name, err)
			}
			w.mutating = c.Webhooks
			for i := range w.mutating {
				complete(&w.mutating[i], namespace, service)
			}
		case "ValidatingWebhookConfiguration":
			var c admissionregistrationv1.ValidatingWebhookConfiguration
			if err := yaml.UnmarshalStrict(document, &c); err != nil {
				return w, fmt.Errorf("read ValidatingWebhookConfiguration %s: %w", meta.Name, err)
			}
			for i := range c.Webhooks {
				one := fromValidating(c.Webhooks[i])
				complete(&one, namespace, service)
				c.Webhooks[i] = toValidating(one)
			}
			w.validating[meta.Name] = c.Webhooks
		}
	}
	if len(w.mutating) == 0 || len(w.validating[validatingName]) == 0 || len(w.validating[configMapName]) == 0 {
		return w, fmt.Errorf("read the registrations: one of %s, %s and %s is missing", mutatingName, validatingName, configMapName)
	}
	return w, nil
}

// complete fills in what the API server would.
func complete(w *admissionregistrationv1.MutatingWebhook, namespace, service string) {
	if s := w.ClientConfig.Service; s != nil {
		s.Namespace, s.Name = namespace, service
		if s.Port == nil {
			s.Port = new(int32(443))
		}
	}
	if w.NamespaceSelector == nil {
		w.NamespaceSelector = &metav1.LabelSelector{}
	}
	if w.ObjectSelector == nil {
		w.ObjectSelector = &metav1.LabelSelector{}
	}
	if w.ReinvocationPolicy == nil {
		w.ReinvocationPolicy = new(admissionregistrationv1.NeverReinvocationPolicy)
	}
}

// A validating webhook is a mutating one without a reinvocation policy.
func fromValidating(v admissionregistrationv1.ValidatingWebhook) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{Name: v.Name, ClientConfig: v.ClientConfig, Rules: v.Rules, FailurePolicy: v.FailurePolicy,
		MatchPolicy: v.MatchPolicy, NamespaceSelector: v.NamespaceSelector, ObjectSelector: v.ObjectSelector, SideEffects: v.SideEffects,
		TimeoutSeconds: v.TimeoutSeconds, AdmissionReviewVersions: v.AdmissionReviewVersions, MatchConditions: v.MatchConditions}
}

func toValidating(m admissionregistrationv1.MutatingWebhook) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{Name: m.Name, ClientConfig: m.ClientConfig, Rules: m.Rules, FailurePolicy: m.FailurePolicy,
		MatchPolicy: m.MatchPolicy, NamespaceSelector: m.NamespaceSelector, ObjectSelector: m.ObjectSelector, SideEffects: m.SideEffects,
		TimeoutSeconds: m.TimeoutSeconds, AdmissionReviewVersions: m.AdmissionReviewVersions, MatchConditions: m.MatchConditions}
}

// register makes the three registrations what they are to be: which writes they are about, where
// they lead, and the bundle by which the API server knows this webhook. A registration that is not
// there yet is an error: without it nothing is judged, and that must show.
func (r *registrar) register(ctx context.Context, bundle []byte) error {
	want, err := readWanted(shipped, r.namespace, r.service)
	if err != nil {
		return err
	}
	api := r.client.AdmissionregistrationV1()
	mutating, err := api.MutatingWebhookConfigurations().Get(ctx, mutatingName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read MutatingWebhookConfiguration %s: %w", mutatingName, err)
	}
	for i := range want.mutating {
		want.mutating[i].ClientConfig.CABundle = bundle
	}
	if !equality.Semantic.DeepEqual(mutating.Webhooks, want.mutating) {
		r.mended(mutatingName, len(mutating.Webhooks) > 0 && len(mutating.Webhooks[0].ClientConfig.CABundle) > 0)
		mutating.Webhooks = want.mutating
		if _, err := api.MutatingWebhookConfigurations().Update(ctx, mutating, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update MutatingWebhookConfiguration %s: %w", mutatingName, err)
		}
	}
	for _, name := range []string{validatingName, configMapName} {
		validating, err := api.ValidatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read ValidatingWebhookConfiguration %s: %w", name, err)
		}
		webhooks := want.validating[name]
		for i := range webhooks {
			webhooks[i].ClientConfig.CABundle = bundle
		}
		if !equality.Semantic.DeepEqual(validating.Webhooks, webhooks) {
			r.mended(name, len(validating.Webhooks) > 0 && len(validating.Webhooks[0].ClientConfig.CABundle) > 0)
			validating.Webhooks = webhooks
			if _, err := api.ValidatingWebhookConfigurations().Update(ctx, validating, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("update ValidatingWebhookConfiguration %s: %w", name, err)
			}
		}
	}
	return nil
}

// mended tells somebody who edits a registration by hand why the edit does not stay.
func (r *registrar) mended(name string, before bool) {
	if before {
		r.log.Info("a registration of the webhook differs from what this version needs; restoring it", "registration", name)
	}
}
