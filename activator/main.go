// Command activator holds requests of revisions without a free pod and forwards them as soon as
// there is one.
//
// Owns: the requests that it holds, its queues and bounds. Reads: Revisions, EndpointSlices of
// private Services, announcements, the config-* ConfigMaps. Writes: stats to the autoscaler. Never:
// decides how many pods there are; keeps a request whose client has left.
package main

import (
	"context"
	"fmt"
	"os"

	"ebb.dev/ebb/activator/process"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/version"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	if err := process.Run(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "activator:", err)
		os.Exit(1)
	}
}
