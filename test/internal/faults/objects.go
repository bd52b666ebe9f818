package faults

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
)

const halfMinute = 30 * time.Second

// replaceGateway replaces the pods of the gateways as an upgrade does.
func (s Set) replaceGateway(ctx context.Context) error {
	deployments, err := s.GatewayDeployments(ctx)
	if err != nil {
		return err
	}
	for _, d := range deployments {
		patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"ebb.dev/replaced":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
		if _, err := s.Kube.AppsV1().Deployments(d.Namespace).Patch(ctx, d.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
		// One after another: a small node has no room for two more pods.
		if err := s.rolledOut(ctx, d.Namespace, d.Name); err != nil {
			return err
		}
	}
	return nil
}

func (s Set) rolledOut(ctx context.Context, namespace, name string) error {
	return cluster.Until(ctx, func() (bool, string, error) {
		d, err := s.Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		n := *d.Spec.Replicas
		done := d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas == n && d.Status.Replicas == n && d.Status.AvailableReplicas == n
		return done, fmt.Sprintf("%s: %d of %d pods are available", name, d.Status.AvailableReplicas, n), nil
	})
}

// dnsAway removes the pods of the cluster's DNS for a time.
func (s Set) dnsAway(ctx context.Context) error {
	const namespace, name = "kube-system", "coredns"
	scale := func(ctx context.Context, n int32) error {
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
		_, err := s.Kube.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	before, err := s.Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err = scale(ctx, 0); err == nil {
		s.last(ctx, time.Minute)
	}
	mend, cancel := mending(ctx)
	defer cancel()
	return errors.Join(err, scale(mend, max(*before.Spec.Replicas, 1)), s.rolledOut(mend, namespace, name))
}

// The Secret with the webhook's certificate, and its keys.
const (
	webhookSecret = "webhook-certs"
	certificate   = "server-cert.pem"
	privateKey    = "server-key.pem"
)

// expireCertificate puts an expired certificate into the webhook's Secret and returns when the
// webhook has replaced it.
func (s Set) expireCertificate(ctx context.Context) error {
	key, cert, err := expired()
	if err != nil {
		return err
	}
	secrets := s.Kube.CoreV1().Secrets(cluster.System)
	secret, err := secrets.Get(ctx, webhookSecret, metav1.GetOptions{})
	if err != nil {
		return err
	}
	secret.Data[certificate], secret.Data[privateKey] = cert, key
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return cluster.Until(ctx, func() (bool, string, error) {
		now, err := secrets.Get(ctx, webhookSecret, metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		block, _ := pem.Decode(now.Data[certificate])
		if block == nil {
			return false, "the Secret has no certificate", nil
		}
		current, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return false, err.Error(), nil
		}
		return time.Now().Before(current.NotAfter), fmt.Sprintf("the certificate expired at %s", current.NotAfter), nil
	})
}

// expired returns a key and a certificate of the webhook that ended a minute ago.
func expired() (key, cert []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"webhook." + cluster.System + ".svc"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
