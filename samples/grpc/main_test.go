package main

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"ebb.dev/ebb/samples/grpc/greeting"
)

func serve(t *testing.T, pace time.Duration) (address string, conn *grpc.ClientConn) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(pace)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	address = listener.Addr().String()
	conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return address, conn
}

func TestItsOwnClientGetsAReplyAndAStream(t *testing.T) {
	address, _ := serve(t, time.Millisecond)
	var out bytes.Buffer
	if err := call(t.Context(), &out, address); err != nil || out.String() != "Hello gRPC!\n1\n2\n3\n" {
		t.Errorf("got %q, %v", &out, err)
	}
}

func TestHelloGreetsTheWorldByDefault(t *testing.T) {
	_, conn := serve(t, time.Millisecond)
	reply, err := greeting.NewGreetingClient(conn).Hello(t.Context(), &greeting.HelloRequest{})
	if err != nil || reply.GetText() != "Hello World!" {
		t.Errorf("got %v, %v", reply, err)
	}
}

func TestItIsHealthy(t *testing.T) {
	_, conn := serve(t, time.Millisecond)
	reply, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || reply.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("got %v, %v", reply, err)
	}
}

func TestAStreamOfTheWrongLengthIsRefused(t *testing.T) {
	_, conn := serve(t, time.Millisecond)
	for _, to := range []int32{-1, 0, 1001} {
		stream, err := greeting.NewGreetingClient(conn).Count(t.Context(), &greeting.CountRequest{To: to})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("to %d: got %v", to, err)
		}
	}
}

func TestAStreamEndsWhenItsClientLeaves(t *testing.T) {
	ended := make(chan error, 1)
	ctx, leave := context.WithCancel(t.Context())
	stream := left{ctx: ctx}
	go func() { ended <- greeter{pace: time.Hour}.Count(&greeting.CountRequest{To: 3}, stream) }()
	leave()
	if err := <-ended; status.FromContextError(err).Code() != codes.Canceled {
		t.Errorf("got %v", err)
	}
}

// left is a stream of which only the context is asked.
type left struct {
	grpc.ServerStreamingServer[greeting.CountReply]
	ctx context.Context
}

func (l left) Context() context.Context { return l.ctx }
