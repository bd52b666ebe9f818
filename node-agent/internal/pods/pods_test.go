package pods

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"ebb.dev/ebb/node-agent/internal/guard"
	"ebb.dev/ebb/node-agent/internal/link"
	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/test/eventually"
)

func uid(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

// text is a pod as the API server writes it. more is what its owner added to its metadata.
func text(i int, ip, more string) string {
	return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p%d","namespace":"tenant","uid":%q,"resourceVersion":"%d",
"labels":{"serving.knative.dev/revision":"hello"},%s},"spec":{"nodeName":"n","containers":[{"name":"app","image":"x"}]},
"status":{"phase":"Running","podIP":%q,"containerStatuses":[{"name":"app","containerID":"containerd://%s","state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}},
{"name":"queue-proxy","containerID":"containerd://%s","state":{"running":{}}}]}}`, i, uid(i), i+1, more, ip, strings.Repeat("ab", 32), strings.Repeat("cd", 32))
}

const plain = `"annotations":{"autoscaling.ebb.dev/standby-containers":"app"}`

// fat is as much metadata as a pod can have: annotations, and the names of them once for each of
// four managers.
func fat() string {
	var notes, fields strings.Builder
	for i := range 780 {
		key := fmt.Sprintf("%03d%s.%s/%s", i, strings.Repeat("a", 60), strings.Repeat("b", 120), strings.Repeat("c", 63))
		fmt.Fprintf(&notes, `%q:"",`, key)
		fmt.Fprintf(&fields, `"f:%s":{},`, key)
	}
	manager := `{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{` + strings.TrimSuffix(fields.String(), ",") + `}}}}`
	return `"annotations":{` + notes.String() + `"autoscaling.ebb.dev/standby-containers":"app"},"managedFields":[` + strings.TrimSuffix(strings.Repeat(manager+",", 4), ",") + `]`
}

// server answers as an API server with these pods. One that streams sends the list as a watch.
func server(t *testing.T, streams bool, write func(w io.Writer, i int), n int) (config *rest.Config, asked func() []string) {
	var mu sync.Mutex
	var queries []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		queries = append(queries, r.URL.Path+"?fieldSelector="+r.URL.Query().Get("fieldSelector")+"&labelSelector="+r.URL.Query().Get("labelSelector"))
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		initial := r.URL.Query().Get("sendInitialEvents") == "true"
		switch {
		case r.URL.Query().Get("watch") == "":
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1000"},"items":[`)
			for i := range n {
				if i > 0 {
					fmt.Fprint(w, ",")
				}
				write(w, i)
			}
			fmt.Fprint(w, `]}`)
			return
		case initial && !streams:
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"sendInitialEvents is forbidden"}`)
			return
		case initial:
			for i := range n {
				fmt.Fprint(w, `{"type":"ADDED","object":`)
				write(w, i)
				fmt.Fprintln(w, `}`)
			}
			fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1000","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL}, func() []string { mu.Lock(); defer mu.Unlock(); return queries }
}

// follow runs Pods against an API server and returns how to end them.
func follow(t *testing.T, p *Pods, config *rest.Config) {
	source, err := Source(config, "n")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, source) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func unguarded() *Pods {
	p := New()
	p.Log = slog.New(slog.DiscardHandler)
	away := make(chan struct{})
	p.Link = link.Options{Allowed: func() bool { return false }, Away: func() <-chan struct{} { return away }, Log: p.Log}
	return p
}

// heap is what the heap holds, dead objects included.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// Fifty such pods are 50 MB. The agent's limit is 64Mi, and it is to have room beside them.
func TestPodsThatAreFatTakeNoMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	const pods, room = 50, 24 << 20
	more := fat()
	for name, streams := range map[string]bool{"a server that lists": false, "a server that streams lists": true} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			config, asked := server(t, streams, func(w io.Writer, i int) {
				_, _ = io.WriteString(w, text(i, "192.0.2.1", more))
				sent.Add(1)
			}, pods)
			runtime.GC()
			before, most, done := heap(), atomic.Uint64{}, make(chan struct{})
			go func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(time.Millisecond):
						most.Store(max(most.Load(), heap()))
					}
				}
			}()
			p := unguarded()
			follow(t, p, config)
			for n := range int64(pods) { // each is work for a busy machine
				eventually.True(t, fmt.Sprintf("it reads on after %d pods", n), func() bool { return sent.Load() > n })
			}
			eventually.True(t, "it sees every pod", func() bool { return p.Count() == pods })
			close(done)
			runtime.GC()
			if kept := int64(heap()) - int64(before); kept > room/8 {
				t.Errorf("%d pods keep %d KiB", pods, kept>>10)
			}
			if took := int64(most.Load()) - int64(before); took > room {
				t.Errorf("reading %d pods took %d MiB", pods, took>>20)
			}
			for _, q := range asked() {
				if !strings.Contains(q, "status.phase=Running") || !strings.Contains(q, "spec.nodeName=n") || !strings.HasSuffix(q, "labelSelector="+revisionLabel) {
					t.Errorf("the agent asks for %s", q)
				}
			}
		})
	}
}

func TestPodsOfRevisionsAloneHaveALink(t *testing.T) {
	good := text(1, "192.0.2.1", plain)
	for name, c := range map[string]struct {
		pod  string
		want bool
	}{
		"a pod of a revision":       {good, true},
		"without the label":         {strings.Replace(good, "serving.knative.dev/revision", "serving.knative.dev/Revision", 1), false},
		"without queue-proxy":       {strings.Replace(good, `"queue-proxy"`, `"proxy"`, 1), false},
		"without the annotation":    {strings.Replace(good, "standby-containers", "Standby-Containers", 1), false},
		"one that is being deleted": {strings.Replace(good, `"uid"`, `"deletionTimestamp":"2026-01-01T00:00:00Z","uid"`, 1), false},
		"one that has ended":        {strings.Replace(good, `"Running"`, `"Succeeded"`, 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			var pod Pod
			if err := pod.UnmarshalJSON([]byte(c.pod)); err != nil {
				t.Fatal(err)
			}
			if pod.sleeps() != c.want {
				t.Errorf("sleeps: %v", !c.want)
			}
		})
	}
	var pod Pod
	if err := pod.UnmarshalJSON([]byte(strings.Replace(good, `containers":"app"`, `containers":"app,queue-proxy"`, 1))); err != nil {
		t.Fatal(err)
	}
	if ids, err := pod.containers(); err == nil {
		t.Errorf("the agent would freeze %v", ids)
	}
}

// busy are the cgroups of a node; work on them takes a CPU for some milliseconds.
type busy struct {
	running, most atomic.Int64
	done          atomic.Int64
}

func (b *busy) work() error {
	if n := b.running.Add(1); n > b.most.Load() {
		b.most.Store(n)
	}
	defer b.running.Add(-1)
	for began := time.Now(); time.Since(began) < 3*time.Millisecond; {
	}
	b.done.Add(1)
	return nil
}
func (b *busy) Freeze(context.Context, string, []string) error   { return b.work() }
func (b *busy) Thaw(string) error                                { return b.work() }
func (b *busy) Compress(context.Context, string, []string) error { return b.work() }

type silent struct{}

func (silent) Worked(standby.Work, time.Duration, error) {}
func (silent) Refused(string)                            {}

// flood is a pod that orders as fast as it can.
func flood(l net.Listener, uid string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(io.Discard, bufio.NewReader(conn)) }()
		fmt.Fprintf(conn, "hello 1 %s\n", uid)
		for n := 1; ; n += 2 {
			if _, err := fmt.Fprintf(conn, "freeze %d compressed %d\nthaw %d\n", n, int64(1)<<62, n+1); err != nil {
				return
			}
		}
	}
}

// spent is the CPU time that this process has used.
func spent(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// A node full of pods that flood their agent: it answers the guard, which would kill it otherwise
// and thaw everybody.
func TestTheGuardIsAnsweredWhilePodsFloodTheAgent(t *testing.T) {
	const pods = 40
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := netip.MustParseAddrPort(first.Addr().String()).Port()
	listeners := []net.Listener{first}
	for i := 1; i < pods; i++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.1.%d:%d", i, port))
		if err != nil {
			t.Skip("this test needs one port of several addresses:", err)
		}
		listeners = append(listeners, l)
	}
	for i, l := range listeners {
		t.Cleanup(func() { l.Close() })
		go flood(l, uid(i))
	}
	config, _ := server(t, true, func(w io.Writer, i int) {
		host, _, _ := net.SplitHostPort(listeners[i].Addr().String())
		_, _ = io.WriteString(w, text(i, host, plain))
	}, pods)
	post, socket := guard.NewPost(), filepath.Join(t.TempDir(), "guard")
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- post.Serve(ctx, socket) }()
	t.Cleanup(func() { stop(); <-served })
	var conn net.Conn
	eventually.True(t, "the agent listens for the guard", func() bool { conn, err = net.Dial("unix", socket); return err == nil })
	defer func() { conn.Close() }()
	// The agent hangs up when no ping came for a second, which is the fault of a busy machine here.
	// It returns how much CPU time the process had until the answer, which is little on such a
	// machine.
	ping := func() time.Duration {
		for {
			began, b := spent(t), []byte{'.'}
			_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
			_, err := conn.Write(b)
			if err == nil {
				_, err = io.ReadFull(conn, b)
			}
			if err == nil {
				return spent(t) - began
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("a ping was never answered")
			}
			conn.Close()
			if conn, err = net.Dial("unix", socket); err != nil {
				t.Fatal(err)
			}
		}
	}
	ping()
	work, p := &busy{}, New()
	p.Cgroups, p.Port, p.Log = work, port, slog.New(slog.DiscardHandler)
	never := make(chan struct{}) // a machine too busy to ping is no reason to stop here
	p.Link = link.Options{Allowed: func() bool { return true }, Away: func() <-chan struct{} { return never }, Swap: true, Pool: link.NewPool(), Clock: link.SinceBoot, Count: silent{}, Log: p.Log}
	follow(t, p, config)
	var slowest time.Duration
	began := time.Now()
	eventually.True(t, "it works for every pod", func() bool {
		slowest = max(slowest, ping())
		return work.done.Load() > 5*pods
	})
	// Ten times what the guard waits, on all CPUs.
	if bound := time.Duration(runtime.GOMAXPROCS(0)) * 4500 * time.Millisecond; slowest > bound {
		t.Errorf("a ping was answered after %s of CPU time, want %s at most", slowest, bound)
	}
	if n := work.most.Load(); n > 5 {
		t.Errorf("the agent worked on %d pods at once", n)
	}
	bound := int64(pods * (2*time.Since(began).Seconds() + 8) * 3) // a freeze is a compression and a thaw, too
	if n := work.done.Load(); n > bound {
		t.Errorf("the agent worked %s times, more than %d", strconv.FormatInt(n, 10), bound)
	}
}
