// Command grpc is a gRPC service with a unary call, a call that streams, the health service that
// probes ask, and reflection for tools. With -call it is a client: it sends one call of each kind
// to the address and prints the replies.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"ebb.dev/ebb/samples/grpc/greeting"
)

func main() {
	address := flag.String("call", "", "address of a server to call")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if *address != "" {
		if err := call(ctx, os.Stdout, *address); err != nil {
			log.Fatal(err)
		}
		return
	}
	pace, err := time.ParseDuration(env("PACE", "100ms"))
	if err != nil || pace <= 0 {
		log.Fatalf("PACE is not a duration above 0: %v", err)
	}
	listener, err := net.Listen("tcp", ":"+env("PORT", "8080"))
	if err != nil {
		log.Fatal(err)
	}
	server := newServer(pace)
	go func() {
		<-ctx.Done()
		server.GracefulStop() // Kubernetes waits for timeoutSeconds
	}()
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}

func newServer(pace time.Duration) *grpc.Server {
	server := grpc.NewServer()
	greeting.RegisterGreetingServer(server, greeter{pace: pace})
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	return server
}

type greeter struct {
	greeting.UnimplementedGreetingServer
	pace time.Duration
}

func (greeter) Hello(_ context.Context, request *greeting.HelloRequest) (*greeting.HelloReply, error) {
	name := request.GetName()
	if name == "" {
		name = "World"
	}
	return &greeting.HelloReply{Text: "Hello " + name + "!"}, nil
}

func (g greeter) Count(request *greeting.CountRequest, stream grpc.ServerStreamingServer[greeting.CountReply]) error {
	if request.GetTo() < 1 || request.GetTo() > 1000 {
		return status.Errorf(codes.InvalidArgument, "to is %d, want 1 to 1000", request.GetTo())
	}
	tick := time.NewTicker(g.pace)
	defer tick.Stop()
	for number := range request.GetTo() {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
		if err := stream.Send(&greeting.CountReply{Number: number + 1}); err != nil {
			return err
		}
	}
	return nil
}

// call is the client.
func call(ctx context.Context, out io.Writer, address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := greeting.NewGreetingClient(conn)
	reply, err := client.Hello(ctx, &greeting.HelloRequest{Name: "gRPC"})
	if err != nil {
		return fmt.Errorf("call Hello of %s: %w", address, err)
	}
	fmt.Fprintln(out, reply.GetText())
	stream, err := client.Count(ctx, &greeting.CountRequest{To: 3})
	if err != nil {
		return fmt.Errorf("call Count of %s: %w", address, err)
	}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("call Count of %s: %w", address, err)
		}
		fmt.Fprintln(out, reply.GetNumber())
	}
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
