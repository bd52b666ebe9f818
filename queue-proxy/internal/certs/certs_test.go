package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ebb.dev/ebb/internal/testing/certificate"
	"ebb.dev/ebb/internal/tlsoptions"
)

func write(t *testing.T, dir string, serial int64) {
	t.Helper()
	cert, key := certificate.PEM(certificate.Make(x509.Certificate{SerialNumber: big.NewInt(serial)}, nil))
	for name, text := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARenewedCertificateIsTakenUpAndABrokenOneIsNot(t *testing.T) {
	dir := t.TempDir()
	if Exist(dir) {
		t.Error("an empty directory has a certificate")
	}
	write(t, dir, 1)
	files := New(dir)
	if err := files.Load(); err != nil || !Exist(dir) {
		t.Fatal(err)
	}
	cfg, err := files.Config(tlsoptions.Settings{})
	if err != nil || cfg.MinVersion != tls.VersionTLS13 {
		t.Fatalf("%v, minimum %x", err, cfg.MinVersion)
	}
	serial := func() int64 {
		cert, err := cfg.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return parsed.SerialNumber.Int64()
	}
	if n := serial(); n != 1 {
		t.Fatalf("serial %d", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan error)
	done := make(chan bool)
	write(t, dir, 2)
	go func() {
		files.Watch(ctx, time.Millisecond, func(err error) {
			select {
			case changed <- err:
			case <-ctx.Done():
			}
		})
		close(done)
	}()
	if err := <-changed; err != nil || serial() != 2 {
		t.Errorf("after the renewal: %v, serial %d", err, serial())
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for err := range changed { // a look between the writes of two files may have seen one of them only
		if err != nil {
			break
		}
	}
	if serial() != 2 {
		t.Errorf("a broken certificate replaced the good one: serial %d", serial())
	}
	cancel()
	<-done
}
