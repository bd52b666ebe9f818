package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	activator "ebb.dev/ebb/activator/process"
	autoscaler "ebb.dev/ebb/autoscaler/process"
	"ebb.dev/ebb/coap"
	controller "ebb.dev/ebb/controller/process"
	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/internal/run"
	webhook "ebb.dev/ebb/webhook/process"
)

// Components that would listen on the same port have different ones here, which config/edge leads
// their Services to.
var environments = map[string]map[string]string{
	"coap":       {"EBB_METRICS_PORT": "9094"},
	"autoscaler": {"EBB_METRICS_PORT": "9091", "EBB_PPROF_PORT": "8009"},
	"controller": {"EBB_METRICS_PORT": "9092", "EBB_PPROF_PORT": "8010", "EBB_HEALTH_PORT": "8081"},
	"webhook":    {"EBB_METRICS_PORT": "9093", "EBB_PPROF_PORT": "8011", "EBB_HEALTH_PORT": "8082", "WEBHOOK_PORT": "8444"},
}

// with is env with a component's own values before it.
func with(component string, env func(string) string) func(string) string {
	own := environments[component]
	return func(name string) string { return cmp.Or(own[name], env(name)) }
}

// keysSecret holds the keys of CoAP clients, by identity.
const keysSecret = "coap-keys"

func start(ctx context.Context, env func(string) string, stdout io.Writer) error {
	// A component stops as soon as ctx ends, not when its turn comes: the next process is to lead
	// while the activator of this one finishes its requests, which may take minutes. One that ends
	// because the number of buckets changed begins again without the others.
	process := func(name string, of func(ctx context.Context, env func(string) string, stdout io.Writer) error) run.Part {
		return part(name, func(turn context.Context) error {
			both, stop := context.WithCancel(turn)
			defer stop()
			defer context.AfterFunc(ctx, stop)()
			for {
				if err := of(both, with(name, env), stdout); !errors.Is(err, lease.ErrRenamed) {
					return err
				}
			}
		})
	}
	parts := []run.Part{
		process("webhook", webhook.Run),
		process("controller", func(ctx context.Context, env func(string) string, stdout io.Writer) error {
			return controller.Run(ctx, nil, env, stdout)
		}),
		process("autoscaler", autoscaler.Run),
		process("activator", activator.Run),
	}
	if env("EBB_COAP_ADDRESS") != "" || env("EBB_COAPS_ADDRESS") != "" {
		parts = append(parts, part("CoAP", func(ctx context.Context) error { return serveCoAP(ctx, env, stdout) }))
	}
	return run.All(ctx, parts...)
}

func part(name string, f func(context.Context) error) run.Part { return run.Part{Name: name, Run: f} }

func serveCoAP(ctx context.Context, get func(string) string, stdout io.Writer) error {
	c := component.New("coap", with("coap", get), stdout)
	plain := c.Env.Text("EBB_COAP_ADDRESS", "", "Address to listen on for CoAP over UDP; none if not set.")
	secure := c.Env.Text("EBB_COAPS_ADDRESS", "", "Address to listen on for CoAP over DTLS; none if not set.")
	gateway := c.Env.Needed("EBB_COAP_GATEWAY", "Host and port that CoAP requests go to as HTTP.")
	if _, _, err := net.SplitHostPort(gateway); err != nil {
		c.Env.Refuse(fmt.Errorf("EBB_COAP_GATEWAY is %q, want the host and port of the gateway: %w", gateway, err))
	}
	if err := c.Dial(); err != nil {
		return err
	}
	keys, err := c.Secret(ctx, keysSecret)
	if err != nil {
		return err
	}
	entry, err := coap.New(coap.Options{Plain: plain, Secure: secure, Gateway: gateway, Keys: keys.Load, Log: c.Log}, c.Registry)
	if err != nil {
		return err
	}
	c.Log.Info("CoAP entry is built", "udp", plain, "dtls", secure, "gateway", gateway, "keys", c.Namespace+"/"+keysSecret)
	return run.All(ctx, c.Metrics(), part("requests", entry.Run))
}
