package probe

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/internal/testing/reserve"
)

// flaky is a server that answers every third request with 503.
func flaky(t *testing.T) *httptest.Server {
	t.Helper()
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%3 == 0 {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte("yes"))
	}))
	t.Cleanup(server.Close)
	return server
}

func TestBurstReturnsEveryAnswer(t *testing.T) {
	server := flaky(t)
	replies := Burst(context.Background(), server.Client(), server.URL, 9)
	if failed := Failed(replies); len(replies) != 9 || len(failed) != 3 {
		t.Fatalf("%d replies, %d failed, want 9 and 3: %v", len(replies), len(failed), replies)
	}
}

func TestProberCountsEveryAnswerThatIsNo2xx(t *testing.T) {
	server := flaky(t)
	prober := Start(server.Client(), server.URL, time.Millisecond)
	for prober.Seen().Sent < 30 {
		<-time.After(time.Millisecond)
	}
	report := prober.Stop()
	if report.Failed < report.Sent/3-1 || report.Failed > report.Sent/3 || report.Bodies["yes"] != report.Sent-report.Failed {
		t.Errorf("report %+v: want a third failed and the body yes of the others", report)
	}
	if err := report.Err(1); err == nil || !strings.Contains(err.Error(), "status 503") {
		t.Errorf("error %v does not show the 503s", err)
	}
	if err := (Report{Sent: 3}).Err(10); err == nil {
		t.Error("three requests are accepted as ten")
	}
}

func TestNoAnswerIsAFailure(t *testing.T) {
	reply := Get(context.Background(), &http.Client{}, "http://"+reserve.Port(t).String())
	if reply.OK() || reply.Err == nil || reply.Status != 0 {
		t.Errorf("got %v from a server that does not exist", reply)
	}
}

// A connection that breaks during a request is a failure, although the Transport could retry.
func TestWhatIsSentOnceIsNotSentAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		size int
	}{{"GET", 0}, {"POST", 5000}} {
		t.Run(c.name, func(t *testing.T) {
			var seen, bytes atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				bytes.Add(n)
				if r.Method != c.name || len(r.TransferEncoding) > 0 || c.size == 0 && r.ContentLength != 0 {
					t.Errorf("got %s with %v and length %d", r.Method, r.TransferEncoding, r.ContentLength)
				}
				if seen.Add(1) == 2 {
					panic(http.ErrAbortHandler) // on a connection that was used before
				}
			}))
			defer server.Close()
			if reply := once(server.Client(), server.URL, c.size); !reply.OK() {
				t.Fatal(reply)
			}
			if reply := once(server.Client(), server.URL, c.size); reply.OK() || seen.Load() != 2 {
				t.Errorf("the broken request got %v, the server saw %d requests", reply, seen.Load())
			}
			if bytes.Load() != int64(2*c.size) {
				t.Errorf("the server read %d bytes, want %d", bytes.Load(), 2*c.size)
			}
		})
	}
}

func TestStartOnceSendsHalfAsPosts(t *testing.T) {
	var gets, posts atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
		} else {
			gets.Add(1)
		}
	}))
	defer server.Close()
	report := StartOnce(server.Client(), server.URL, time.Millisecond, 100, 10).StopAfter(t.Context(), 20)
	if off := gets.Load() - posts.Load(); report.Failed > 0 || report.Skipped == 0 && (off < 0 || off > 1) {
		t.Errorf("%d GETs, %d POSTs, %d failed: %v", gets.Load(), posts.Load(), report.Failed, report.Failures)
	}
}

func TestQuantilesAreAtMostFivePercentTooLong(t *testing.T) {
	p := &Prober{seen: Report{Bodies: map[string]int{}}}
	for ms := range 1000 {
		p.record(Reply{Status: 200, Took: time.Duration(ms+1) * time.Millisecond})
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got := p.Seen().Quantile(q); got < want || got > want*106/100 {
			t.Errorf("quantile %v is %s, want %s to five percent more", q, got, want)
		}
	}
}

func TestWhatIsTooMuchAtOnceIsSkippedAndSaid(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	p := StartAtMost(server.Client(), server.URL, time.Millisecond, 3)
	for p.Seen().Skipped == 0 {
		<-time.After(time.Millisecond)
	}
	close(release)
	report := p.StopAfter(t.Context(), 3)
	if report.Failed > 0 || report.Sent < 3 || report.Err(3) == nil {
		t.Errorf("%d sent, %d failed, %d skipped: %v", report.Sent, report.Failed, report.Skipped, report.Err(3))
	}
}

// An answer that is another's is a failure and is counted; one that was cut or refused is a failure
// only.
func TestStrayAnswersAreCounted(t *testing.T) {
	const tag, body = "tag-1", "tag-1 tag-1"
	for _, c := range []struct {
		name      string
		reply     Reply
		ok, stray bool
	}{
		{"its own", Reply{Status: 200, Body: tag + "\n" + body}, true, false},
		{"another's", Reply{Status: 200, Body: "tag-2\n" + body}, false, true},
		{"another's in the middle", Reply{Status: 200, Body: tag + "\ntag-1 tag-2"}, false, true},
		{"less, as if it were whole", Reply{Status: 200, Body: tag + "\n"}, false, true},
		{"none", Reply{Status: 200}, false, true},
		{"cut", Reply{Status: 200, Body: tag + "\nta", Err: io.ErrUnexpectedEOF}, false, false},
		{"cut, and another's", Reply{Status: 200, Body: "tag-2", Err: io.ErrUnexpectedEOF}, false, true},
		{"refused", Reply{Status: 503, Body: "no room"}, false, false},
		{"refused with what another sent", Reply{Status: 503, Body: "tag-2"}, false, true},
		{"no answer", Reply{Err: io.EOF}, false, false},
	} {
		p := &Prober{seen: Report{Bodies: map[string]int{}, Statuses: map[int]int{}}, kept: map[int]int{}}
		p.record(own(c.reply, tag, body))
		if got := p.Seen(); (got.Failed == 0) != c.ok || (got.Stray == 1) != c.stray {
			t.Errorf("%s: %d failed, %d stray", c.name, got.Failed, got.Stray)
		}
	}
}

func TestStartTaggedAsksForItsTag(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sleep") != "5" {
			t.Errorf("the query is %q", r.URL.RawQuery)
		}
		body, _ := io.ReadAll(r.Body)
		io.WriteString(w, r.URL.Query().Get("tag")+"\n"+string(body))
	}))
	defer server.Close()
	if report := StartTagged(server.Client(), server.URL+"?sleep=5", time.Millisecond, 100, 1000).StopAfter(t.Context(), 20); report.Failed > 0 {
		t.Errorf("%d failed: %v", report.Failed, report.Failures)
	}
}
