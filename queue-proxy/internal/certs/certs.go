// Package certs serves the pod's certificate and takes up a renewed one without a restart.
//
// Owns: the certificate in use. Reads: tls.crt and tls.key in one directory, once a minute. Writes: nothing.
package certs

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
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

// Load reads the files for the first time.
func Load(dir string) (*Files, error) {
	f := &Files{dir: dir}
	if _, err := f.reload(); err != nil {
		return nil, err
	}
	return f, nil
}

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

// Watch looks for a renewed certificate every interval, until ctx ends. A broken one is reported, and the good one kept.
func (f *Files) Watch(ctx context.Context, interval time.Duration, changed func(err error)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if new, err := f.reload(); new || err != nil {
			changed(err)
		}
	}
}

// Settings are the QUEUE_PROXY_TLS_* variables.
type Settings struct{ MinVersion, MaxVersion, CipherSuites, CurvePreferences string }

// Config is the server's TLS configuration. TLS 1.3 is the default minimum.
func (f *Files) Config(s Settings) (*tls.Config, error) {
	cfg := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.cert.Load(), nil },
	}
	var err error
	if s.MinVersion != "" {
		if cfg.MinVersion, err = version(s.MinVersion); err != nil {
			return nil, fmt.Errorf("QUEUE_PROXY_TLS_MIN_VERSION: %w", err)
		}
	}
	if s.MaxVersion != "" {
		if cfg.MaxVersion, err = version(s.MaxVersion); err != nil {
			return nil, fmt.Errorf("QUEUE_PROXY_TLS_MAX_VERSION: %w", err)
		}
	}
	for name := range list(s.CipherSuites) {
		id, ok := suite(name)
		if !ok {
			return nil, fmt.Errorf("QUEUE_PROXY_TLS_CIPHER_SUITES: no suite is named %q", name)
		}
		cfg.CipherSuites = append(cfg.CipherSuites, id)
	}
	curves := map[string]tls.CurveID{
		"CurveP256": tls.CurveP256, "CurveP384": tls.CurveP384, "CurveP521": tls.CurveP521, "X25519": tls.X25519,
		"X25519MLKEM768": tls.X25519MLKEM768,
	}
	for name := range list(s.CurvePreferences) {
		id, ok := curves[name]
		if !ok {
			return nil, fmt.Errorf("QUEUE_PROXY_TLS_CURVE_PREFERENCES: no curve is named %q", name)
		}
		cfg.CurvePreferences = append(cfg.CurvePreferences, id)
	}
	return cfg, nil
}

func version(text string) (uint16, error) {
	switch text {
	case "1.2":
		return tls.VersionTLS12, nil
	case "1.3":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("%q is neither 1.2 nor 1.3", text)
}

func suite(name string) (uint16, bool) {
	for _, s := range tls.CipherSuites() {
		if s.Name == name {
			return s.ID, true
		}
	}
	return 0, false
}

func list(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" && !yield(part) {
				return
			}
		}
	}
}
