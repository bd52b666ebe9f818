package observe

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/reach"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

type locked struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(b)
}

func (l *locked) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

func snapshot(change func(*settings.Observability)) *settings.Snapshot {
	s := *settings.Default()
	change(&s.Observability)
	return &s
}

// What the ConfigMap asks for is done from the next request on, and what makes no sense is only
// left undone.
func TestLogAndSpansFollowTheSettings(t *testing.T) {
	budget := hold.NewBudget(hold.Bounds{})
	table := backends.NewTable(func(backends.Key, *backends.Info) *hold.Queue {
		return hold.New(0, budget.Share("ns"), hold.Options{Open: func(b hold.Backend) *reach.Pod { return reach.New(b.Address, reach.Options{}) }})
	})
	key := backends.Key{Namespace: "ns", Name: "rev"}
	table.SetRevision(key, &backends.Info{UID: "u", Service: "svc", Configuration: "cfg"})
	pod := httptest.NewServer(http.NotFoundHandler())
	defer pod.Close()
	table.SetSlice(key, "s", []backends.Endpoint{{Address: netip.MustParseAddrPort(pod.Listener.Addr().String()), Pod: "p", Ready: true}})
	store := settings.NewStore(nil)
	var out locked
	o := &Observer{Settings: store, Namespace: "sys", Pod: "pod", PodIP: "10.0.0.1", Stdout: &out, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- o.Run(ctx) }()
	await := func(what string, holds func(*now) bool) {
		t.Helper()
		eventually.True(t, what, func() bool {
			n := o.current.Load()
			return n != nil && holds(n)
		})
	}
	ended := make(chan bool, 1)
	handler := &chain.Handler{Table: table, Plans: plans.NewTable("cluster.local"), ReportNow: func(backends.Key) {}, Tracer: o.Tracer,
		Ended: func(x *chain.Exchange, r *forward.Request, result *forward.Result) {
			o.Ended(x, r, result)
			ended <- true
		}}
	server := &forward.Server{Handler: handler}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Close()
	request := func() {
		t.Helper()
		r, err := http.NewRequest("GET", "http://"+listener.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(wire.HeaderRevision, "rev")
		r.Header.Set(wire.HeaderNamespace, "ns")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		<-ended
	}
	await("the first settings", func(*now) bool { return true })
	request()
	if got := out.String(); got != "" {
		t.Errorf("by default %q is written", got)
	}
	store.Set(snapshot(func(s *settings.Observability) {
		s.EnableRequestLog, s.RequestLogTemplate = true, "{{.Revision.Namespace}}/{{.Revision.Name}} of {{.Revision.Service}} at {{.Revision.PodName}} {{.Response.Code}}"
	}))
	await("the log is on", func(n *now) bool { return n.log != nil })
	request()
	if got := out.String(); got != "ns/rev of svc at pod 404\n" {
		t.Errorf("the log has %q", got)
	}
	store.Set(snapshot(func(s *settings.Observability) { s.Tracing.Protocol, s.Tracing.SamplingRate = "stdout", 1 }))
	await("tracing is on", func(n *now) bool { return n.log == nil && n.tracer != nil })
	request()
	if got := out.String(); strings.Count(got, "\n") != 3 || !strings.Contains(got, `"traceId"`) {
		t.Errorf("with tracing %q", got)
	}
	store.Set(snapshot(func(s *settings.Observability) {
		s.Tracing.Protocol, s.EnableRequestLog, s.RequestLogTemplate = "grpc", true, "{{"
	}))
	await("what makes no sense is off", func(n *now) bool { return n.log == nil && n.tracer == nil })
	request()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
