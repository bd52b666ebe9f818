// Package probe asks the user container whether it is ready: over HTTP, TCP or gRPC, as the kubelet
// would.
//
// Owns: the state "has passed once". Reads: the user container's answers. Writes: nothing. Never:
// decides what readiness means for others.
package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"ebb.dev/ebb/wire"
)

// Spec is a probe as queue-proxy runs it.
type Spec struct {
	wire.Probe
	detect *detection // nil: an HTTP probe is HTTP/1.1
}

// Specs are probes as queue-proxy runs them. With detect, HTTP probes find out which version of
// HTTP the container speaks.
func Specs(probes []wire.Probe, detect bool) (specs []Spec) {
	for _, p := range probes {
		s := Spec{Probe: p}
		if detect {
			s.detect = new(detection)
		}
		specs = append(specs, s)
	}
	return specs
}

// TCP is the probe of a container that has none: does its port accept connections?
func TCP(port int) Spec {
	return Spec{Probe: wire.Probe{TCPSocket: &wire.ProbeSocket{Port: wire.ProbePort(port)}, SuccessThreshold: 1}}
}

// aggressive: period 0, queue-proxy looks by itself as often as it likes.
func (s *Spec) aggressive() bool { return s.PeriodSeconds == 0 }

// Timeout is how long one answer may take.
func (s *Spec) Timeout() time.Duration {
	return time.Duration(max(s.TimeoutSeconds, 1)) * time.Second
}

// Port is the one that it asks.
func (s *Spec) Port() int {
	switch {
	case s.HTTPGet != nil:
		return int(s.HTTPGet.Port)
	case s.GRPC != nil:
		return int(s.GRPC.Port)
	}
	return int(s.TCPSocket.Port)
}

// Once asks one time. The error says what the container did instead of answering well.
func (s *Spec) Once(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch {
	case s.HTTPGet != nil:
		return s.http(ctx)
	case s.GRPC != nil:
		return s.grpc(ctx)
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(s.TCPSocket.Host, s.TCPSocket.Port))
	if err != nil {
		return fmt.Errorf("TCP probe: %w", err)
	}
	return nc.Close()
}

func address(host string, port wire.ProbePort) string {
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// grpc calls grpc.health.v1.Health/Check. The two messages are small enough to be written by hand,
// which keeps a gRPC library out of every pod.
func (s *Spec) grpc(ctx context.Context) error {
	var message []byte
	if s.GRPC.Service != nil && *s.GRPC.Service != "" {
		message = append(message, 1<<3|2)
		message = binary.AppendUvarint(message, uint64(len(*s.GRPC.Service)))
		message = append(message, *s.GRPC.Service...)
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	frame = append(frame, message...)
	transport := priorKnowledge()
	defer transport.CloseIdleConnections()
	url := "http://" + address("", s.GRPC.Port) + "/grpc.health.v1.Health/Check"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(frame))
	if err != nil {
		return fmt.Errorf("gRPC probe: %w", err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", userAgent)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("gRPC probe: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return fmt.Errorf("gRPC probe: %w", err)
	}
	status := resp.Header.Get("Grpc-Status")
	if status == "" {
		status = resp.Trailer.Get("Grpc-Status")
	}
	if resp.StatusCode != 200 || status != "0" {
		return fmt.Errorf("gRPC probe: HTTP status %d, gRPC status %q", resp.StatusCode, status)
	}
	// status = 1 (SERVING) of HealthCheckResponse: field 1, varint.
	if len(body) < 7 || body[0] != 0 || body[5] != 1<<3 || body[6] != 1 {
		return errors.New("gRPC probe: the service is not SERVING")
	}
	return nil
}
