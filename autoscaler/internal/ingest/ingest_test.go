package ingest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/wire"
)

var tokenKey = []byte("0123456789abcdef0123456789abcdef")

type inbox struct {
	mutex   sync.Mutex
	samples []loop.Sample
	fail    error
}

func (i *inbox) Report(s []loop.Sample) error {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.samples = append(i.samples, s...)
	return i.fail
}

type owners map[string]string // revision -> IP of the owner; absent means this process

func (o owners) Owns(k loop.Key) bool    { _, other := o[k.Name]; return !other }
func (o owners) Owner(k loop.Key) string { return o[k.Name] }

func message(revision string, stat wire.Stat) wire.StatMessage {
	return wire.StatMessage{Namespace: "default", Revision: revision, Stat: stat}
}

func keys() wire.Keys { return wire.Keys{Current: tokenKey, Accepted: [][]byte{tokenKey}} }

func post(s *Server, token string, body []byte, change func(*http.Request)) int {
	request := httptest.NewRequest(http.MethodPost, wire.PathStats, bytes.NewReader(body))
	request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	if token != "" {
		if err := new(wire.Signer).Sign(request, token); err != nil {
			panic(err)
		}
	}
	if change != nil {
		change(request)
	}
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, request)
	return answer.Code
}

func TestWhoMayReportWhat(t *testing.T) {
	activator := wire.Token(tokenKey, "", wire.ActivatorSubject)
	hello := wire.Token(tokenKey, "default", "hello-00001")
	good := wire.Stat{PodName: "p", AverageConcurrent: 3, AverageProxiedConcurrent: 1, Requests: 5, ProxiedRequests: 2, Queued: 1}
	bad := good
	bad.Requests = math.NaN()
	cases := []struct {
		behaviour string
		token     string
		messages  []wire.StatMessage
		body      []byte
		change    func(*http.Request)
		key       []byte
		fail      error
		status    int
		taken     int
	}{
		{"an activator reports for all revisions", activator, []wire.StatMessage{message("hello-00001", good), message("other-00001", good)}, nil, nil, tokenKey, nil, 204, 2},
		{"a pod reports for its own revision", hello, []wire.StatMessage{message("hello-00001", good)}, nil, nil, tokenKey, nil, 204, 1},
		{"a pod does not report for another revision", hello, []wire.StatMessage{message("other-00001", good)}, nil, nil, tokenKey, nil, 401, 0},
		{"nor for another one besides its own", hello, []wire.StatMessage{message("hello-00001", good), message("other-00001", good)}, nil, nil, tokenKey, nil, 401, 0},
		{"without a token nobody reports", "", []wire.StatMessage{message("hello-00001", good)}, nil, nil, tokenKey, nil, 401, 0},
		{"before there is a key nobody reports", wire.Token(nil, "", wire.ActivatorSubject), []wire.StatMessage{message("hello-00001", good)}, nil, nil, nil, nil, 401, 0},
		{"a body that is no protobuf is refused", activator, nil, []byte{0xff, 0xff, 0xff}, nil, tokenKey, nil, 400, 0},
		{"a body that is too long is refused", activator, nil, make([]byte, wire.MaxStatsBytes+1), nil, tokenKey, nil, 413, 0},
		{"a pod's body is short", hello, nil, make([]byte, wire.MaxPodStatsBytes+1), nil, tokenKey, nil, 413, 0},
		{"a made-up token brings no long body", "made-up", nil, make([]byte, wire.MaxPodStatsBytes+1), nil, tokenKey, nil, 413, 0},
		{"an activator's body holds so many stats", activator, nil, bytes.Repeat([]byte{0x0a, 0}, wire.MaxStats+1), nil, tokenKey, nil, 413, 0},
		{"a pod's holds few", hello, nil, bytes.Repeat([]byte{0x0a, 0}, wire.MaxPodStats+1), nil, tokenKey, nil, 413, 0},
		{"a reporter's name is short", activator, []wire.StatMessage{message("hello-00001", wire.Stat{PodName: strings.Repeat("p", 254), AverageConcurrent: 1})}, nil, nil, tokenKey, nil, 204, 0},
		{"figures that are no load are left out", activator, []wire.StatMessage{message("hello-00001", bad), message("other-00001", good)}, nil, nil, tokenKey, nil, 204, 1},
		{"a reporter without a name is left out", activator, []wire.StatMessage{message("hello-00001", wire.Stat{AverageConcurrent: 1})}, nil, nil, tokenKey, nil, 204, 0},
		{"a full inbox is told to the sender", activator, []wire.StatMessage{message("hello-00001", good)}, nil, nil, tokenKey, loop.ErrBusy, 503, 1},
		{"a revision that nobody decides for is told to the sender", activator, []wire.StatMessage{message("orphan", good)}, nil, nil, tokenKey, nil, 503, 0},
		{"what was forwarded once is not forwarded again", activator, []wire.StatMessage{message("theirs", good)}, nil, func(r *http.Request) { r.Header.Set(headerForwarded, "1") }, tokenKey, nil, 503, 0},
		{"only POST reports", activator, nil, nil, func(r *http.Request) { r.Method = http.MethodGet }, tokenKey, nil, 405, 0},
	}
	for _, c := range cases {
		t.Run(c.behaviour, func(t *testing.T) {
			in := &inbox{fail: c.fail}
			s := &Server{Keys: func() wire.Keys { return wire.KeysOf(map[string][]byte{wire.TokenSecretKey: c.key}) }, Reporter: in, Owners: owners{"orphan": "", "theirs": "192.0.2.1"}, Clock: time.Now}
			body := c.body
			if body == nil {
				body = wire.EncodeStats(c.messages)
			}
			if got := post(s, c.token, body, c.change); got != c.status {
				t.Errorf("status %d, want %d", got, c.status)
			}
			if len(in.samples) != c.taken {
				t.Errorf("took %d samples, want %d", len(in.samples), c.taken)
			}
			for _, one := range in.samples {
				if one.Report.Concurrency != 2 || one.Report.RequestsPerSecond != 3 || one.Report.Queued != 1 {
					t.Errorf("sample %+v: what an activator has counted must be left out", one)
				}
				if one.Report.OnePod != (c.token == hello) {
					t.Errorf("sample %+v: from one pod is %v", one, one.Report.OnePod)
				}
			}
		})
	}
}

