// Command autoscaler decides how many pods each revision has.
//
// Owns: the scale of every revision of the class kpa.autoscaling.knative.dev, and the status of its
// PodAutoscaler. Reads: stats, pods, PodAutoscalers, the config-* ConfigMaps. Writes: see
// internal/act. Never: handles a request of a user.
package main

import (
	"ebb.dev/ebb/autoscaler/process"
	"ebb.dev/ebb/internal/telemetry"
)

func main() { telemetry.Main("autoscaler", process.Run) }
