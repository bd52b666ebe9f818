package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"ebb.dev/ebb/dashboard/page"
)

func (p *program) dashboardCommand() *cobra.Command {
	port := uint16(0)
	c := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a page that shows all of this, live",
		Long: `Serve a page that shows all of this, live, until it is interrupted.

The page is served on this machine only, and reads with your own rights. The address that is printed
has a key behind the #. Others on this machine who do not have it see nothing.`,
		Example: `  kubectl ebb dashboard
  kubectl ebb dashboard --port 8080 --context production`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.serveDashboard(c.Context(), port) },
	}
	c.Flags().Uint16Var(&port, "port", 0, "the port; any that is free if 0")
	return c
}

func (p *program) serveDashboard(ctx context.Context, port uint16) error {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return err
	}
	api, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fmt.Errorf("read the address of the API server: %w", err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return fmt.Errorf("read your credentials: %w", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	host, key := listener.Addr().String(), rand.Text()
	handler, err := page.New(page.Options{API: api, Transport: transport, Key: key, Host: host,
		Log: slog.New(slog.NewTextHandler(p.out, nil)), Registry: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "Open this address in a browser, and interrupt this program when you are done:\n\n  http://%s/#key=%s\n\n", host, key)
	return page.Serve(ctx, listener, handler)
}
