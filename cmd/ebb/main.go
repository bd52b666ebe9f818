// Command ebb is all components in one process, for a cluster of one small node, with a CoAP entry.
//
// Owns: which component has which ports. Reads, writes: what the components do, each with its own
// clients and informers. Never: does what a component does not.
package main

import (
	"context"
	"fmt"
	"os"

	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/version"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	if err := start(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ebb:", err)
		os.Exit(1)
	}
}
