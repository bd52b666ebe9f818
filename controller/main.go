// Command controller makes the objects of a cluster match its Services, Configurations, Revisions
// and Routes.
//
// Owns: the list of reconcilers. Reads: all of Ebb's kinds and their children. Writes: what the
// reconcilers write, Leases, Events. Never: is in the path of a request. While the controller is
// down, everything that runs keeps running.
package main

import (
	"context"
	"io"
	"os"

	"ebb.dev/ebb/controller/process"
	"ebb.dev/ebb/internal/telemetry"
)

func main() {
	telemetry.Main("controller", func(ctx context.Context, env func(string) string, stdout io.Writer) error {
		return process.Run(ctx, os.Args[1:], env, stdout)
	})
}
