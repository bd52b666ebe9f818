// Command activator holds requests of revisions without a free pod and forwards them as soon as
// there is one.
//
// Owns: the requests that it holds, its queues and bounds. Reads: Revisions, EndpointSlices of
// private Services and of activators, announcements, the config-* ConfigMaps. Writes: stats to the
// autoscaler. Never: decides how many pods there are; keeps a request whose client has left.
package main

import (
	"ebb.dev/ebb/activator/process"
	"ebb.dev/ebb/internal/telemetry"
)

func main() { telemetry.Main("activator", process.Run) }
