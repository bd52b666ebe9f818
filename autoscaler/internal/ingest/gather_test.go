package ingest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/wire"
)

// ends are connections of the kernel's, one to a pod, and what the pod has of it.
func ends(t *testing.T) (s *Scraper, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s = NewScraper(func(loop.Key) []pods.Pod { return []pods.Pod{{Name: "p", IP: "127.0.0.1"}} })
	var dialer net.Dialer
	near, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	t.Cleanup(s.Close)
	s.Dial = func(context.Context, string) (net.Conn, error) { return nil, fmt.Errorf("nobody is to dial") }
	s.give(newConnection(near, "127.0.0.1", "127.0.0.1"))
	return s, far
}

// looked is an inquiry that was sent, and what became of it.
func looked(t *testing.T, s *Scraper) (*inquiry, chan revision.Scrape) {
	t.Helper()
	done := make(chan revision.Scrape, 1)
	i := &inquiry{done: func(r revision.Scrape) { done <- r }}
	s.slots <- struct{}{}
	if !s.begin(i, time.Now()) || !s.send(i) {
		t.Fatal("the connection at rest was not asked")
	}
	return i, done
}

func asked(t *testing.T, far net.Conn) {
	t.Helper()
	if _, err := http.ReadRequest(bufio.NewReader(far)); err != nil {
		t.Fatalf("the pod was asked %v", err)
	}
}

// sentence is the answer of pod p that it has so many requests.
func sentence(concurrency float64) (first, rest string) {
	body := wire.Stat{PodName: "p", AverageConcurrent: concurrency}.Append(nil)
	whole := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return whole[:30], whole[30:]
}

func TestAnAnswerThatComesInPartsIsPutTogether(t *testing.T) {
	for _, behaviour := range []string{"while it is looked for", "while it is waited for"} {
		t.Run(behaviour, func(t *testing.T) {
			s, far := ends(t)
			i, done := looked(t, s)
			asked(t, far)
			first, rest := sentence(3)
			io.WriteString(far, first)
			space := new([maxAnswer]byte)
			for len(i.questions[0].part) == 0 { // until the kernel has brought it
				i.looks = 0
				if s.collect(i, space) {
					t.Fatal("a part was taken for the whole")
				}
				runtime.Gosched()
			}
			if behaviour == "while it is waited for" {
				i.looks = maxLooks - 1 // the last look
				if !s.collect(i, space) {
					t.Fatal("nobody waits after the last look")
				}
				io.WriteString(far, rest)
			} else {
				io.WriteString(far, rest)
				for ended := false; !ended; runtime.Gosched() {
					i.looks = 0
					ended = s.collect(i, space)
				}
			}
			if got := <-done; got.Failed || got.Report.Concurrency != 3 {
				t.Errorf("%+v", got)
			}
			if c := s.take("127.0.0.1"); c == nil || !c.resting {
				t.Errorf("the connection was not kept at rest: %+v", c)
			} else {
				s.give(c)
			}
		})
	}
}

// A pod that answers and never reads what it is asked fills the connection; nobody may wait for it
// to drain.
func TestAPodThatDoesNotReadIsAskedByANewConnection(t *testing.T) {
	s, far := ends(t)
	c := s.take("127.0.0.1")
	for c.sendNow() == nil {
	}
	s.give(c)
	dialled := make(chan struct{}, 1)
	s.Dial = func(context.Context, string) (net.Conn, error) {
		dialled <- struct{}{}
		return nil, fmt.Errorf("no more room")
	}
	i, done := looked(t, s)
	if !s.collect(i, new([maxAnswer]byte)) {
		t.Fatal("a request that could not be sent is waited for")
	}
	if got := <-done; !got.Failed {
		t.Errorf("%+v", got)
	}
	<-dialled
	if _, err := io.Copy(io.Discard, far); err != nil {
		t.Errorf("the full connection was not closed: %v", err)
	}
}

// While one revision's pod says nothing, the others are scraped; what it says at last still counts.
func TestAPodThatTakesItsTimeDelaysNobody(t *testing.T) {
	port := 0
	release := make(chan struct{})
	hold := make(chan bool, 1)
	slow := pod(t, "slow", "127.0.0.1", &port, func(w http.ResponseWriter, r *http.Request) {
		if <-hold {
			<-release
		}
		stat(wire.Stat{PodName: "slow", AverageConcurrent: 5})(w, r)
	})
	fast := pod(t, "fast", "127.0.0.2", &port, stat(wire.Stat{PodName: "fast", AverageConcurrent: 1}))
	s := NewScraper(func(k loop.Key) []pods.Pod {
		if k.Name == "slow" {
			return []pods.Pod{slow}
		}
		return []pods.Pod{fast}
	})
	s.Port = port
	t.Cleanup(s.Close)
	of := func(name string) chan revision.Scrape {
		done := make(chan revision.Scrape, 1)
		s.Scrape(loop.Key{Namespace: "default", Name: name}, time.Minute, func(r revision.Scrape) { done <- r })
		return done
	}
	hold <- false
	if got := <-of("slow"); got.Failed {
		t.Fatalf("%+v", got)
	}
	hold <- true
	began := time.Now()
	waiting := of("slow")
	for range 20 { // more than there are looks
		if got := <-of("fast"); got.Failed || got.Report.Concurrency != 1 {
			t.Fatalf("%+v", got)
		}
	}
	select {
	case got := <-waiting:
		if !got.Failed || time.Since(began) < scrapeTimeout { // which a machine that is busy enough may take for twenty scrapes
			t.Errorf("%+v before it was said", got)
		}
		close(release)
		return
	default:
	}
	close(release)
	if got := <-waiting; (got.Failed || got.Report.Concurrency != 5) && time.Since(began) < scrapeTimeout {
		t.Errorf("%+v", got)
	}
}

func TestConnectionsAtRestAreClosed(t *testing.T) {
	s, far := ends(t)
	s.Close()
	if n, err := far.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d bytes, %v", n, err)
	}
}
