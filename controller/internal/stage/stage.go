// Package stage runs reconcilers for tests, against the API server of test/apiservertest.
//
// Owns: the Managers that it made, until their tests end. Reads and writes: that API server. Never:
// runs outside of a test.
package stage

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
)

// Manager returns one in the namespace knative-serving, under these settings.
func Manager(t testing.TB, config *rest.Config, live *settings.Store) *reconcile.Manager {
	t.Helper()
	clients, err := reconcile.ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	return reconcile.NewManager(clients, live, record.NewFakeRecorder(10000), slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
}

// Run runs reconcilers, alone, until the test ends.
func Run(t testing.TB, mgr *reconcile.Manager, list ...*reconcile.Controller) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- mgr.Run(ctx, list, reconcile.Options{Alone: true, Timeout: time.Minute, Metrics: reconcile.NewMetrics(prometheus.NewRegistry())})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Settings returns a Store of these ConfigMaps.
func Settings(t testing.TB, data map[string]map[string]string) *settings.Store {
	t.Helper()
	snapshot, err := settings.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return settings.NewStore(snapshot)
}
