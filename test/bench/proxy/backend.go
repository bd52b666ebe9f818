package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// backend is the server behind every proxy. It uses as little CPU as possible, so that the proxies'
// share is visible.
type backend struct {
	http, grpc string // addresses
	listener   net.Listener
	server     *grpc.Server
}

func startBackend() (*backend, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the backend: %w", err)
	}
	g, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listen for the gRPC backend: %w", err)
	}
	b := &backend{http: l.Addr().String(), grpc: g.Addr().String(), listener: l}
	encoding.RegisterCodec(rawCodec{})
	b.server = grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(echo))
	go b.server.Serve(g)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	return b, nil
}

func (b *backend) close() {
	b.listener.Close()
	b.server.Stop()
}

// replies holds complete responses, by the number of body bytes in the path.
func reply(size int) []byte {
	return []byte(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size)))
}

// answer serves one connection. It supports only what this benchmark sends: heads without bodies.
func answer(c net.Conn) {
	defer c.Close()
	replies := map[string][]byte{}
	buf := make([]byte, 8192)
	n := 0
	for {
		k, err := c.Read(buf[n:])
		if err != nil {
			return
		}
		n += k
		for {
			end := bytes.Index(buf[:n], []byte("\r\n\r\n"))
			if end < 0 {
				break
			}
			path, _, _ := bytes.Cut(buf[4:end], []byte(" "))
			r := replies[string(path)]
			if r == nil {
				size := 0
				fmt.Sscanf(string(path), "/%d", &size)
				r = reply(size)
				replies[string(path)] = r
			}
			if _, err := c.Write(r); err != nil {
				return
			}
			n = copy(buf, buf[end+4:n])
		}
	}
}

// rawCodec passes bytes through, so that neither end spends time on encoding.
type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }
func (rawCodec) Marshal(v any) ([]byte, error) {
	return *v.(*[]byte), nil
}
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append((*v.(*[]byte))[:0], data...)
	return nil
}

func echo(_ any, stream grpc.ServerStream) error {
	var message []byte
	if err := stream.RecvMsg(&message); err != nil {
		return err
	}
	return stream.SendMsg(&message)
}

// call makes one unary call.
func call(ctx context.Context, cc *grpc.ClientConn, in, out *[]byte) error {
	return cc.Invoke(ctx, "/bench.Echo/Unary", in, out, grpc.ForceCodec(rawCodec{}))
}
