// Package process is the activator as one process, or as a part of one.
//
// Owns: its environment, what it is built of (build.go), its ports, and the order in which its
// parts start; they stop the other way round, requests first. Reads: the environment. Writes:
// nothing. Never: decides about a request.
package process

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"ebb.dev/ebb/activator/internal/identity"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/wire"
)

// Run is the activator until ctx is done. env is its environment.
func Run(ctx context.Context, env func(string) string, stdout io.Writer) error {
	c := component.New("activator", env, stdout)
	options := readOptions(c)
	if err := c.Start(ctx); err != nil {
		return err
	}
	// Ebb's own kinds have no protobuf encoding, so the client asks for JSON.
	ebb, err := versioned.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	keys, err := c.Keys(ctx)
	if err != nil {
		return err
	}
	who, err := identity.Watch(ctx, c.Kube, c.Namespace, c.Log)
	if err != nil {
		return err
	}
	a, err := build(c, options, ebb, keys, who, stdout)
	if err != nil {
		return err
	}
	c.Log.Info("activator is built", "version", version.Version, "pod", c.Pod, "autoscaler", a.report.URL, "bounds", options.bounds)
	return c.Run(ctx,
		run.Part{Name: "request log and spans", Run: a.observe.Run},
		run.Part{Name: "report", Run: func(ctx context.Context) error { return a.report.Run(ctx, a.table) }},
		run.Part{Name: "cold starts", Run: a.coldStarts.Run},
		run.Part{Name: "incidents", Run: a.incidents.Run},
		run.Part{Name: "probe", Run: func(ctx context.Context) error { return a.probe.Run(ctx, a.table) }},
		run.Part{Name: "watch", Run: a.watch.Run},
		telemetry.Server("announcements", c.Address(wire.PortAnnounce), a.port()),
		run.Part{Name: "requests", Run: a.serve.Run}, // last, so that it stops first
	)
}

// port is the handler of the port for announcements.
func (a *activator) port() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(wire.PathReach, a.reachable)
	mux.Handle("/", a.announce)
	return mux
}
