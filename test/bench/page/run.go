package main

import (
	"context"
	"fmt"
	"os"

	"ebb.dev/ebb/test/browser"
	"ebb.dev/ebb/test/fleet"
)

func (b *bench) run(ctx context.Context) error {
	folder, err := os.MkdirTemp("", "ebb-page-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	cluster, err := fleet.Start(b.services)
	if err != nil {
		return err
	}
	defer cluster.Stop()
	binary, err := fleet.Build(ctx, folder)
	if err != nil {
		return err
	}
	dashboard, err := fleet.Run(binary, cluster.URL.String())
	if err != nil {
		return err
	}
	defer dashboard.Stop()
	if b.serve {
		fmt.Fprintf(os.Stderr, "%s\nsign in with %q (everything) or %q (the namespace %s)\n", dashboard.URL, fleet.Admin, fleet.Tenant, fleet.TenantsNamespace)
		<-ctx.Done()
		return nil
	}
	chromium, err := browser.Start(ctx)
	if err != nil {
		return err
	}
	defer chromium.Stop()
	if b.pictures != "" {
		if err := take(ctx, chromium, dashboard.URL, b.pictures); err != nil {
			return err
		}
		return takeTerminal(chromium, b.pictures)
	}
	return b.measure(ctx, chromium, cluster, dashboard)
}
