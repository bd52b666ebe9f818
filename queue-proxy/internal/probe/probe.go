// Package probe asks the user container whether it is ready: over HTTP, TCP or gRPC, as the kubelet would.
//
// Owns: the state "has passed once". Reads: the user container's answers. Writes: nothing. Never: decides what readiness means
// for others.
package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Spec is a Kubernetes probe, as far as queue-proxy runs it. An exec probe is the kubelet's to run; here it becomes a look at the
// port (contract section 5.4).
type Spec struct {
	HTTPGet *struct {
		Path        string     `json:"path"`
		Port        portNumber `json:"port"`
		Host        string     `json:"host"`
		Scheme      string     `json:"scheme"`
		HTTPHeaders []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"httpHeaders"`
	} `json:"httpGet"`
	TCPSocket *Socket `json:"tcpSocket"`
	GRPC      *struct {
		Port    portNumber `json:"port"`
		Service *string    `json:"service"`
	} `json:"grpc"`

	InitialDelaySeconds int `json:"initialDelaySeconds"`
	TimeoutSeconds      int `json:"timeoutSeconds"`
	PeriodSeconds       int `json:"periodSeconds"`
	SuccessThreshold    int `json:"successThreshold"`
	FailureThreshold    int `json:"failureThreshold"`

	detect *detection // nil: HTTP probes are HTTP/1.1
}

// Socket is where a TCP probe connects.
type Socket struct {
	Port portNumber `json:"port"`
	Host string     `json:"host"`
}

// portNumber is an IntOrString that must be a number here: the controller resolves names.
type portNumber int

func (p *portNumber) UnmarshalJSON(data []byte) error {
	text := string(data)
	if len(text) > 1 && text[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		if text == "" {
			text = "0"
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("port %s is not a number from 0 to 65535", text)
	}
	*p = portNumber(n)
	return nil
}

// TCP is the probe of a container that has none: does its port accept?
func TCP(port int) Spec {
	return Spec{TCPSocket: &Socket{Port: portNumber(port)}, SuccessThreshold: 1}
}

// Complete fills in what may be left out and refuses what cannot be run.
func (s *Spec) Complete(port int) error {
	given := 0
	if s.HTTPGet != nil {
		given++
		if s.HTTPGet.Port == 0 {
			s.HTTPGet.Port = portNumber(port)
		}
		switch s.HTTPGet.Scheme {
		case "":
			s.HTTPGet.Scheme = "HTTP"
		case "HTTP", "HTTPS":
		default:
			return fmt.Errorf("scheme %q of an HTTP probe is neither HTTP nor HTTPS", s.HTTPGet.Scheme)
		}
	}
	if s.TCPSocket != nil {
		given++
		if s.TCPSocket.Port == 0 {
			s.TCPSocket.Port = portNumber(port)
		}
	}
	if s.GRPC != nil {
		given++
		if s.GRPC.Port == 0 {
			s.GRPC.Port = portNumber(port)
		}
	}
	if given > 1 {
		return errors.New("a probe has more than one kind")
	}
	if given == 0 {
		s.TCPSocket = &Socket{Port: portNumber(port)}
	}
	s.SuccessThreshold = max(s.SuccessThreshold, 1)
	return nil
}

// aggressive: period 0, queue-proxy looks by itself as often as it likes.
func (s *Spec) aggressive() bool { return s.PeriodSeconds == 0 }

func (s *Spec) timeout() time.Duration {
	return time.Duration(max(s.TimeoutSeconds, 1)) * time.Second
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

func address(host string, port portNumber) string {
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// grpc calls grpc.health.v1.Health/Check. The two messages are small enough to be written by hand, which keeps a gRPC library out of
// every pod.
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
