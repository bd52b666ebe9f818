package forward

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"ebb.dev/ebb/test/eventually"
)

// program runs another people's client. Where it is not installed the test is skipped, but not in
// CI (environment variable CI); `make unit` installs them all.
func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if ci, _ := strconv.ParseBool(os.Getenv("CI")); err != nil && ci {
		t.Fatalf("%s is not installed (make tools installs it)", name)
	} else if err != nil {
		t.Skipf("%s is not installed (make tools installs it)", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// bothBackend answers HTTP/1.1 and HTTP/2 alike.
func bothBackend(t *testing.T) string {
	return h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto)
		switch r.URL.Path {
		case "/trailer":
			w.Header().Set("Trailer", "X-Sum")
			io.WriteString(w, "body")
			w.Header().Set("X-Sum", "4")
		case "/early":
			w.WriteHeader(413) // without reading the body
		case "/hints":
			w.Header().Set("Link", "</a>; rel=preload")
			w.WriteHeader(103)
			io.WriteString(w, "hinted")
		default:
			http.NewResponseController(w).EnableFullDuplex()
			io.Copy(w, r.Body)
		}
	})
}

func TestCurl(t *testing.T) {
	addr, _ := proxyTo(t, bothBackend(t), nil)
	file := filepath.Join(t.TempDir(), "body")
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	for version, flag := range map[string]string{"1.1": "--http1.1", "2": "--http2-prior-knowledge"} {
		t.Run(version, func(t *testing.T) {
			curl := func(args ...string) string {
				return program(t, "curl", append([]string{"-sS", "--max-time", "60", flag}, args...)...)
			}
			const about = "%{http_version} %{http_code} %{size_download} %{num_connects}\n"
			urls, want := []string{"http://" + addr + "/a"}, version+" 200 0 1\n"
			if version == "1.1" { // this curl (7.88) cannot reuse a prior-knowledge connection, whoever is at the other end
				urls, want = append(urls, "http://"+addr+"/b"), want+version+" 200 0 0\n"
			}
			if got := curl(append([]string{"-o", "/dev/null", "-o", "/dev/null", "-w", about}, urls...)...); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got := curl("--data-binary", "@"+file, "http://"+addr+"/echo"); got != string(body) {
				t.Errorf("an upload of known length: %d bytes of %d", len(got), len(body))
			}
			if got := curl("-T", "-", "-H", "Content-Length:", "http://"+addr+"/echo"); got != "" {
				t.Errorf("an empty upload of no length: %q", got)
			}
			if got := curl("-I", "http://"+addr+"/head"); !strings.HasPrefix(got, "HTTP/"+version+" 200") {
				t.Errorf("HEAD: %q", got)
			}
			if got := curl("-i", "http://"+addr+"/hints"); !strings.Contains(got, " 103") || !strings.HasSuffix(got, "hinted") {
				t.Errorf("an interim response: %q", got)
			}
			if version == "1.1" { // over HTTP/2 this curl shows no trailers, and takes the RST_STREAM (NO_ERROR) that stops its upload for a failure; see above for reuse
				if got := curl("-i", "http://"+addr+"/trailer"); !strings.Contains(strings.ToLower(got), "x-sum: 4") || !strings.Contains(got, "body") {
					t.Errorf("trailers: %q", got)
				}
				if got := curl("-Z", "--parallel-max", "50", "-o", "/dev/null", "-w", "%{http_code}\n", "http://"+addr+"/[1-100]"); strings.Count(got, "200\n") != 100 {
					t.Errorf("a hundred side by side: %q", got)
				}
				if got := curl("--data-binary", "@"+file, "-o", "/dev/null", "-w", "%{http_code}", "http://"+addr+"/early"); got != "413" {
					t.Errorf("a response before the body: %q", got)
				}
			}
			if got := curl("-H", "Expect: 100-continue", "--data-binary", "@"+file, "-o", "/dev/null", "-w", "%{http_code} %{size_download}", "http://"+addr+"/echo"); got != fmt.Sprint("200 ", len(body)) {
				t.Errorf("Expect: %q", got)
			}
		})
	}
}

func TestNghttp2(t *testing.T) {
	addr, _ := proxyTo(t, bothBackend(t), nil)
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 300000), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := program(t, "nghttp", "-v", "--window-bits=10", "-d", file, "http://"+addr+"/echo"); strings.Count(got, ":status: 200") != 1 ||
		strings.Contains(got, "RST_STREAM") || strings.Count(got, "x") < 300000 {
		t.Errorf("an echo with windows of 1 KiB: %.2000s", got)
	}
	if got := program(t, "nghttp", "-v", "http://"+addr+"/trailer"); !strings.Contains(got, "x-sum: 4") {
		t.Errorf("trailers: %s", got)
	}
	if got := program(t, "nghttp", "-nv", "--continuation", "--padding=100", "http://"+addr+"/a"); strings.Count(got, ":status: 200") != 1 {
		t.Errorf("CONTINUATION and padding: %s", got)
	}
	for _, args := range [][]string{
		{"-n", "2000", "-c", "4", "-m", "50", "http://" + addr + "/a"},
		{"-n", "60", "-c", "2", "-m", "20", "-w", "12", "-d", file, "http://" + addr + "/echo"},
		{"-n", "500", "-c", "4", "-m", "1", "--h1", "http://" + addr + "/a"},
	} {
		want := fmt.Sprintf("%s total, %[1]s started, %[1]s done, %[1]s succeeded, 0 failed, 0 errored, 0 timeout", args[1])
		if got := program(t, "h2load", args...); !strings.Contains(got, want) {
			t.Errorf("h2load %s: %s", strings.Join(args, " "), got)
		}
	}
}

