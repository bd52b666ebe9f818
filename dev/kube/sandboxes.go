package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
)

// sandboxes removes every pod from a container runtime, for `make down`, which stops the kubelet
// first. It is not a program of Kubernetes, but uses the kubelet's client.
func sandboxes(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: sandboxes SOCKET")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client, err := remote.NewRemoteRuntimeServiceBuilder().WithEndpoint("unix://" + args[0]).
		WithConnectionTimeout(20 * time.Second).WithTracerProvider(noop.NewTracerProvider()).Build(ctx)
	if err != nil {
		return fmt.Errorf("reach containerd at %s: %w", args[0], err)
	}
	list, err := client.ListPodSandbox(ctx, &runtime.PodSandboxFilter{})
	if err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, 8) // more are not faster
	failures := make([]error, len(list))
	for i, s := range list {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := client.StopPodSandbox(ctx, s.Id); err != nil {
				failures[i] = fmt.Errorf("stop pod %s/%s: %w", s.Metadata.Namespace, s.Metadata.Name, err)
				return
			}
			if err := client.RemovePodSandbox(ctx, s.Id); err != nil {
				failures[i] = fmt.Errorf("remove pod %s/%s: %w", s.Metadata.Namespace, s.Metadata.Name, err)
			}
		})
	}
	group.Wait()
	fmt.Fprintf(os.Stdout, "%d pods removed\n", len(list))
	return errors.Join(failures...)
}