type toOwner func(*http.Request) (*http.Response, error)

func (f toOwner) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestStatsGoToTheReplicaThatDecides(t *testing.T) {
	theirs := &inbox{}
	owner := &Server{Keys: keys, Reporter: theirs, Clock: time.Now}
	mine := &inbox{}
	var address string
	s := &Server{Keys: keys, Reporter: mine, Owners: owners{"theirs": "192.0.2.1"}, Clock: time.Now,
		Client: &http.Client{Transport: toOwner(func(r *http.Request) (*http.Response, error) {
			address = r.URL.Host
			answer := httptest.NewRecorder()
			owner.ServeHTTP(answer, r)
			return answer.Result(), nil
		})}}
	stat := wire.Stat{PodName: "p", AverageConcurrent: 3}
	status := post(s, wire.Token(tokenKey, "", wire.ActivatorSubject), wire.EncodeStats([]wire.StatMessage{message("mine", stat), message("theirs", stat)}), nil)
	if status != 204 || len(mine.samples) != 1 || len(theirs.samples) != 1 || address != "192.0.2.1:8080" {
		t.Errorf("status %d, %d here, %d at %s", status, len(mine.samples), len(theirs.samples), address)
	}
	if s.Forwarded.Load() != 1 {
		t.Errorf("%d counted as forwarded", s.Forwarded.Load())
	}
}

// pod is a pod that answers scrapes; each has an address of its own on the loopback.
func pod(t *testing.T, name, ip string, port *int, answer http.HandlerFunc) pods.Pod {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(*port)))
	if err != nil {
		t.Skipf("listen on %s: %v", ip, err)
	}
	*port = listener.Addr().(*net.TCPAddr).Port
	server := &http.Server{Handler: answer}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return pods.Pod{Name: name, IP: ip, Started: time.Now().Add(-time.Hour)}
}

func stat(s wire.Stat) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.Write(s.Append(nil)) }
}

