package sidecar

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"time"

	"ebb.dev/ebb/internal/tlsoptions"
	"ebb.dev/ebb/queue-proxy/internal/certs"
	"ebb.dev/ebb/wire"
)

// ports are what queue-proxy listens on.
type ports struct {
	data, tls net.Listener
	agent     net.Listener // of the node agent; nil for a revision that does not sleep
	encrypts  bool         // requests are served over TLS; once Run has begun it belongs to certChanged
	side      []sideServer
}

type sideServer struct {
	name     string
	listener net.Listener
	server   *http.Server
}

func listen(what string, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", what, err)
	}
	return l, nil
}

// listenBeside opens every port but the data port.
func (s *Sidecar) listenBeside() error {
	cfg := s.cfg
	if err := s.listenTLS(); err != nil {
		return err
	}
	admin, reports := http.NewServeMux(), http.NewServeMux()
	admin.HandleFunc("GET "+wire.PathLiveness, s.liveness)
	reports.Handle("GET "+wire.PathMetrics, s.reporter)
	reports.HandleFunc("POST "+wire.PathStandby, s.standbyOrder)
	admin.HandleFunc("GET "+wire.PathDrain, func(w http.ResponseWriter, r *http.Request) {
		// Whoever can keep a hook open keeps the pod out of service.
		if !wire.ValidDrainToken(cfg.DrainToken, wire.BearerToken(r.Header.Get("Authorization"))) {
			http.Error(w, "only the preStop hook of this pod may begin a drain", http.StatusUnauthorized)
			return
		}
		s.drainer.Hook(r.Context())
		w.WriteHeader(http.StatusOK)
	})
	beside := []struct {
		name    string
		on      bool
		port    int
		handler http.Handler
	}{
		{"the drain hook", true, cfg.DrainPort, admin},
		{"load reports", true, cfg.StatPort, reports},
		{"request metrics", cfg.Observability.RequestMetrics.Protocol == "prometheus", cfg.MetricsPort, s.metrics},
		{"profiles", cfg.Observability.RuntimeProfiling, cfg.ProfilingPort, profiles()},
	}
	for _, b := range beside {
		if !b.on {
			continue
		}
		l, err := listen(b.name, b.port)
		if err != nil {
			return err
		}
		s.ports.side = append(s.ports.side, sideServer{b.name, l, &http.Server{Handler: b.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}})
	}
	return nil
}

// listenTLS opens the TLS port if there is a certificate. In a pod without the directory there
// never will be one; where it is empty, certChanged opens the port once it is not.
func (s *Sidecar) listenTLS() error {
	if _, err := os.Stat(s.cfg.CertDir); err != nil {
		return nil
	}
	s.files = certs.New(s.cfg.CertDir)
	var err error
	if s.server.TLS, err = s.files.Config(tlsoptions.Settings(s.cfg.TLS)); err != nil || !certs.Exist(s.cfg.CertDir) {
		return err
	}
	if err := s.files.Load(); err != nil {
		return err
	}
	s.ports.tls, err = listen("requests over TLS", s.cfg.TLSPort)
	s.ports.encrypts = err == nil
	return err
}

// certChanged is told of each certificate that was found, or could not be read, since the start.
func (s *Sidecar) certChanged(err error) {
	switch {
	case err != nil && !s.ports.encrypts:
		s.log.Error("the certificate cannot be used; requests are served without TLS only", "error", err)
	case err != nil:
		s.log.Error("the certificate could not be reloaded; the old one stays", "error", err)
	case s.ports.encrypts:
		s.log.Info("Certificate and/or key have changed on disk and were reloaded.")
	default:
		l, err := listen("requests over TLS", s.cfg.TLSPort)
		if err != nil {
			s.log.Error("a certificate is there and cannot be served", "error", err)
			return
		}
		s.ports.encrypts = true
		s.log.Info("a certificate has appeared: requests are served over TLS too", "address", l.Addr().String())
		s.spawn("serve requests over TLS", func() error { return s.server.ServeTLS(l) })
	}
}

func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

func (s *Sidecar) closeListeners() {
	for _, l := range []net.Listener{s.ports.data, s.ports.tls, s.ports.agent} {
		if l != nil {
			l.Close()
		}
	}
	for _, b := range s.ports.side {
		b.listener.Close()
	}
}
