package frontproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/internal/testing/certificate"
)

// authority signs certificates.
type authority struct{ tls.Certificate }

func newAuthority() *authority {
	a := &authority{}
	a.Certificate = a.sign("authority", x509.ExtKeyUsageAny, time.Hour)
	return a
}

func (a *authority) sign(name string, usage x509.ExtKeyUsage, lasts time.Duration) tls.Certificate {
	template := x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-2 * time.Hour),
		NotAfter: time.Now().Add(lasts), ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true, IsCA: a.Leaf == nil, KeyUsage: x509.KeyUsageCertSign}
	if a.Leaf == nil {
		return certificate.Make(template, nil)
	}
	return certificate.Make(template, &a.Certificate)
}

func (a *authority) configMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: ConfigMap}, Data: map[string]string{
		"requestheader-client-ca-file":       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Leaf.Raw})),
		"requestheader-allowed-names":        `["front-proxy-client"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func TestOnlyTheAPIServerSaysWhoAsks(t *testing.T) {
	ours, another := newAuthority(), newAuthority()
	d := New(fake.NewClientset(ours.configMap()), quiet())
	request := func(cert *x509.Certificate) *http.Request {
		r := &http.Request{Header: http.Header{"X-Remote-User": {"ada"}, "X-Remote-Group": {"dev", "ops"}, "X-Remote-Extra-Example.com%2fscope": {"a", "b"}}}
		if cert != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		}
		return r
	}
	good := ours.sign("front-proxy-client", x509.ExtKeyUsageClientAuth, time.Hour).Leaf
	if _, err := d.Caller(request(good)); !errors.Is(err, ErrStranger) {
		t.Errorf("before the authority is known: %v", err)
	}
	if err := d.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Verify(*request(good).TLS); err != nil {
		t.Errorf("the API server's connection: %v", err)
	}
	u, err := d.Caller(request(good))
	if err != nil || u.Name != "ada" || len(u.Groups) != 2 || len(u.Extra["example.com/scope"]) != 2 {
		t.Errorf("%+v %v", u, err)
	}
	nameless := request(good)
	nameless.Header.Del("X-Remote-User")
	forged := another.sign("front-proxy-client", x509.ExtKeyUsageClientAuth, time.Hour).Leaf
	user := ours.sign("ada", x509.ExtKeyUsageClientAuth, time.Hour).Leaf
	server := ours.sign("front-proxy-client", x509.ExtKeyUsageServerAuth, time.Hour).Leaf
	old := ours.sign("front-proxy-client", x509.ExtKeyUsageClientAuth, -time.Hour).Leaf
	for name, r := range map[string]*http.Request{"no certificate": request(nil), "another authority's": request(forged), "a user's": request(user),
		"a server's": request(server), "one that ended": request(old), "without a user": nameless} {
		if u, err := d.Caller(r); !errors.Is(err, ErrStranger) {
			t.Errorf("%s: %+v %v", name, u, err)
		}
		connection := tls.ConnectionState{}
		if r.TLS != nil {
			connection = *r.TLS
		}
		if err := d.Verify(connection); name != "without a user" && !errors.Is(err, ErrStranger) {
			t.Errorf("%s: the handshake says %v", name, err)
		}
	}
}

func TestAnAnswerAboutRightsCountsForTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allowed, asked := true, 0
		kube := fake.NewClientset()
		kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			asked++
			review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			review.Status.Allowed = allowed && review.Spec.User == "ada" && review.Spec.ResourceAttributes.Namespace == "shop"
			return true, review, nil
		})
		d := New(kube, quiet())
		may := func(user, namespace string) bool {
			ok, _, err := d.May(context.Background(), User{Name: user}, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get"})
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		if !may("ada", "shop") || may("ada", "bank") || may("bob", "shop") || !may("ada", "shop") || asked != 3 {
			t.Errorf("%d reviews", asked)
		}
		allowed = false
		if !may("ada", "shop") {
			t.Error("the answer did not count")
		}
		time.Sleep(remembered)
		if may("ada", "shop") {
			t.Error("the answer counts for too long")
		}
	})
}

func TestAnInvalidConfigMapChangesNothing(t *testing.T) {
	ours := newAuthority()
	for key, text := range map[string]string{"requestheader-client-ca-file": "x", "requestheader-allowed-names": "x", "requestheader-username-headers": "[]"} {
		c := ours.configMap()
		c.Data[key] = text
		if _, err := parse(c); err == nil {
			t.Errorf("%s may be %q", key, text)
		}
	}
}