// grpcService is a service of every kind of call.
type grpcService struct {
	testgrpc.UnimplementedTestServiceServer
}

func (grpcService) UnaryCall(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	if s := in.GetResponseStatus(); s != nil && s.Code != 0 {
		return nil, status.Error(codes.Code(s.Code), s.Message)
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		grpc.SetHeader(ctx, metadata.MD{"x-back": md.Get("x-there")})
		grpc.SetTrailer(ctx, metadata.MD{"x-end-bin": md.Get("x-there-bin")})
	}
	return &testgrpc.SimpleResponse{Payload: &testgrpc.Payload{Body: make([]byte, in.ResponseSize)}}, nil
}

func (grpcService) EmptyCall(ctx context.Context, _ *testgrpc.Empty) (*testgrpc.Empty, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (grpcService) StreamingInputCall(s testgrpc.TestService_StreamingInputCallServer) error {
	total := 0
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: int32(total)})
		}
		if err != nil {
			return err
		}
		total += len(in.GetPayload().GetBody())
	}
}

func (grpcService) FullDuplexCall(s testgrpc.TestService_FullDuplexCallServer) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for _, p := range in.ResponseParameters {
			if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: make([]byte, p.Size)}}); err != nil {
				return err
			}
		}
	}
}

func TestGRPC(t *testing.T) {
	l := listenLocal(t)
	server := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(server, grpcService{})
	go server.Serve(l)
	defer server.Stop()
	ledger := &ledger{}
	up := NewUpstream(l.Addr().String(), UpstreamOptions{})
	defer up.Close()
	ledger.admit = func(*Request) Decision { return Decision{Upstream: up} }
	addr := start(t, &Server{Handler: ledger})
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	c := testgrpc.NewTestServiceClient(cc)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	t.Run("unary, with metadata", func(t *testing.T) {
		var header, trailer metadata.MD
		out, err := c.UnaryCall(metadata.AppendToOutgoingContext(ctx, "x-there", "a", "x-there-bin", "\x00\xff"),
			&testgrpc.SimpleRequest{ResponseSize: 300000, Payload: &testgrpc.Payload{Body: make([]byte, 300000)}}, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil || len(out.GetPayload().GetBody()) != 300000 {
			t.Fatalf("%v %v", err, out)
		}
		if fmt.Sprint(header.Get("x-back")) != "[a]" || fmt.Sprintf("%q", trailer.Get("x-end-bin")) != `["\x00\xff"]` {
			t.Errorf("header %v, trailer %v", header, trailer)
		}
	})
	t.Run("many at a time", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 200 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if _, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: 100}); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
	})
	t.Run("a status without a body", func(t *testing.T) {
		_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseStatus: &testgrpc.EchoStatus{Code: int32(codes.DataLoss), Message: "ünïcode"}})
		if status.Code(err) != codes.DataLoss || status.Convert(err).Message() != "ünïcode" {
			t.Errorf("got %v", err)
		}
		if _, err := c.UnimplementedCall(ctx, &testgrpc.Empty{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a stream to the server", func(t *testing.T) {
		s, err := c.StreamingInputCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if err := s.Send(&testgrpc.StreamingInputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, 30000)}}); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := s.CloseAndRecv(); err != nil || out.AggregatedPayloadSize != 3000000 {
			t.Errorf("%v %v", out, err)
		}
	})
	t.Run("both ways, in turn", func(t *testing.T) {
		s, err := c.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			// The next message is sent only when the answer to this one is here.
			if err := s.Send(&testgrpc.StreamingOutputCallRequest{ResponseParameters: []*testgrpc.ResponseParameters{{Size: int32(i * 100)}}}); err != nil {
				t.Fatal(err)
			}
			if out, err := s.Recv(); err != nil || len(out.GetPayload().GetBody()) != i*100 {
				t.Fatalf("message %d: %v %v", i, out, err)
			}
		}
		s.CloseSend()
		if _, err := s.Recv(); err != io.EOF {
			t.Errorf("at the end %v", err)
		}
	})
	t.Run("a deadline and a cancellation", func(t *testing.T) {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if _, err := c.EmptyCall(short, &testgrpc.Empty{}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		long, stop := context.WithCancel(ctx)
		time.AfterFunc(20*time.Millisecond, stop)
		if _, err := c.EmptyCall(long, &testgrpc.Empty{}); status.Code(err) != codes.Canceled {
			t.Errorf("got %v", err)
		}
	})
	eventually.True(t, "every Admit has its Done", func() bool { return ledger.admits.Load() == ledger.dones.Load() })
}
