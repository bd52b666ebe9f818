// Command webhook defaults and judges what people write into the cluster, before it is stored.
//
// Owns: the certificate it serves with (Secret webhook-certs) and its three registrations. Reads:
// the config-* ConfigMaps. Writes: that Secret and those registrations. Never: decides what is
// right (the rules are in api/ and settings/), or stands in the way of pods: while it is down, what
// is stored keeps running.
package main

import (
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/webhook/process"
)

func main() { telemetry.Main("webhook", process.Run) }
