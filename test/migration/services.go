package main

import (
	"context"
	"fmt"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// target is an address that gets requests.
type target struct {
	name, service string
	url           string
	gateway       string // host:port
	rare          bool   // so seldom that the Service is at zero in between
}

// kinds of Services, in turn.
var kinds = []string{"split", "mapped", "zero", "plain", "local"}

// manifest is a Service. Each word makes a revision.
func (r *run) manifest(name, kind, word string) string {
	labels, scale := "", `autoscaling.knative.dev/window: 60s`
	switch kind {
	case "local":
		labels = "  labels: {networking.knative.dev/visibility: cluster-local}\n"
	case "zero":
		scale = `autoscaling.knative.dev/window: 6s`
	}
	traffic := ""
	if kind == "split" && word == "two" {
		traffic = fmt.Sprintf("  traffic:\n  - {revisionName: %s-00001, percent: 50, tag: one}\n  - {latestRevision: true, percent: 50, tag: two}\n", name)
	}
	return fmt.Sprintf(`apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: %s
%sspec:
  template:
    metadata:
      annotations: {%s}
    spec:
      containers:
      - image: %s
        env: [{name: TARGET, value: %s}]
        resources: {requests: {cpu: 5m, memory: 10Mi}}
%s`, name, labels, scale, r.image, word, traffic)
}

// apply makes the Services and waits until they are Ready.
func (r *run) apply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	local, err := r.local(ctx)
	if err != nil {
		return err
	}
	name := func(i int) string { return fmt.Sprintf("%s-%d", kinds[i%len(kinds)], i) }
	for i := range r.services {
		if err := r.Apply(ctx, r.Namespace, r.manifest(name(i), kinds[i%len(kinds)], "one")); err != nil {
			return err
		}
	}
	for i := range r.services {
		kind, name := kinds[i%len(kinds)], name(i)
		url, err := r.AwaitReady(ctx, r.Namespace, name)
		if err != nil {
			return err
		}
		t := target{name: name, service: name, url: url, gateway: r.Gateway, rare: kind == "zero"}
		if kind == "local" {
			t.gateway = local
		}
		r.targets = append(r.targets, t)
		switch kind {
		case "split":
			if err := r.Apply(ctx, r.Namespace, r.manifest(name, kind, "two")); err != nil {
				return err
			}
			if err := cluster.Until(ctx, func() (bool, string, error) {
				o, err := r.Get(ctx, cluster.Services, r.Namespace, name)
				if err != nil {
					return false, "", err
				}
				return cluster.IsReady(o), cluster.Describe(o), nil
			}); err != nil {
				return err
			}
			host, err := cluster.HostOf(url)
			if err != nil {
				return err
			}
			r.targets = append(r.targets, target{name: name + " tag", service: name, url: "http://two-" + host, gateway: r.Gateway})
		case "mapped":
			host := fmt.Sprintf("%s.%s.example.test", name, r.Namespace)
			if err := r.Apply(ctx, r.Namespace, fmt.Sprintf("apiVersion: serving.knative.dev/v1beta1\nkind: DomainMapping\nmetadata: {name: %s}\n"+
				"spec: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: %s}}\n", host, name)); err != nil {
				return err
			}
			if _, err := r.Await(ctx, cluster.DomainMappings, r.Namespace, host, cluster.IsReady); err != nil {
				return err
			}
			r.targets = append(r.targets, target{name: name + " mapping", service: name, url: "http://" + host, gateway: r.Gateway})
		}
		note("%s is Ready", name)
	}
	for _, t := range r.targets {
		if err := r.answers(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// answers waits until a target answers: Ready of Knative can come before the gateway follows.
func (r *run) answers(ctx context.Context, t target) error {
	client := r.ClientOf(t.gateway, 20*time.Second)
	defer client.CloseIdleConnections()
	return cluster.Until(ctx, func() (bool, string, error) {
		reply := probe.Get(ctx, client, t.url)
		return reply.OK(), t.name + ": " + reply.String(), nil
	})
}
