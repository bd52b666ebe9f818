package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"time"
)

// The paths of the tenants' server: a long response, and one that does not read its request.
const (
	pathLong = "/long"
	pathDeaf = "/deaf"
)

// longBody is more than any buffer on the way takes.
const longBody = 8 << 20

// podSendBuffer bounds what the kernel keeps for a response that is not read. By itself it would
// keep megabytes for each, and the memory for all TCP connections of the machine would be used up:
// in a cluster, that of the pod's node.
const podSendBuffer = 64 << 10

// serve answers at the listener that the benchmark handed over.
func serve(ctx context.Context) error {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	long := make([]byte, longBody)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) { out.Write([]byte("Hello, world!")) })
	mux.HandleFunc(pathLong, func(out http.ResponseWriter, _ *http.Request) { out.Write(long) })
	mux.HandleFunc(pathDeaf, func(_ http.ResponseWriter, r *http.Request) { sleep(r.Context(), time.Minute) })
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		c.(*net.TCPConn).SetWriteBuffer(podSendBuffer)
		return ctx
	}
	context.AfterFunc(ctx, func() { server.Close() })
	return server.Serve(l)
}
