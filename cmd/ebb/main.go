// Command ebb is all components in one process, for a cluster of one small node, with a CoAP entry.
//
// Owns: which component has which ports. Reads, writes: what the components do, each with its own
// clients and informers. Never: does what a component does not.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/klog/v2"

	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	log, _ := telemetry.NewLogger(os.Stdout, "ebb")
	klog.SetSlogLogger(log) // the log of client-go, before anything uses it
	if err := start(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ebb:", err)
		os.Exit(1)
	}
}
