// Command ebb is all components in one process, for a cluster of one small node, with a CoAP entry.
//
// Owns: which component has which ports. Reads, writes: what the components do, each with its own
// clients and informers. Never: does what a component does not.
package main

import (
	"ebb.dev/ebb/internal/telemetry"
)

func main() { telemetry.Main("ebb", start) }
