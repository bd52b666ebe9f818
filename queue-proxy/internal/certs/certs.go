// Package certs serves the pod's certificate and takes up the first and each renewed one without a
// restart.
//
// Owns: the certificate in use. Reads: tls.crt and tls.key in one directory, again and again.
// Writes: nothing.
package certs

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/tlsoptions"
)

// Files are the certificate and key of one directory.
type Files struct {
	dir  string
	cert atomic.Pointer[tls.Certificate]
	sum  [sha256.Size]byte
}

// Exist reports whether both files are there.
func Exist(dir string) bool {
	for _, name := range []string{"tls.crt", "tls.key"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// New reads nothing yet.
func New(dir string) *Files { return &Files{dir: dir} }

// Load reads the files for the first time.
func (f *Files) Load() error {
	_, err := f.reload()
	return err
}

// known says that there is a certificate to serve.
func (f *Files) known() bool { return f.cert.Load() != nil }

func (f *Files) reload() (changed bool, err error) {
	cert, err := os.ReadFile(filepath.Join(f.dir, "tls.crt"))
	if err != nil {
		return false, fmt.Errorf("read certificate: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(f.dir, "tls.key"))
	if err != nil {
		return false, fmt.Errorf("read key: %w", err)
	}
	h := sha256.New()
	h.Write(cert)
	h.Write(key)
	sum := [sha256.Size]byte(h.Sum(nil))
	if sum == f.sum {
		return false, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return false, fmt.Errorf("certificate in %s: %w", f.dir, err)
	}
	f.sum = sum
	f.cert.Store(&pair)
	return true, nil
}

// Watch looks for a first or renewed certificate every interval, until ctx ends. A broken one is
// reported, and the good one kept; that there is none yet is not.
func (f *Files) Watch(ctx context.Context, interval time.Duration, changed func(err error)) {
	_ = run.Every(ctx, interval, func(time.Time) error {
		if !f.known() && !Exist(f.dir) {
			return nil
		}
		if reloaded, err := f.reload(); reloaded || err != nil {
			changed(err)
		}
		return nil
	})
}

// Config is the server's TLS configuration, by the QUEUE_PROXY_TLS_* variables.
func (f *Files) Config(s tlsoptions.Settings) (*tls.Config, error) {
	cfg := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if cert := f.cert.Load(); cert != nil {
			return cert, nil
		}
		return nil, fmt.Errorf("%s holds no certificate yet", f.dir)
	}}
	return cfg, s.Apply(cfg, "QUEUE_PROXY_TLS_")
}
