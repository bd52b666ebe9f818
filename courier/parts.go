package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"ebb.dev/ebb/courier/internal/door"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

const (
	// lastAnswers is how long requests under way may go on when the courier is to stop.
	lastAnswers = 10 * time.Second
	// healthPeriod is how often JetStream is asked whether it serves, and maxFailedHealthChecks how
	// often in a row it may not.
	healthPeriod          = 3 * time.Second
	maxFailedHealthChecks = 5
	// trimPeriod is how often results beyond the bound of a namespace are removed.
	trimPeriod = time.Minute
)

// serve answers requests until ctx is done, and then those under way.
func (c *courier) serve(ctx context.Context) error {
	server := door.Server(http.HandlerFunc(c.handle))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(door.Listener(c.listener)) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve requests: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	if err := server.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("end the requests: %w", err)
	}
	return nil
}

// handle answers the kubelet, and leaves everything else to the routes.
func (c *courier) handle(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == wire.PathHealth && strings.HasPrefix(r.UserAgent(), wire.AgentKubelet) && r.Header.Get(wire.HeaderAsyncTarget) == "" {
		select {
		case <-c.routes.Known:
		default:
			http.Error(w, "the routes are not known yet", http.StatusServiceUnavailable)
		}
		return
	}
	c.accept.ServeHTTP(w, r)
}

// lead delivers calls and follows schedules. There is one courier: see config/courier.
func (c *courier) lead(ctx context.Context) error {
	select {
	case <-c.routes.Known:
	case <-ctx.Done():
		return nil
	}
	return run.All(ctx,
		run.Part{Name: "load", Run: c.load.Run},
		run.Part{Name: "bounds of results", Run: c.trim},
		run.Part{Name: "callbacks", Run: c.callback.Run},
		run.Part{Name: "schedules", Run: c.tick.Run},
		run.Part{Name: "deliveries", Run: c.deliver.Run},
	)
}

func (c *courier) trim(ctx context.Context) error {
	return run.Every(ctx, trimPeriod, func(time.Time) error {
		if err := c.store.Trim(ctx, int(c.settings.Load().Courier.ResultsOfOne)); err != nil && ctx.Err() == nil {
			c.log.Warn("old results were not removed", "error", err)
		}
		return nil
	})
}

// watchStore ends the process when JetStream does not come back: the server inside stays away after
// its disk was full, until it is started again.
func (c *courier) watchStore(ctx context.Context) error {
	bad := 0
	return run.Every(ctx, healthPeriod, func(time.Time) error {
		err := c.store.Health(ctx)
		if err == nil || ctx.Err() != nil {
			bad = 0
			return nil
		}
		c.log.Error("JetStream does not serve", "error", err)
		if bad++; bad >= maxFailedHealthChecks {
			return err
		}
		return nil
	})
}

// restart ends the process when settings change that are read at its start.
func (c *courier) restart(ctx context.Context) error {
	for {
		snapshot, replaced := c.settings.Current()
		if ofTheStart(snapshot.Courier) != ofTheStart(c.startSettings) {
			return errors.New("settings of config-courier that are read at the start have changed: starting again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-replaced:
		}
	}
}

// ofTheStart is the settings that are read at the start.
func ofTheStart(s settings.Courier) any {
	return struct {
		nats                    string
		replicas                int32
		synced                  bool
		bytes                   int64
		queue, results, letters time.Duration
	}{s.NATS, s.Replicas, s.Synced, s.Bytes, s.KeepQueued, s.KeepResults, s.KeepDead}
}
