package faults

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/internal/testing/certificate"
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
		if err := s.AwaitDeployment(ctx, d.Namespace, d.Name); err != nil {
			return err
		}
	}
	return nil
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
	return errors.Join(err, scale(mend, max(*before.Spec.Replicas, 1)), s.AwaitDeployment(mend, namespace, name))
}

// The Secret with the webhook's certificate, and its keys.
const (
	webhookSecret = "webhook-certs"
	serverCert    = "server-cert.pem"
	serverKey     = "server-key.pem"
)

// expireCertificate puts an expired certificate into the webhook's Secret and returns when the
// webhook has replaced it.
func (s Set) expireCertificate(ctx context.Context) error {
	// Its own, which ended a minute ago.
	cert, key := certificate.PEM(certificate.Make(x509.Certificate{DNSNames: []string{"webhook." + cluster.System + ".svc"}, NotAfter: time.Now().Add(-time.Minute)}, nil))
	secrets := s.Kube.CoreV1().Secrets(cluster.System)
	secret, err := secrets.Get(ctx, webhookSecret, metav1.GetOptions{})
	if err != nil {
		return err
	}
	secret.Data[serverCert], secret.Data[serverKey] = cert, key
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return cluster.Until(ctx, func() (bool, string, error) {
		now, err := secrets.Get(ctx, webhookSecret, metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		block, _ := pem.Decode(now.Data[serverCert])
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
