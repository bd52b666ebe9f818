package chain

import (
	"io"
	"net"
	"runtime"
	"testing"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
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
