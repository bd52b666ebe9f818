// Package witness answers autoscalers that ask at which pods of other nodes somebody answers: so
// each node with an agent is a place from which another one can be found dead.
//
// Owns: the port for that. Reads: its tokens. Writes: nothing. Never: connects to more addresses
// than an autoscaler asks for, or needs to run for pods to sleep.
package witness

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"ebb.dev/ebb/internal/reachable"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/wire"
)

const (
	// maxStrangers and maxProven bound the connections, which cost some 20 KiB each: of strangers,
	// who push out each other, and of autoscalers. maxInASecond bounds new ones of one address,
	// which may be that of all pods of a node.
	maxStrangers, maxProven, maxInASecond = 32, 32, 100
	// maxHead bounds the head of a question.
	maxHead = 8 << 10
	// listenAgain is the time between two attempts to get the port. Another program of the node may
	// have it.
	listenAgain = time.Minute
)

// Witness answers at a node's address.
type Witness struct {
	Node, Address string
	// Tokens is the folder with those of wire.NodeAgentSubject. Kubernetes changes it.
	Tokens string
	Log    *slog.Logger

	guard    wire.Guard
	listener *telemetry.Proving
}

// connKey is the key of a request's connection.
type connKey struct{}

// Run answers until ctx ends. While it cannot, as when the port is taken, the agent does all else.
func (w *Witness) Run(ctx context.Context) error {
	server := &reachable.Server{Node: w.Node, Admit: w.admit, Knows: netip.Addr.IsGlobalUnicast, Memory: &reachable.Memory{}}
	mux := http.NewServeMux()
	mux.Handle(wire.PathReach, server)
	// A stranger has one answer on each connection: maxInASecond bounds what he asks, too.
	once := http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		to.Header().Set("Connection", "close")
		mux.ServeHTTP(to, r)
	})
	for ctx.Err() == nil {
		err := w.serve(ctx, once)
		if ctx.Err() != nil {
			break
		}
		w.Log.Warn("autoscalers cannot ask this agent which nodes answer; it is tried again", "error", err, "after", listenAgain)
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
	return nil
}

func (w *Witness) serve(ctx context.Context, handler http.Handler) error {
	listener, err := net.Listen("tcp", w.Address)
	if err != nil {
		return fmt.Errorf("listen for autoscalers: %w", err)
	}
	w.listener = telemetry.NewProving(listener, maxStrangers, maxProven, maxInASecond)
	return telemetry.Serve(ctx, w.listener, handler, func(s *http.Server) {
		s.MaxHeaderBytes = maxHead
		s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	})
}

// admit lets ask who has one of the tokens. Without any, as before the controller has made one,
// nobody may. A question to another agent, which knows the same tokens, is not taken from who saw
// it on its way.
func (w *Witness) admit(to http.ResponseWriter, r *http.Request) (*wire.Signature, bool) {
	if !toThis(r) {
		http.Error(to, "the message is to another receiver", http.StatusUnauthorized)
		return nil, false
	}
	var tokens []string
	for _, field := range []string{wire.TokenSecretKey, wire.TokenSecretNext, wire.TokenSecretPrevious} {
		if token, err := os.ReadFile(filepath.Join(w.Tokens, field)); err == nil {
			tokens = append(tokens, string(token))
		}
	}
	signature, ok := w.guard.AdmitTokens(to, r, tokens, wire.NodeAgentSubject)
	if !ok {
		return nil, false
	}
	to.Header().Del("Connection")
	if conn, is := r.Context().Value(connKey{}).(net.Conn); is {
		w.listener.Proven(conn)
	}
	return signature, true
}

// toThis reports whether a request names the address at which it came, as autoscalers do.
func toThis(r *http.Request) bool {
	named, err := netip.ParseAddrPort(r.Host)
	at, is := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if err != nil || !is {
		return false
	}
	here := at.AddrPort()
	return named == netip.AddrPortFrom(here.Addr().Unmap().WithZone(""), here.Port())
}
