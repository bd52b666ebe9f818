// Command queue-proxy is the sidecar of every pod of a revision. It owns the pod's data port; it
// reads its environment and the user container's answers; it writes announcements and load reports;
// it never talks to Kubernetes.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/queue-proxy/internal/sidecar"
	"ebb.dev/ebb/wire"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	tuneMemory(os.Getenv)
	if err := serve(ctx, os.Getenv, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "queue-proxy:", err)
		os.Exit(1)
	}
}

// tuneMemory trades a little memory for CPU. HTTP/1.1 makes no garbage; HTTP/2 makes it fast, and
// at the default setting a heap of a few megabytes would be collected a hundred times a second. The
// limit brings the collector back before memory matters.
func tuneMemory(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(sidecar.MemoryLimit)
	}
}

func serve(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	cfg, err := wire.ReadSidecar(getenv)
	if err != nil {
		return err
	}
	log := newLogger(stderr, cfg)
	s, err := sidecar.Listen(cfg, log)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

func newLogger(w io.Writer, cfg *wire.Sidecar) *slog.Logger {
	level := slog.LevelInfo
	// An unknown level is not a reason to refuse service.
	_ = level.UnmarshalText([]byte(cfg.LogLevel))
	handler := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	return slog.New(handler).With("component", "queue-proxy", "revision", cfg.Namespace+"/"+cfg.Revision, "pod", cfg.Pod)
}
