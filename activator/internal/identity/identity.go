// Package identity holds the activator's TLS certificate and verifies the certificates of pods.
//
// Owns: the certificate that gateways see, and the pool of trusted authorities. Reads: the Secret
// routing-serving-certs and the ConfigMaps with the trust bundle label, in the system namespace.
// Writes: nothing. Never: replaces a valid certificate by an invalid or a missing one.
package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/names"
)

// Names of certificates and objects (contract section 6.2).
const (
	Secret       = "routing-serving-certs"
	DataPlane    = "data-plane.knative.dev" // the server name of every pod
	PodSANPrefix = "kn-user-"               // and the namespace
)

// Identity is made by Watch.
type Identity struct {
	log   *slog.Logger
	pair  atomic.Pointer[tls.Certificate]
	roots atomic.Pointer[x509.CertPool]
	known chan struct{} // closed with the first pair

	// Untrusted counts pods whose certificate was not trusted.
	Untrusted atomic.Int64
	warned    atomic.Int64 // unix nanoseconds of the last log line about an untrusted pod

	mutex   sync.Mutex
	shown   []byte // the PEM of pair, to tell a renewal from a repetition
	ca      []byte
	bundles map[string][]byte
}

// Watch follows the objects until ctx ends. It returns at once, before they are read.
func Watch(ctx context.Context, kube kubernetes.Interface, namespace string, log *slog.Logger) (*Identity, error) {
	i := &Identity{log: log, known: make(chan struct{}), bundles: map[string][]byte{}}
	named := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", Secret).String()
		}))
	labelled := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = names.TrustBundleLabel + "=true" }))
	if _, err := named.Core().V1().Secrets().Informer().AddEventHandler(handler(func(o any, gone bool) {
		if s, ok := o.(*corev1.Secret); ok && !gone && s.Name == Secret {
			i.secret(s.Data)
		}
	})); err != nil {
		return nil, fmt.Errorf("watch Secret %s/%s: %w", namespace, Secret, err)
	}
	if _, err := labelled.Core().V1().ConfigMaps().Informer().AddEventHandler(handler(func(o any, gone bool) {
		if m, ok := o.(*corev1.ConfigMap); ok {
			i.bundle(m, gone)
		}
	})); err != nil {
		return nil, fmt.Errorf("watch trust bundles of %s: %w", namespace, err)
	}
	named.Start(ctx.Done())
	labelled.Start(ctx.Done())
	return i, nil
}

// Ends returns the end of the certificate for gateways, if there is one, by the name of its Secret.
func (i *Identity) Ends() map[string]time.Time {
	if pair := i.pair.Load(); pair != nil {
		return map[string]time.Time{Secret: pair.Leaf.NotAfter}
	}
	return nil
}

func handler(seen func(o any, gone bool)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen(o, false) },
		UpdateFunc: func(_, o any) { seen(o, false) },
		DeleteFunc: func(o any) {
			if left, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = left.Obj
			}
			seen(o, true)
		},
	}
}

// secret loads the certificate, and the authority that signs the certificates of pods.
func (i *Identity) secret(data map[string][]byte) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if ca := data["ca.crt"]; len(ca) > 0 && !bytes.Equal(ca, i.ca) {
		i.ca = ca
		i.gatherLocked()
	}
	shown := slices.Concat(data["tls.crt"], data["tls.key"])
	if len(shown) == 0 || bytes.Equal(shown, i.shown) {
		return
	}
	pair, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"])
	if err != nil {
		i.log.Error("invalid certificate for gateways; keeping the previous one", "secret", Secret, "error", err)
		return
	}
	i.shown = shown
	first := i.pair.Swap(&pair) == nil
	i.log.Info("loaded a new certificate for gateways", "secret", Secret, "not_after", pair.Leaf.NotAfter)
	if first {
		close(i.known)
	}
}

func (i *Identity) bundle(m *corev1.ConfigMap, gone bool) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	delete(i.bundles, m.Name)
	if !gone {
		var all []byte
		for _, key := range slices.Sorted(maps.Keys(m.Data)) {
			all = append(append(all, m.Data[key]...), '\n')
		}
		i.bundles[m.Name] = all
	}
	i.gatherLocked()
}

// gatherLocked builds the pool of authorities that may sign certificates of pods.
func (i *Identity) gatherLocked() {
	pool := x509.NewCertPool()
	found := pool.AppendCertsFromPEM(i.ca)
	for _, pem := range i.bundles {
		found = pool.AppendCertsFromPEM(pem) || found
	}
	if !found {
		pool = nil
	}
	i.roots.Store(pool)
}

// Known is closed as soon as there is a certificate to show.
func (i *Identity) Known() <-chan struct{} { return i.known }

// Certificate is a tls.Config.GetCertificate: each handshake shows the newest one.
func (i *Identity) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := i.pair.Load(); pair != nil {
		return pair, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// CanVerify returns whether an authority is known. Without one no pod can be verified.
func (i *Identity) CanVerify() bool { return i.roots.Load() != nil }

// UntrustedError means that the certificate at a pod's address is not that of a pod of the
// namespace.
type UntrustedError struct {
	Namespace string
	Err       error
}

func (e *UntrustedError) Error() string {
	return fmt.Sprintf("the certificate is not that of a pod of namespace %s: %v", e.Namespace, e.Err)
}
func (e *UntrustedError) Unwrap() error { return e.Err }

// Client returns the TLS configuration for connections to pods of a namespace.
func (i *Identity) Client(namespace string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: DataPlane,
		// VerifyConnection does the verification that is skipped here, with the current
		// authorities, and checks one more name.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			err := i.verify(state.PeerCertificates, namespace)
			if err == nil {
				return nil
			}
			i.Untrusted.Add(1)
			if now, last := time.Now().UnixNano(), i.warned.Load(); now-last > int64(time.Second) && i.warned.CompareAndSwap(last, now) {
				i.log.Error("the certificate of a pod is not trusted; sending no request to it", "namespace", namespace, "error", err)
			}
			return &UntrustedError{namespace, err}
		},
	}
}

func (i *Identity) verify(chain []*x509.Certificate, namespace string) error {
	roots := i.roots.Load()
	switch {
	case roots == nil:
		return errors.New("no authority is known")
	case len(chain) == 0:
		return errors.New("there is none")
	}
	options := x509.VerifyOptions{Roots: roots, DNSName: DataPlane, Intermediates: x509.NewCertPool()}
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(options); err != nil {
		return err
	}
	if want := PodSANPrefix + namespace; !slices.Contains(chain[0].DNSNames, want) {
		return fmt.Errorf("it names %q, not %s", chain[0].DNSNames, want)
	}
	return nil
}
