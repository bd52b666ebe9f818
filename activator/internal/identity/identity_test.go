package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/internal/testing/certificate"
	"ebb.dev/ebb/test/apiservertest"
)

// authority signs certificates for a test.
type authority struct {
	tls.Certificate
	pem []byte
}

func newAuthority() *authority {
	made := certificate.Make(x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	cert, _ := certificate.PEM(made)
	return &authority{made, cert}
}

// sign returns the content of a Secret.
func (a *authority) sign(serial int64, expires time.Duration, dnsNames ...string) map[string][]byte {
	cert, key := certificate.PEM(certificate.Make(x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: dnsNames,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(expires)}, &a.Certificate))
	return map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": a.pem}
}

func newIdentity() *Identity {
	return &Identity{log: slog.New(slog.DiscardHandler), known: make(chan struct{}), bundles: map[string][]byte{}}
}

// handshake lets a client and a server meet.
func handshake(t *testing.T, client, server *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
		ended <- err
	}()
	conn, err := tls.Dial("tcp", listener.Addr().String(), client)
	state := tls.ConnectionState{}
	if err == nil {
		state = conn.ConnectionState()
		conn.Close()
	}
	<-ended
	listener.Close()
	return state, err
}

func serverOf(t *testing.T, data map[string][]byte) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

func TestOnlyPodsOfTheNamespaceAreBelieved(t *testing.T) {
	ours, theirs := newAuthority(), newAuthority()
	for _, c := range []struct {
		name   string
		shown  map[string][]byte
		bundle []byte
		good   bool
	}{
		{"a pod of the namespace", ours.sign(1, time.Hour, DataPlane, "kn-user-ns"), nil, true},
		{"a pod of another namespace", ours.sign(1, time.Hour, DataPlane, "kn-user-other"), nil, false},
		{"a namespace without the common name", ours.sign(1, time.Hour, "kn-user-ns"), nil, false},
		{"an expired certificate", ours.sign(1, -time.Hour, DataPlane, "kn-user-ns"), nil, false},
		{"somebody else's authority", theirs.sign(1, time.Hour, DataPlane, "kn-user-ns"), nil, false},
		{"an authority of a trust bundle", theirs.sign(1, time.Hour, DataPlane, "kn-user-ns"), theirs.pem, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := newIdentity()
			if i.CanVerify() {
				t.Error("it can verify before it knows an authority")
			}
			i.secret(ours.sign(9, time.Hour, "kn-routing"))
			if c.bundle != nil {
				i.bundle(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{"a.pem": "\n", "b.pem": string(c.bundle)}}, false)
			}
			_, err := handshake(t, i.Client("ns"), serverOf(t, c.shown))
			var untrusted *UntrustedError
			if c.good != (err == nil) || err != nil && !errors.As(err, &untrusted) {
				t.Errorf("got error %v", err)
			}
			if want := map[bool]int64{true: 0, false: 1}[c.good]; i.Untrusted.Load() != want {
				t.Errorf("%d pods were counted, want %d", i.Untrusted.Load(), want)
			}
		})
	}
}

func TestABundleThatGoesIsNotTrustedAnyMore(t *testing.T) {
	i, a := newIdentity(), newAuthority()
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{"ca": string(a.pem)}}
	server := serverOf(t, a.sign(1, time.Hour, DataPlane, "kn-user-ns"))
	client := i.Client("ns")
	i.bundle(bundle, false)
	if _, err := handshake(t, client, server); err != nil {
		t.Fatal(err)
	}
	i.bundle(bundle, true)
	if _, err := handshake(t, client, server); err == nil || i.CanVerify() {
		t.Errorf("it is still trusted: %v", err)
	}
}

func TestGatewaysSeeARenewedCertificateAtOnceAndNeverABadOne(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := newAuthority()
	kube := fake.NewClientset()
	watched := apiservertest.Watches(t, kube)
	i, err := Watch(ctx, kube, "sys", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	watched(2)
	if _, err := i.Certificate(nil); err == nil || i.Ends() != nil {
		t.Error("there is a certificate before there is a Secret")
	}
	secrets := kube.CoreV1().Secrets("sys")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: Secret, Namespace: "sys"}, Data: a.sign(1, time.Hour, "kn-routing")}
	if _, err := secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-i.Known()
	client := func() *tls.Config {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(a.pem)
		return &tls.Config{ServerName: "kn-routing", RootCAs: roots}
	}
	server := &tls.Config{GetCertificate: i.Certificate}
	serial := func() int64 {
		state, err := handshake(t, client(), server)
		if err != nil {
			t.Fatal(err)
		}
		return state.PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Fatalf("gateways see certificate %d", got)
	}
	if left := time.Until(i.Ends()[Secret]); left <= 0 || left > time.Hour {
		t.Errorf("it ends in %v", left)
	}
	good := i.pair.Load()
	secret.Data = map[string][]byte{"tls.crt": []byte("junk"), "tls.key": secret.Data["tls.key"], "ca.crt": a.pem}
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret.Data = a.sign(2, time.Hour, "kn-routing")
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i.pair.Load() == good {
		<-tick.C
	}
	if got := serial(); got != 2 {
		t.Errorf("after the renewal gateways see certificate %d", got)
	}
	if err := secrets.Delete(ctx, Secret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got != 2 {
		t.Errorf("without the Secret gateways see certificate %d", got)
	}
}
