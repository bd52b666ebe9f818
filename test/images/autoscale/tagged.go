package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

type connKey struct{}

// withConn lets a handler write to its connection past net/http, which would refuse what is wrong.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// tagged answers with what the request carried, so that a client can tell whether an answer is its
// own. It may then send bytes that no request asked for.
func (h *handler) tagged(w http.ResponseWriter, r *http.Request, work work) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		http.Error(w, fmt.Sprintf("read the request's body: %v", err), http.StatusBadRequest)
		return
	}
	answer := append([]byte(work.tag+"\n"), body...)
	if work.status != http.StatusNoContent && work.status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	}
	w.WriteHeader(work.status)
	w.Write(answer) // net/http drops the body of HEAD, 204 and 304
	if work.unasked < 0 || r.ProtoMajor != 1 || http.NewResponseController(w).Flush() != nil {
		return
	}
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		time.Sleep(work.unasked)
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 8\r\n\r\nunasked\n")
	}
}
