// Package servingcert looks after a certificate that a component serves the API server with.
//
// Owns: one Secret (its key, certificate and authority). Reads: it, by name. Writes: it, and by
// Options.Register the objects that name the authority, only when they differ from what they must
// be. Never: caches other Secrets, or needs a leader: replicas do the same, and a conflict means
// that another was first.
package servingcert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The keys of the Secret, as in Knative.
const (
	ServerKey  = "server-key.pem"
	ServerCert = "server-cert.pem"
	CACert     = "ca-cert.pem"
	// previousCA is the authority before the last rotation. It stays in the bundles, because
	// replicas and API servers learn of a rotation at different moments.
	previousCA = "previous-ca-cert.pem"
)

const (
	// Lifetime is that of a certificate.
	Lifetime = 7 * 24 * time.Hour
	// behind is how far the clock of an API server may be behind this one's: it trusts no
	// certificate before its time.
	behind = time.Hour
	// RenewBefore is how long before its end a certificate is replaced.
	RenewBefore = 24 * time.Hour
	// Settle is for how long a replica goes on with the old certificate after a rotation, so that
	// the bundles are everywhere before the new one is.
	Settle = 15 * time.Second
	// checkEvery is how soon a deleted Secret or an overwritten bundle is mended.
	checkEvery = 10 * time.Second
	retryEvery = time.Second
)

// Options are what a Rotator works with.
type Options struct {
	Client kubernetes.Interface
	// Namespace is that of the Secret and the Service, which the API server calls.
	Namespace, Service, Secret string
	// Register has API servers trust the authorities in a bundle.
	Register func(ctx context.Context, bundle []byte) error
	Log      *slog.Logger
	Now      func() time.Time
}

// Rotator makes the certificate, renews it and hands it to the server.
type Rotator struct {
	Options

	serving atomic.Pointer[tls.Certificate]
	ready   atomic.Bool

	// pem is what serving was made of; pending is what it is to become at switchAt. Only Run's
	// goroutine uses them.
	pem, pending pair
	switchAt     time.Time
}

type pair struct{ key, cert string }

// New returns a Rotator.
func New(o Options) *Rotator { return &Rotator{Options: o} }

// Ready tells whether there is a certificate and the API server was told to trust it.
func (k *Rotator) Ready() bool { return k.ready.Load() }

// Ends returns the end of the certificate that is served, by the name of its Secret.
func (k *Rotator) Ends() map[string]time.Time {
	if c := k.serving.Load(); c != nil {
		return map[string]time.Time{k.Secret: c.Leaf.NotAfter}
	}
	return nil
}

// Certificate is the tls.Config callback.
func (k *Rotator) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.serving.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// Run keeps the certificate and the bundles until ctx ends.
func (k *Rotator) Run(ctx context.Context) error {
	for {
		wait := checkEvery
		if err := k.Check(ctx); err != nil && ctx.Err() == nil {
			k.Log.Warn("cannot check the certificate; trying again", "secret", k.Secret, "error", err)
			wait = retryEvery
		} else if !k.switchAt.IsZero() {
			wait = min(wait, max(k.switchAt.Sub(k.Now()), retryEvery))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Check brings the Secret, the bundles and what is served in order, once.
func (k *Rotator) Check(ctx context.Context) error {
	secret, err := k.secret(ctx)
	if err != nil {
		return err
	}
	bundle := bytes.Clone(secret.Data[CACert])
	if old := secret.Data[previousCA]; len(old) > 0 {
		bundle = append(bundle, old...)
	}
	if err := k.Register(ctx, bundle); err != nil {
		return err
	}
	if err := k.serve(secret); err != nil {
		return err
	}
	k.ready.Store(true)
	return nil
}

// secret returns the Secret with a certificate that is good for a while, made anew if need be.
func (k *Rotator) secret(ctx context.Context) (*corev1.Secret, error) {
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	stored, err := secrets.Get(ctx, k.Secret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		stored = nil
	case err != nil:
		return nil, fmt.Errorf("read Secret %s/%s: %w", k.Namespace, k.Secret, err)
	case k.usable(stored.Data) == nil:
		return stored, nil
	}
	data, err := k.create()
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	if stored == nil {
		created, err := secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: k.Secret, Namespace: k.Namespace}, Data: data,
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("create Secret %s/%s: %w", k.Namespace, k.Secret, err)
		}
		k.Log.Info("created the certificate", "secret", k.Secret)
		return created, nil
	}
	if old := stored.Data[CACert]; len(old) > 0 && isCertificate(old) {
		data[previousCA] = old
	}
	changed := stored.DeepCopy()
	changed.Data = data
	// The resource version makes one replica the first; the others read what it wrote at their next
	// try.
	updated, err := secrets.Update(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update Secret %s/%s: %w", k.Namespace, k.Secret, err)
	}
	k.Log.Info("renewed the certificate", "secret", k.Secret)
	return updated, nil
}

// create returns the content of a new Secret, but for what a rotation keeps. The certificate is its
// own authority, and its key signs no other.
func (k *Rotator) create() (map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: k.host()}, DNSNames: []string{k.host()},
		NotBefore: k.Now().Add(-behind), NotAfter: k.Now().Add(Lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return map[string][]byte{ServerKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), ServerCert: cert, CACert: cert}, nil
}

// host is the name by which the API server calls the component.
func (k *Rotator) host() string { return k.Service + "." + k.Namespace + ".svc" }

// usable says why a stored certificate cannot be served with for long enough.
func (k *Rotator) usable(data map[string][]byte) error {
	certificate, err := tls.X509KeyPair(data[ServerCert], data[ServerKey])
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(certificate.Certificate[0])
	if err != nil {
		return err
	}
	if k.Now().Add(RenewBefore).After(leaf.NotAfter) {
		return errors.New("it ends soon")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data[CACert]) {
		return errors.New("its authority is missing")
	}
	// A replica whose clock is behind must not take another's new certificate for a bad one and
	// replace it.
	at := k.Now()
	if at.Before(leaf.NotBefore) {
		at = leaf.NotBefore
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: roots, DNSName: k.host(), CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

func isCertificate(text []byte) bool {
	block, _ := pem.Decode(text)
	if block == nil {
		return false
	}
	_, err := x509.ParseCertificate(block.Bytes)
	return err == nil
}

// serve switches to the stored certificate: after a while if the one that is served works, at once
// otherwise.
func (k *Rotator) serve(secret *corev1.Secret) error {
	stored := pair{string(secret.Data[ServerKey]), string(secret.Data[ServerCert])}
	if stored == k.pem {
		k.switchAt = time.Time{}
		return nil
	}
	if served := k.serving.Load(); served != nil && k.Now().Before(served.Leaf.NotAfter) {
		if stored != k.pending {
			k.pending, k.switchAt = stored, k.Now().Add(Settle)
		}
		if k.Now().Before(k.switchAt) {
			return nil
		}
	}
	certificate, err := tls.X509KeyPair([]byte(stored.cert), []byte(stored.key))
	if err != nil {
		return fmt.Errorf("read the certificate in Secret %s/%s: %w", k.Namespace, k.Secret, err)
	}
	k.serving.Store(&certificate)
	k.pem, k.pending, k.switchAt = stored, pair{}, time.Time{}
	return nil
}
