package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
)

// sandboxes removes every pod from a container runtime: what `make down` needs
// when the kubelet is gone and the pods are not. It is not a program of
// Kubernetes, but made of the client that the kubelet brings along.
func sandboxes(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: sandboxes SOCKET")
	}
	logger := klog.Background()
	client, err := remote.NewRemoteRuntimeService("unix://"+args[0], 20*time.Second, nil, &logger)
	if err != nil {
		return fmt.Errorf("reach containerd at %s: %w", args[0], err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	list, err := client.ListPodSandbox(ctx, &runtime.PodSandboxFilter{})
	if err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, 8) // more only makes the disk seek
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