func scrape(s *Scraper) revision.Scrape {
	done := make(chan revision.Scrape, 1)
	s.Scrape(loop.Key{Namespace: "default", Name: "hello-00001"}, time.Minute, func(r revision.Scrape) { done <- r })
	return <-done
}

// A judge's question has a query; the scrape of the same connection has none.
func TestAJudgeAsksForMore(t *testing.T) {
	port := 0
	var queries []string
	var mutex sync.Mutex
	counts := func(name string, judged *wire.Judged) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			mutex.Lock()
			queries = append(queries, r.URL.RawQuery)
			mutex.Unlock()
			s := wire.Stat{PodName: name}
			if r.URL.RawQuery == wire.QueryJudged {
				s.Judged = judged
			}
			if asks := r.Header.Get(wire.HeaderSenders) != ""; asks != (r.URL.RawQuery == wire.QueryJudged) {
				t.Errorf("asked for senders: %v, with the query %q", asks, r.URL.RawQuery)
			}
			stat(s)(w, r)
		}
	}
	one := pod(t, "one", "127.0.0.1", &port, counts("one", &wire.Judged{Good: 3, Failed: 1}))
	old := pod(t, "old", "127.0.0.2", &port, counts("old", nil))
	away := pods.Pod{Name: "away", IP: "127.0.0.3"}
	s := NewScraper(func(loop.Key) []pods.Pod { return []pods.Pod{one, old} })
	s.Port = port
	t.Cleanup(s.Close)
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	scrape(s)
	for range 2 { // the second time over connections that are kept
		got := map[string]*wire.Judged{}
		for _, stat := range s.AskJudged(t.Context(), key, []pods.Pod{one, old, away}) {
			got[stat.PodName] = stat.Judged
		}
		if len(got) != 2 || got["one"] == nil || *got["one"] != (wire.Judged{Good: 3, Failed: 1}) || got["old"] != nil {
			t.Errorf("got %v", got)
		}
	}
	scrape(s)
	slices.Sort(queries)
	if want := []string{"", "", "", "", "judged", "judged", "judged", "judged"}; !slices.Equal(queries, want) {
		t.Errorf("the queries are %q, want %q", queries, want)
	}
}

func TestScrape(t *testing.T) {
	port := 0
	var broken atomic.Bool
	var connections atomic.Int64
	one := pod(t, "one", "127.0.0.1", &port, stat(wire.Stat{PodName: "one", AverageConcurrent: 5, AverageProxiedConcurrent: 1, Requests: 10, Queued: 2, Completed: 7, BusySeconds: 1.5}))
	two := pod(t, "two", "127.0.0.2", &port, func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		stat(wire.Stat{PodName: "two", AverageConcurrent: 2})(w, r)
	})
	wrong := pod(t, "wrong", "127.0.0.3", &port, stat(wire.Stat{PodName: "somebody else", AverageConcurrent: 1000}))
	negative := pod(t, "negative", "127.0.0.4", &port, stat(wire.Stat{PodName: "negative", AverageConcurrent: -1}))
	long := pod(t, "long", "127.0.0.5", &port, func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, wire.MaxAnswerBytes+1)) })

	var ready []pods.Pod
	var foreign atomic.Int64
	s := NewScraper(func(loop.Key) []pods.Pod { return append([]pods.Pod(nil), ready...) })
	s.Port = port
	s.Foreign = func(loop.Key) { foreign.Add(1) }
	dial := s.Dial
	s.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		connections.Add(1)
		return dial(ctx, address)
	}
	t.Cleanup(s.Close)

	ready = []pods.Pod{one, two}
	for range 3 {
		got := scrape(s)
		if got.Failed || got.Report.Concurrency != 6 || got.Report.RequestsPerSecond != 10 || got.Report.ProxiedConcurrency != 1 || got.Report.Queued != 2 || got.Completed != 7 || got.BusySeconds != 1.5 {
			t.Fatalf("two pods: %+v", got)
		}
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections for three scrapes of two pods, want 2", n)
	}
	broken.Store(true)
	if got := scrape(s); !got.Failed {
		t.Errorf("one of two pods failed: %+v, want a failed scrape", got)
	}
	broken.Store(false)
	for name, p := range map[string]pods.Pod{"another pod's answer": wrong, "a negative load": negative, "an answer that is too long": long} {
		ready = []pods.Pod{p}
		if got := scrape(s); !got.Failed {
			t.Errorf("%s: %+v, want a failed scrape", name, got)
		}
	}
	if foreign.Load() != 2 {
		t.Errorf("%d foreign answers counted, want 2", foreign.Load())
	}
	ready = nil
	if got := scrape(s); !reflect.DeepEqual(got, revision.Scrape{}) {
		t.Errorf("no pods: %+v, want an empty result that did not fail", got)
	}
}

