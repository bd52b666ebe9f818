package told

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/wire"
)

var noon = time.Unix(1_700_000_000, 0)

func TestAHeaderTellsUntilItIsTooOld(t *testing.T) {
	for _, c := range []struct {
		behaviour, header string
		age               time.Duration
		inside            int
		want              float64 // -1: not known
	}{
		{"a value", "waiting=3", 0, 1, 3},
		{"among others, with spaces", "running=8, waiting = 2.5 ,x", 0, 1, 2.5},
		{"the last of two", "waiting=3,waiting=4", 0, 1, 4},
		{"zero", "waiting=0", 0, 1, 0},
		{"for ten seconds", "waiting=3", 10 * time.Second, 1, 3},
		{"not for longer while there are requests", "waiting=3", 11 * time.Second, 1, -1},
		{"an old value of a pod without requests is zero", "waiting=3", 11 * time.Second, 0, 0},
		{"nothing yet, with requests", "", 0, 1, -1},
		{"nothing yet, without requests", "", 0, 0, 0},
		{"another metric's", "queued=3", 0, 1, -1},
		{"a name in other letters", "Waiting=3", 0, 1, -1},
		{"not a number", "waiting=NaN", 0, 1, -1},
		{"negative", "waiting=-1", 0, 1, -1},
		{"infinite", "waiting=+Inf", 0, 1, -1},
		{"too large for a number", "waiting=1e400", 0, 1, -1},
		{"absurd, which is the autoscaler's to bound", "waiting=1e300", 0, 1, 1e300},
		{"a number without end", "waiting=" + strings.Repeat("1", 1000), 0, 1, -1},
		{"a word", "waiting=many", 0, 1, -1},
	} {
		b := New([]wire.ToldMetric{{Name: "other"}, {Name: "waiting"}})
		b.Header(c.header, noon)
		told := b.Told(noon.Add(c.age), c.inside)
		got, known := told.At(1)
		if !known {
			got = -1
		}
		if got != c.want {
			t.Errorf("%s: got %v, want %v", c.behaviour, got, c.want)
		}
	}
}

func TestAnInvalidValueTakesThePlaceOfAValidOne(t *testing.T) {
	b := New([]wire.ToldMetric{{Name: "waiting"}})
	b.Header("waiting=3", noon)
	b.Header("waiting=-3", noon)
	if told := b.Told(noon, 1); told.Known != 0 {
		t.Errorf("still told: %+v", told)
	}
}

func TestAHeaderCostsNoAllocation(t *testing.T) {
	b := New([]wire.ToldMetric{{Name: "waiting"}})
	if n := testing.AllocsPerRun(100, func() { b.Header("running=8, waiting=3.25", noon) }); n > 0 {
		t.Errorf("a response costs %v allocations", n)
	}
}

const vllm = `# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="a",note="} \" {"} 2.0
vllm:num_requests_waiting{model_name="b"} 3 1700000000000
vllm:num_requests_waiting_max 99
queue	7`

func TestAPageIsReadAsAStream(t *testing.T) {
	for _, c := range []struct {
		behaviour, text, name string
		want                  float64 // NaN: found and unreadable; -1: not found
		fails                 string
	}{
		{"the sum over the label sets", vllm, "vllm:num_requests_waiting", 5, ""},
		{"without labels, at the end without a line's end", vllm, "queue", 7, ""},
		{"a longer name is another metric", vllm, "vllm:num_requests", -1, ""},
		{"a comment is none", "# queue 3\n#queue 4\n", "queue", -1, ""},
		{"no value", "queue\nqueue{}\n", "queue", math.NaN(), ""},
		{"labels without an end", `queue{a="1} 3`, "queue", math.NaN(), ""},
		{"one that is no number", "queue 3\nqueue NaN\n", "queue", math.NaN(), ""},
		{"infinite", "queue +Inf\n", "queue", math.Inf(1), ""},
		{"carriage returns", "queue 3\r\n", "queue", 3, ""},
		{"a long line of another metric", "other{a=\"" + strings.Repeat("x", 10*maxLine) + "\"} 1\nqueue 3\n", "queue", 3, ""},
		{"a long line of its own", "queue{a=\"" + strings.Repeat("x", 10*maxLine) + "\"} 1\n", "queue", 0, "longer than 4096 bytes"},
		{"a long page", strings.Repeat("other 1\n", maxPage/8+1) + "queue 3\n", "queue", 0, "longer than 1048576 bytes"},
		{"a page of the longest length", "queue 3\n" + strings.Repeat("other 1\n", maxPage/8-1), "queue", 3, ""},
	} {
		sums, err := parse(strings.NewReader(c.text), []string{c.name})
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v, want %q", c.behaviour, err, c.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.behaviour, err)
			continue
		}
		got := sums[0].value
		if !sums[0].found {
			got = -1
		}
		if got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: got %v, want %v", c.behaviour, got, c.want)
		}
	}
}

