// Command controller makes the objects of a cluster match its Services, Configurations, Revisions
// and Routes.
//
// Owns: the list of reconcilers. Reads: all of Ebb's kinds and their children. Writes: what the
// reconcilers write, Leases, Events. Never: is in the path of a request. While the controller is
// down, everything that runs keeps running.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/klog/v2"

	"ebb.dev/ebb/controller/process"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	log, _ := telemetry.NewLogger(os.Stdout, "controller")
	klog.SetSlogLogger(log) // the log of client-go, before anything uses it
	if err := process.Run(ctx, os.Args[1:], os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}