func TestASampleStandsForAllAndAFailedPodIsReplaced(t *testing.T) {
	port := 0
	var ready []pods.Pod
	for i := range 20 {
		name, ip := fmt.Sprint("p", i), fmt.Sprintf("127.0.1.%d", i+1)
		ready = append(ready, pod(t, name, ip, &port, stat(wire.Stat{PodName: name, AverageConcurrent: 3})))
	}
	size := revision.SampleSize(len(ready))
	for i := range len(ready) - size { // as many as can be replaced
		ready[i].Name = "gone"
	}
	var asked atomic.Int64
	s := NewScraper(func(loop.Key) []pods.Pod { return append([]pods.Pod(nil), ready...) })
	s.Port = port
	s.Observe = func(_ time.Duration, counted bool) {
		if counted {
			asked.Add(1)
		}
	}
	t.Cleanup(s.Close)
	if got := scrape(s); got.Failed || got.Report.Concurrency != 60 {
		t.Errorf("20 pods of 3 each: %+v", got)
	}
	ready[19].Name = "gone"
	if got := scrape(s); !got.Failed {
		t.Errorf("one fewer than the sample needs: %+v", got)
	}
	if asked.Load() != 1 {
		t.Errorf("%d scrapes counted, want 1", asked.Load())
	}
}

func TestAConnectionThatThePodClosedIsOpenedAnew(t *testing.T) {
	port := 0
	p := pod(t, "p", "127.0.0.1", &port, func(w http.ResponseWriter, r *http.Request) {
		// It promises to keep the connection, and closes it.
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		body := wire.Stat{PodName: "p", AverageConcurrent: 1}.Append(nil)
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		conn.Close()
	})
	s := NewScraper(func(loop.Key) []pods.Pod { return []pods.Pod{p} })
	s.Port = port
	t.Cleanup(s.Close)
	for range 3 {
		if got := scrape(s); got.Failed || got.Report.Concurrency != 1 {
			t.Fatalf("%+v", got)
		}
	}
}

// A node that died without a word costs one timeout, however many connections to its pods there
// are: nobody asks again who let the time pass.
func TestPodsThatLetTheTimePassAreNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []pods.Pod
		for i := range 3 {
			all = append(all, pods.Pod{Name: fmt.Sprint("p", i), IP: fmt.Sprintf("192.0.2.%d", i+1)})
		}
		var dead atomic.Bool
		var dials atomic.Int64
		s := NewScraper(func(loop.Key) []pods.Pod { return all })
		s.Dial = func(_ context.Context, address string) (net.Conn, error) {
			dials.Add(1)
			near, far := net.Pipe()
			i := slices.IndexFunc(all, func(p pods.Pod) bool { return strings.HasPrefix(address, p.IP+":") })
			go func() {
				for in := bufio.NewReader(far); ; {
					if _, err := http.ReadRequest(in); err != nil {
						return
					}
					if !dead.Load() {
						body := wire.Stat{PodName: all[i].Name, AverageConcurrent: 1}.Append(nil)
						fmt.Fprintf(far, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
					}
				}
			}()
			return near, nil
		}
		defer s.Close()
		if got := scrape(s); got.Failed || dials.Load() != 3 {
			t.Fatalf("%+v after %d dials", got, dials.Load())
		}
		dead.Store(true)
		began := time.Now()
		if got := scrape(s); !got.Failed {
			t.Errorf("%+v from pods that say nothing", got)
		}
		if took := time.Since(began); took > scrapeTimeout+time.Second || dials.Load() != 3 { // virtual
			t.Errorf("it took %s and %d dials, want %s and those of the first scrape", took, dials.Load(), scrapeTimeout)
		}
	})
}

