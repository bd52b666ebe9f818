package coap

import (
	"context"
	"errors"
	"time"

	"github.com/pion/dtls/v3"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"

	"ebb.dev/ebb/coap/internal/peers"
)

// handshakeTimeout bounds a handshake. A client that sleeps between its flights has time for it.
const handshakeTimeout = 10 * time.Second

// shortestKey is the shortest key in bytes that the entry takes: 128 bits.
const shortestKey = 16

var errNoKey = errors.New("there is no key for the identity")

// serveSecure shakes hands with a peer and serves it. The cookie of DTLS proves that a peer reads
// what is sent to its address, the key who it is.
func (e *Entry) serveSecure(ctx context.Context, p *peers.Peer) {
	conn, err := dtls.ServerWithOptions(dtlsnet.PacketConnFromConn(p), p.RemoteAddr(),
		dtls.WithPSK(e.key),
		// Both are those of RFC 7252 section 9.1.3.1 or stronger, and take no certificate.
		dtls.WithCipherSuites(dtls.TLS_PSK_WITH_AES_128_CCM_8, dtls.TLS_PSK_WITH_AES_128_GCM_SHA256, dtls.TLS_ECDHE_PSK_WITH_AES_128_CBC_SHA256),
		dtls.WithExtendedMasterSecret(dtls.RequestExtendedMasterSecret),
		dtls.WithLoggerFactory(quiet{}),
	)
	if err != nil {
		e.metrics.failed(err)
		return
	}
	defer conn.Close()
	within, cancel := context.WithTimeout(ctx, handshakeTimeout)
	err = conn.HandshakeContext(within)
	cancel()
	if err != nil {
		e.metrics.failed(err)
		return
	}
	p.Prove()
	e.serve(ctx, p, conn)
}

// key is the key of an identity.
func (e *Entry) key(identity []byte) ([]byte, error) {
	if key := e.options.Keys()[string(identity)]; len(key) >= shortestKey {
		return key, nil
	}
	return nil, errNoKey
}
