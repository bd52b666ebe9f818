package ingest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// A scale-down asks pods while a node may be dead: whoever does not answer before the caller's
// deadline is left out, whether the request, the answer or a second connection hangs. synctest
// fails the test if a goroutine is left behind.
func TestInFlightEndsWithItsContext(t *testing.T) {
	for behaviour, c := range map[string]struct{ given, want time.Duration }{
		"the caller's deadline is earlier": {time.Second, time.Second},
		"the scrape's deadline is earlier": {time.Minute, scrapeTimeout},
	} {
		t.Run(behaviour, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := []pods.Pod{{Name: "well", IP: "192.0.2.1"}, {Name: "silent", IP: "192.0.2.2"}, {Name: "closed", IP: "192.0.2.3"}, {Name: "away", IP: "192.0.2.4"}}
				key := loop.Key{Namespace: "default", Name: "hello-00001"}
				alive := true
				s := NewScraper(func(loop.Key) []pods.Pod { return all })
				s.Dial = func(ctx context.Context, address string) (net.Conn, error) {
					if !alive && !strings.HasPrefix(address, "192.0.2.1:") { // packets to a dead address are lost
						<-ctx.Done()
						return nil, ctx.Err()
					}
					if strings.HasPrefix(address, "192.0.2.4:") {
						return nil, errors.New("connection refused")
					}
					near, far := net.Pipe()
					go talk(far, all, address)
					return near, nil
				}
				defer s.Close()
				if got := s.InFlight(t.Context(), key, all); !maps.Equal(got, map[string]float64{"well": 3, "silent": 3, "closed": 3}) {
					t.Fatalf("before: %v", got)
				}
				alive = false
				ctx, cancel := context.WithTimeout(t.Context(), c.given)
				defer cancel()
				began := time.Now()
				if got := s.InFlight(ctx, key, all); !maps.Equal(got, map[string]float64{"well": 3}) {
					t.Errorf("%v, want the one pod that answers", got)
				}
				if took := time.Since(began); took != c.want { // virtual
					t.Errorf("it took %s, want %s", took, c.want)
				}
			})
		})
	}
}

func TestAPodThatSaysThatItIsBusyCountsAsEndlesslyBusy(t *testing.T) {
	port := 0
	all := []pods.Pod{
		pod(t, "told", "127.0.1.1", &port, stat(wire.Stat{PodName: "told", Busy: wire.BusyTold})),
		pod(t, "balked", "127.0.1.2", &port, stat(wire.Stat{PodName: "balked", Busy: wire.BusyBalked, AverageConcurrent: 2})),
	}
	s := NewScraper(func(loop.Key) []pods.Pod { return all })
	s.Port = port
	defer s.Close()
	want := map[string]float64{"told": math.Inf(1), "balked": 2}
	eventually.Seen(t, "both pods answer in time", func() (map[string]float64, bool) {
		got := s.InFlight(t.Context(), loop.Key{Namespace: "default", Name: "hello-00001"}, all)
		return got, maps.Equal(got, want)
	})
}

// talk is a pod at the far end of a connection: the silent one answers once, the closed one closes
// at the second request.
func talk(far net.Conn, all []pods.Pod, address string) {
	defer far.Close()
	in := bufio.NewReader(far)
	for n := 0; ; n++ {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		for _, p := range all {
			switch {
			case !strings.HasPrefix(address, p.IP+":"):
			case n > 0 && p.Name == "silent":
			case n > 0 && p.Name == "closed":
				return
			default:
				body := wire.Stat{PodName: p.Name, AverageConcurrent: 3}.Append(nil)
				fmt.Fprintf(far, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		}
	}
}
