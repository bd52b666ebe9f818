// Package pki makes the cluster's certificates.
//
// Owns: one folder of keys and certificates. Reads: the clock. Writes: files,
// keys readable by root alone. Never: replaces one that is still good.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A cluster is thrown away long before a certificate of this age runs out.
const validity = 365 * 24 * time.Hour

// Folder holds the certificates.
type Folder struct {
	Dir string
	Now func() time.Time
}

// Leaf describes a certificate that the folder's authority signs.
type Leaf struct {
	Name   string // of its files
	Common string
	Groups []string
	Hosts  []string // names and addresses; a certificate with some is for a server too
}

// Cert and Key are the paths of a leaf's files.
func (f Folder) Cert(name string) string { return filepath.Join(f.Dir, name+".crt") }

// Key is the path of a leaf's private key.
func (f Folder) Key(name string) string { return filepath.Join(f.Dir, name+".key") }

// Ensure makes the authority, the service account key and the leaves that are
// missing, soon out of date, or not what is asked for.
func (f Folder) Ensure(leaves []Leaf) error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return err
	}
	ca, caKey, fresh, err := f.authority()
	if err != nil {
		return err
	}
	if err := f.signingKey("service-account"); err != nil {
		return err
	}
	for _, l := range leaves {
		if !fresh && f.good(l, ca) {
			continue
		}
		if err := f.sign(l, ca, caKey); err != nil {
			return fmt.Errorf("certificate %s: %w", l.Name, err)
		}
	}
	return nil
}

func (f Folder) authority() (*x509.Certificate, *ecdsa.PrivateKey, bool, error) {
	cert, certErr := readCert(f.Cert("ca"))
	key, keyErr := readKey(f.Key("ca"))
	if certErr == nil && keyErr == nil && f.Now().Before(cert.NotAfter.Add(-validity/4)) && key.PublicKey.Equal(cert.PublicKey) {
		return cert, key, false, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, false, err
	}
	t, err := f.template(Leaf{Common: "ebb-dev"})
	if err != nil {
		return nil, nil, false, err
	}
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, false, err
	}
	if err := f.write("ca", der, key); err != nil {
		return nil, nil, false, err
	}
	cert, err = x509.ParseCertificate(der)
	return cert, key, true, err
}

// signingKey is the pair that signs service account tokens.
func (f Folder) signingKey(name string) error {
	if _, err := readKey(f.Key(name)); err == nil {
		if _, err := os.Stat(filepath.Join(f.Dir, name+".pub")); err == nil {
			return nil
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	if err := os.WriteFile(filepath.Join(f.Dir, name+".pub"), text, 0o644); err != nil {
		return err
	}
	return f.writeKey(name, key)
}

func (f Folder) sign(l Leaf, ca *x509.Certificate, caKey *ecdsa.PrivateKey) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t, err := f.template(l)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	return f.write(l.Name, der, key)
}

func (f Folder) template(l Leaf) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: l.Common, Organization: l.Groups},
		NotBefore:    f.Now().Add(-time.Hour), // clocks that are set back a little
		NotAfter:     f.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, h := range l.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	if len(l.Hosts) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return t, nil
}

// good says whether the leaf on disk is what is asked for.
func (f Folder) good(l Leaf, ca *x509.Certificate) bool {
	cert, err := readCert(f.Cert(l.Name))
	if err != nil || cert.CheckSignatureFrom(ca) != nil || f.Now().After(cert.NotAfter.Add(-validity/4)) {
		return false
	}
	key, err := readKey(f.Key(l.Name))
	if err != nil || !key.PublicKey.Equal(cert.PublicKey) {
		return false
	}
	for _, h := range l.Hosts {
		if cert.VerifyHostname(h) != nil {
			return false
		}
	}
	return cert.Subject.CommonName == l.Common && slices.Equal(cert.Subject.Organization, l.Groups)
}

func (f Folder) write(name string, der []byte, key *ecdsa.PrivateKey) error {
	if err := f.writeKey(name, key); err != nil {
		return err
	}
	return os.WriteFile(f.Cert(name), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func (f Folder) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(f.Key(name), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func readCert(file string) (*x509.Certificate, error) {
	der, err := block(file)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func readKey(file string) (*ecdsa.PrivateKey, error) {
	der, err := block(file)
	if err != nil {
		return nil, err
	}
	return x509.ParseECPrivateKey(der)
}

func block(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	b, _ := pem.Decode(text)
	if b == nil {
		return nil, errors.New(file + " is not in PEM form")
	}
	return b.Bytes, nil
}