// In a service mesh a pod is known by its headless Service. The setting counts for kept
// connections, too.
func TestInAMeshAPodIsScrapedByTheNameOfItsPrivateService(t *testing.T) {
	port := 0
	var asked atomic.Pointer[http.Request]
	p := pod(t, "p", "127.0.0.1", &port, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r)
		stat(wire.Stat{PodName: "p", AverageConcurrent: 1})(w, r)
	})
	var mesh atomic.Bool
	s := NewScraper(func(loop.Key) []pods.Pod { return []pods.Pod{p} })
	s.Port, s.Mesh = port, mesh.Load
	t.Cleanup(s.Close)
	for _, on := range []bool{false, true, true, false} {
		mesh.Store(on)
		if got := scrape(s); got.Failed || got.Report.Concurrency != 1 {
			t.Fatalf("mesh %v: %+v", on, got)
		}
		host, direct := net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), ""
		if on {
			host, direct = "hello-00001-private.default", "true"
		}
		if r := asked.Load(); r.Host != host || r.Header.Get(wire.HeaderDirectLB) != direct {
			t.Errorf("mesh %v: Host %q, headers %v", on, r.Host, r.Header)
		}
	}
}

func TestAnswersOfPods(t *testing.T) {
	stat := string(wire.Stat{PodName: "p", AverageConcurrent: 1}.Append(nil))
	plain := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/protobuf\r\ncontent-length: %d\r\n\r\n%s", len(stat), stat)
	chunked := fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(stat), stat)
	for name, c := range map[string]struct {
		text  string
		whole bool
		bad   bool
	}{
		"plain":                      {plain, true, false},
		"in parts":                   {chunked, true, false},
		"in parts, cut off":          {chunked[:len(chunked)-7], false, false},
		"cut off in the head":        {plain[:20], false, false},
		"cut off in the body":        {plain[:len(plain)-1], false, false},
		"nothing":                    {"", false, false},
		"another status":             {"HTTP/1.1 503 no\r\nContent-Length: 0\r\n\r\n", false, true},
		"no length":                  {"HTTP/1.1 200 OK\r\n\r\nabc", false, true},
		"two lengths":                {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", false, true},
		"a length that is none":      {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", false, true},
		"a negative length":          {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", false, true},
		"too long":                   {fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", wire.MaxAnswerBytes+1), false, true},
		"more than it said":          {plain + "x", false, true},
		"parts that make no sense":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", false, true},
		"parts that are too much":    {fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", 2*wire.MaxAnswerBytes, make([]byte, 2*wire.MaxAnswerBytes)), false, true},
		"a connection to be closed":  {fmt.Sprintf("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(stat), stat), true, false},
		"a protocol that is unknown": {"SSH-2.0\r\n\r\n", false, true},
	} {
		body, whole, err := answerOf([]byte(c.text))
		if whole != c.whole || (err != nil) != c.bad || whole && string(body) != stat {
			t.Errorf("%s: %q, whole %v, %v", name, body, whole, err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		body, whole, err := answerOf(data)
		if len(body) > wire.MaxAnswerBytes || whole && err != nil {
			t.Errorf("%d bytes, whole %v, %v", len(body), whole, err)
		}
	})
}

func FuzzStats(f *testing.F) {
	f.Add(wire.EncodeStats([]wire.StatMessage{message("hello-00001", wire.Stat{PodName: "p", AverageConcurrent: 3})}))
	f.Fuzz(func(t *testing.T, body []byte) {
		in := &inbox{}
		s := &Server{Keys: keys, Reporter: in, Clock: time.Now}
		status := post(s, wire.Token(tokenKey, "", wire.ActivatorSubject), body, nil)
		if status != 204 && status != 400 && status != 413 {
			t.Errorf("status %d", status)
		}
		for _, one := range in.samples {
			if !(one.Report.Concurrency >= 0 && one.Report.RequestsPerSecond >= 0 && one.Report.Queued >= 0) || one.Reporter == "" {
				t.Errorf("sample %+v", one)
			}
		}
	})
}