// container is a user container that has two metrics on one page.
func container(t *testing.T, handler http.HandlerFunc) *Board {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	return New([]wire.ToldMetric{{Name: "queue", Port: port, Path: "/metrics"}, {Name: "busy", Port: port, Path: "/metrics"}})
}

func TestAPageIsReadWhileThePodIsAwake(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan string, 100)
	b := container(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		fmt.Fprint(w, "queue 3\nbusy 2\n")
	})
	ended := make(chan struct{})
	looks := make(chan struct{}, 100)
	go func() {
		b.Run(ctx, func() bool { looks <- struct{}{}; return len(looks) < 2 }, t.Logf)
		close(ended)
	}()
	if path := <-asked; path != "/metrics" {
		t.Errorf("asked for %s", path)
	}
	if n := len(looks); n < 2 {
		t.Errorf("a pod that sleeps was asked, after %d looks", n)
	}
	<-asked
	if told := b.Told(time.Now(), 0); told.Known != 3 || told.Values[0] != 3 || told.Values[1] != 2 {
		t.Errorf("told %+v", told)
	}
	if told := b.Told(time.Now().Add(time.Minute), 0); told.Known != 0 {
		t.Errorf("still told after a minute: %+v", told)
	}
	cancel()
	<-ended
}

func TestABadPageIsToldOnceAndItsMetricsAreNotKnown(t *testing.T) {
	for behaviour, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
		known  uint8
	}{
		"an error": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "500", 0},
		"another page": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "302", 0},
		"one metric only": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "queue 3\n") }, "there is no metric busy", 1},
		"negative":        {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "queue 3\nbusy -3\n") }, "metric busy is -3", 1},
		"never ends": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := fmt.Fprint(w, strings.Repeat("x", 1000)); err != nil {
					return
				}
			}
		}, "longer than 1048576 bytes", 0},
	} {
		t.Run(behaviour, func(t *testing.T) {
			b := container(t, c.answer)
			var lines []string
			logf := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
			pages := b.pages()
			if len(pages) != 1 {
				t.Fatalf("%d pages", len(pages))
			}
			client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			for range 3 {
				b.look(t.Context(), client, pages[0], logf)
			}
			if len(lines) != 1 || !strings.Contains(lines[0], c.want) {
				t.Errorf("logged %q, want %q once", lines, c.want)
			}
			if told := b.Told(time.Now(), 0); told.Known != c.known {
				t.Errorf("told %+v", told)
			}
		})
	}
}

func FuzzPage(f *testing.F) {
	f.Add(vllm)
	f.Add("queue{")
	f.Add("queue{a=\"\\")
	f.Fuzz(func(t *testing.T, text string) {
		sums, err := parse(strings.NewReader(text), []string{"queue", "vllm:num_requests_waiting"})
		if err == nil && len(sums) != 2 {
			t.Errorf("%d sums", len(sums))
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add("waiting=3, running=8")
	f.Add("waiting=1e309,=,,waiting")
	f.Fuzz(func(t *testing.T, text string) {
		b := New([]wire.ToldMetric{{Name: "waiting"}})
		b.Header(text, noon)
		told := b.Told(noon, 1)
		if v, known := told.At(0); known && !valid(v) {
			t.Errorf("%q tells %v", text, v)
		}
	})
}
