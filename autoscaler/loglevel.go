package main

import (
	"context"
	"log/slog"

	"ebb.dev/ebb/settings"
)

// followLevel keeps the level of the log equal to what config-logging says.
func followLevel(store *settings.Store, level *slog.LevelVar) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			snapshot, replaced := store.Current()
			level.Set(snapshot.Logging.LevelOf("autoscaler"))
			select {
			case <-ctx.Done():
				return nil
			case <-replaced:
			}
		}
	}
}
