// Command courier keeps calls for later: it accepts a request, answers 202, and delivers the
// request to its service when that has room, again until it is answered.
//
// Owns: the calls that it accepted, until they are answered or dead, and the schedules by which
// services are called. Reads: Routes, PodAutoscalers, the config-* ConfigMaps. Writes: calls and
// results to JetStream, requests to the local gateway, results to callbacks, stats to the
// autoscaler. Never: answers 202 for a call that is not kept; sends a call to another service than
// its Route named.
package main

import (
	"context"
	"fmt"
	"io"

	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/wire"
)

func main() { telemetry.Main("courier", start) }

func start(ctx context.Context, env func(string) string, stdout io.Writer) error {
	of := component.New("courier", env, stdout)
	options := readOptions(of)
	if err := of.Start(ctx); err != nil {
		return err
	}
	ebb, err := versioned.NewForConfig(of.Config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	secret, err := of.Secret(ctx, wire.CourierSecret)
	if err != nil {
		return err
	}
	c, err := build(ctx, of, options, ebb, func() string { return string(secret.Load()[wire.CourierSecretToken]) })
	if err != nil {
		return err
	}
	defer c.store.Close()
	c.log.Info("courier is built", "version", version.Version, "pod", of.Pod)
	return of.Run(ctx,
		run.Part{Name: "settings of the start", Run: c.restart},
		run.Part{Name: "JetStream", Run: c.watchStore},
		run.Part{Name: "routes", Run: c.routes.Run},
		run.Part{Name: "lead", Run: c.lead},
		run.Part{Name: "requests", Run: c.serve}, // last, so that it stops first
	)
}
