//go:build e2e

package e2e

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"ebb.dev/ebb/samples/grpc/greeting"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// grpc is a connection to the gateway for calls of a host.
func (s *story) grpc(host string) *grpc.ClientConn {
	s.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.Gateway, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(host))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	return conn
}

// sample makes the Service of samples/name and returns its URL and host.
func (s *story) sample(name string) (url, host string) {
	s.Helper()
	url = s.ready(name, readSample(s.T, name+"/service.yaml"))
	host, err := cluster.HostOf(url)
	if err != nil {
		s.Fatal(err)
	}
	return url, host
}

func TestTheGRPCSampleAnswersStreamsAndIsHealthy(t *testing.T) {
	s := begin(t, 3*time.Minute)
	_, host := s.sample("grpc")
	conn := s.grpc(host)
	if reply, err := healthpb.NewHealthClient(conn).Check(s.ctx, &healthpb.HealthCheckRequest{}); err != nil || reply.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("its health is %v, %v", reply, err)
	}
	client := greeting.NewGreetingClient(conn)
	if reply, err := client.Hello(s.ctx, &greeting.HelloRequest{Name: "Ebb"}); err != nil || reply.GetText() != "Hello Ebb!" {
		t.Errorf("got %v, %v", reply, err)
	}
	stream, err := client.Count(s.ctx, &greeting.CountRequest{To: 6})
	if err != nil {
		t.Fatal(err)
	}
	var arrived []time.Time
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || int(reply.GetNumber()) != len(arrived)+1 {
			t.Fatalf("after %d replies: %v, %v", len(arrived), reply, err)
		}
		arrived = append(arrived, time.Now())
	}
	// They are sent over half a second.
	if len(arrived) != 6 || arrived[5].Sub(arrived[0]) < 100*time.Millisecond {
		t.Errorf("the replies arrived at %v", arrived)
	}
}

func TestTheWebSocketSampleSendsBackEachMessage(t *testing.T) {
	s := begin(t, 3*time.Minute)
	_, host := s.sample("websocket")
	s.echoesAWebSocket(t, host)
}

func TestTheEventsSampleGoesOnAfterTheLastEvent(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url, _ := s.sample("events")
	s.streamsEvents(t, s.client(), url+"/events?to=4")
	if reply := s.ask(url+"/events?to=4", "Last-Event-ID", "3"); reply.Body != "retry: 1000\n\nid: 4\ndata: 4\n\n" {
		t.Errorf("a client that came back got %v", reply)
	}
	if reply := s.ask(url+"/events?to=4", "Last-Event-ID", "4"); reply.Status != 204 {
		t.Errorf("a client that has all got %v, want 204", reply)
	}
	if reply := probe.Get(s.ctx, s.client(), url); !strings.Contains(reply.Body, "new EventSource(") {
		t.Errorf("the page is %v", reply)
	}
}

func TestTheSlowStarterShowsItsPageUntilItIsReady(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.readyAtZero("slow-start", readSample(t, "slow-start/service.yaml"))
	if reply := s.ask(url, "Accept", "text/html"); reply.Status != 503 || !strings.Contains(reply.Body, "<h1>We open in a moment.</h1>") {
		t.Errorf("at zero a browser got %v", reply)
	}
	if reply := probe.Get(s.ctx, s.client(), url); reply.Body != "Hello at last!\n" {
		t.Errorf("a program that waited got %v", reply)
	}
}
