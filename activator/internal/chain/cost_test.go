package chain

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/internal/forwardtest"
	"ebb.dev/ebb/wire"
)

// The bound in bytes is only as good as the estimate of one waiting request.
func TestAWaitingRequestCostsAboutWhatIsAccounted(t *testing.T) {
	const many = 500
	w := newWorld(t, hold.Bounds{})
	w.revision(backends.Info{})
	usage := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := usage()
	conns := make([]net.Conn, many)
	for i := range conns {
		conn, err := net.Dial("tcp", w.url[len("http://"):])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns[i] = conn
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n"+wire.HeaderRevision+": rev\r\n"+wire.HeaderNamespace+": ns\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all wait", func() bool { return w.budget.Held() == many })
	each := (usage() - before) / many
	t.Logf("one waiting request takes %d bytes", each)
	if each > 3*requestCost/2 {
		t.Errorf("one waiting request takes %d bytes, accounted are %d", each, requestCost)
	}
}

// A request that finds a pod at once costs no allocation in the activator.
func TestAForwardedRequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	upstream := forwardtest.Hello(t)
	requests := map[string]string{
		"GET": "GET /x HTTP/1.1\r\nHost: hello.example.com\r\nUser-Agent: bench\r\nAccept: */*\r\nX-Forwarded-For: 10.0.0.1\r\n" +
			"Knative-Serving-Revision: rev\r\nKnative-Serving-Namespace: ns\r\nK-Network-Hash: abc\r\n\r\n",
		"POST": "POST /x HTTP/1.1\r\nHost: h\r\nKnative-Serving-Revision: rev\r\nKnative-Serving-Namespace: ns\r\nContent-Length: 5\r\n\r\nhello",
	}
	for name, info := range map[string]backends.Info{
		"no limit":  {Timeout: time.Minute, ResponseStartTimeout: time.Minute, IdleTimeout: time.Minute},
		"limit 100": {ContainerConcurrency: 100, Timeout: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hold.Bounds{})
			w.revision(info)
			w.pods(backends.Endpoint{Address: upstream, Pod: "p", Ready: true})
			for name, request := range requests {
				allocs := forwardtest.Allocations(t, w.url[len("http://"):], request)
				if allocs > 0 {
					t.Errorf("%s: %v allocations", name, allocs)
				}
			}
		})
	}
}
