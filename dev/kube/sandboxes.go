package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxes removes every pod from a container runtime, for `make down`, which stops the kubelet
// first. It is not a program of Kubernetes.
func sandboxes(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: sandboxes SOCKET")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("reach containerd at %s: %w", args[0], err)
	}
	defer connection.Close()
	client := runtime.NewRuntimeServiceClient(connection)
	reply, err := client.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("list the pods of containerd at %s: %w", args[0], err)
	}
	list := reply.Items
	var group sync.WaitGroup
	slots := make(chan struct{}, 8) // more are not faster
	failures := make([]error, len(list))
	for i, s := range list {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if _, err := client.StopPodSandbox(ctx, &runtime.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
				failures[i] = fmt.Errorf("stop pod %s/%s: %w", s.Metadata.Namespace, s.Metadata.Name, err)
				return
			}
			if _, err := client.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
				failures[i] = fmt.Errorf("remove pod %s/%s: %w", s.Metadata.Namespace, s.Metadata.Name, err)
			}
		})
	}
	group.Wait()
	fmt.Fprintf(os.Stdout, "%d pods removed\n", len(list))
	return errors.Join(failures...)
}
