package sidecar

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ebb.dev/ebb/internal/testing/certificate"
	"ebb.dev/ebb/wire"
)

// writeCertificate writes both files, one after the other as no kubelet would.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	cert, key := certificate.PEM(certificate.Make(x509.Certificate{SerialNumber: big.NewInt(7)}, nil))
	for _, f := range []struct {
		name string
		text []byte
	}{{"tls.key", key}, {"tls.crt", cert}} {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// addresses passes on the address of each line of the log that has one, with its message.
type addresses chan [2]string

func (a addresses) Write(line []byte) (int, error) {
	var entry struct{ Msg, Address string }
	if json.Unmarshal(line, &entry) == nil && entry.Address != "" {
		a <- [2]string{entry.Msg, entry.Address}
	}
	return len(line), nil
}

func TestACertificateThatAppearsLaterIsServed(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(hello))
	defer backend.Close()
	cfg := &wire.Sidecar{
		Place: wire.Place{Namespace: "ns", Revision: "rev-00001", Pod: "pod"}, Ports: wire.Ports{UserPort: port(backend.Listener)},
		Limits: wire.Limits{Timeout: 30 * time.Second}, DrainQuiet: 10 * time.Millisecond, CertDir: t.TempDir(),
	}
	said := make(addresses, 10)
	s, err := Listen(cfg, slog.New(slog.NewJSONHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.certs = time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	if first := <-said; first[0] != "queue-proxy serves" {
		t.Errorf("without a certificate it says %q", first)
	}
	writeCertificate(t, cfg.CertDir)
	later := <-said
	_, tlsPort, err := net.SplitHostPort(later[1])
	if err != nil {
		t.Fatalf("%q: %v", later, err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Get("https://127.0.0.1:" + tlsPort)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || string(body) != "hello" || response.TLS.PeerCertificates[0].SerialNumber.Int64() != 7 {
		t.Errorf("got %q, %v", body, err)
	}
	client.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", "127.0.0.1:"+tlsPort); err == nil {
		c.Close()
		t.Error("the TLS port is open after the end")
	}
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
