// Command autoscaler decides how many pods each revision has.
//
// Owns: the scale of every revision of the class kpa.autoscaling.knative.dev, and the status of its
// PodAutoscaler. Reads: stats, pods, PodAutoscalers, the config-* ConfigMaps. Writes: see
// internal/act. Never: handles a request of a user.
package main

import (
	"context"
	"fmt"
	"os"

	"ebb.dev/ebb/autoscaler/process"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/version"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	if err := process.Run(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "autoscaler:", err)
		os.Exit(1)
	}
}
