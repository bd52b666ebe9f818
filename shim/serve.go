package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/shim/internal/calls"
	"ebb.dev/ebb/shim/internal/child"
	"ebb.dev/ebb/shim/internal/config"
	"ebb.dev/ebb/shim/internal/front"
)

// maxHead bounds the head of a request. All of it may become variables, of which Linux takes
// 128 KiB each.
const maxHead = 64 << 10

// serve works until ctx ends, and then until the requests in progress are answered; now ends them.
func serve(ctx, now context.Context, c *config.Config, log *slog.Logger) error {
	path, err := child.Find(c.Command[0])
	if err != nil {
		return err
	}
	family := child.New()
	env := environment(os.Environ())
	if c.Mode == config.HTTP {
		return front.New(c, path, env, family, log, func(l net.Listener, h http.Handler) front.Server { return listen(now, l, h, log) }).Run(ctx, now)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(c.Port)))
	if err != nil {
		return fmt.Errorf("listen for requests: %w", err)
	}
	log.Info("serving each request with a process of its own", "address", listener.Addr().String(), "program", path, "mode", c.Mode, "workers", c.Workers)
	server := listen(now, listener, calls.New(c, path, env, family, log), log)
	<-ctx.Done()
	if err := server.Shutdown(now); err == nil {
		return nil
	}
	// The requests in progress have ended with now, and their processes get the time to end.
	ending, cancel := context.WithTimeout(context.Background(), c.Grace+time.Second)
	defer cancel()
	return server.Shutdown(ending)
}

// environment is the environment of the program: the container's, without what is the shim's.
func environment(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(pair string) bool {
		return strings.HasPrefix(pair, "SHIM_") || strings.HasPrefix(pair, "PORT=")
	})
}

// listen begins to serve. Requests end with now.
func listen(now context.Context, l net.Listener, h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: protocols, MaxHeaderBytes: maxHead, ReadHeaderTimeout: 30 * time.Second,
		BaseContext: func(net.Listener) context.Context { return now },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the port of requests failed", "error", err)
			os.Exit(1)
		}
	}()
	return s
}
