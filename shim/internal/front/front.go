// Package front runs a program that is an HTTP server, and passes requests on to it.
//
// Owns: the program, which it starts again when it ends. Reads: whether the program accepts
// connections. Writes: the port of requests, which is open exactly while the program does, so that
// a readiness probe of the port is one of the program. Never: answers for the program, or starts a
// second one.
package front

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"ebb.dev/ebb/shim/internal/child"
	"ebb.dev/ebb/shim/internal/config"
)

// Pauses before the program is started again, and how long it must have accepted connections for
// the shortest one to count again.
const (
	shortest = 100 * time.Millisecond
	longest  = 30 * time.Second
	stable   = 10 * time.Second
)

// leave is how long answers in progress may take when the program has ended: none can be whole.
const leave = time.Second

// Front is a program and its requests.
type Front struct {
	config *config.Config
	path   string
	env    []string
	family *child.Family
	log    *slog.Logger
	serve  func(net.Listener, http.Handler) Server
}

// Server is what serves requests on a listener until it is shut down.
type Server interface {
	Shutdown(context.Context) error
	Close() error
}

// New returns a Front for the program at path, which has the variables env. serve begins to serve
// a listener.
func New(c *config.Config, path string, env []string, family *child.Family, log *slog.Logger, serve func(net.Listener, http.Handler) Server) *Front {
	return &Front{config: c, path: path, env: env, family: family, log: log, serve: serve}
}

// Ended is returned by Run when the program is not started again.
type Ended struct{ Exit child.Exit }

func (e *Ended) Error() string { return "the program " + e.Exit.String() }

// Run runs the program until ctx ends, or until it is of no use to start it again. The requests in
// progress when ctx ends are answered before the program is told to end; now ends that wait.
func (f *Front) Run(ctx, now context.Context) error {
	port := f.config.ProgramPort
	if port == 0 {
		var err error
		if port, err = freePort(); err != nil {
			return err
		}
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	handler := newProxy(f.config, address, f.log)
	command := child.Command{Path: f.path, Args: f.config.Command, Env: append(f.env, fmt.Sprintf("PORT=%d", port)), Inherit: true}
	pause, everReady, left := shortest, false, f.config.Restarts
	for {
		began := time.Now()
		exit, ready, err := f.once(ctx, now, command, address, handler)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return nil
		}
		if everReady = everReady || ready; ready {
			left = f.config.Restarts
			if time.Since(began) >= stable {
				pause = shortest
			}
		}
		if !everReady || left == 0 {
			return &Ended{exit}
		}
		left--
		f.log.Warn("the program has ended and is started again", "exit", exit.String(), "pause", pause.String(), "accepted", ready)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// once runs the program until it ends. ready is whether it ever accepted connections.
func (f *Front) once(ctx, now context.Context, command child.Command, address string, handler http.Handler) (exit child.Exit, ready bool, err error) {
	program, err := f.family.Start(command)
	if err != nil {
		return exit, false, fmt.Errorf("start the program: %w", err)
	}
	defer program.End(f.config.Grace)
	if !accepts(ctx, program, address) {
		program.End(f.config.Grace)
		return program.Exit(), false, nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(f.config.Port)))
	if err != nil {
		return exit, true, fmt.Errorf("listen for requests: %w", err)
	}
	f.log.Info("the program accepts connections", "pid", program.Pid(), "address", address, "requests", listener.Addr().String())
	server := f.serve(listener, handler)
	select {
	case <-program.Done():
		ending, cancel := context.WithTimeout(context.Background(), leave)
		defer cancel()
		now = ending
	case <-ctx.Done():
	}
	if server.Shutdown(now) != nil {
		server.Close()
	}
	program.End(f.config.Grace)
	return program.Exit(), true, nil
}

// accepts waits until the address accepts connections. It returns false if the program has ended
// before, or ctx.
func accepts(ctx context.Context, program *child.Child, address string) bool {
	pause := time.Millisecond
	for {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			connection.Close()
			select {
			case <-program.Done(): // another process has the port
				return false
			default:
				return true
			}
		}
		select {
		case <-program.Done():
			return false
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
		pause = min(pause*3/2, 50*time.Millisecond)
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port for the program: %w", err)
	}
	defer l.Close()
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("find a free port for the program: the listener has no TCP address")
	}
	return address.Port, nil
}
