// Package certificate makes keys and certificates for tests.
//
// Owns, reads, writes: nothing. Never: makes a certificate for anybody else.
package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"time"
)

// Make returns a new key and its certificate, which another one has signed, or, if that is nil, its
// own key. Without serial number and times, it has the number 1 and holds from an hour ago for two.
// It panics if the template is wrong.
func Make(template x509.Certificate, by *tls.Certificate) tls.Certificate {
	if template.SerialNumber == nil {
		template.SerialNumber = big.NewInt(1)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	parent, signer := &template, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der := must(x509.CreateCertificate(rand.Reader, &template, parent, key.Public(), signer))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: must(x509.ParseCertificate(der))}
}

// PEM returns both as files and Secrets have them.
func PEM(c tls.Certificate) (cert, key []byte) {
	private := must(x509.MarshalPKCS8PrivateKey(c.PrivateKey))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

func must[V any](value V, err error) V {
	if err != nil {
		panic(err)
	}
	return value
}
