// Command autoscale is the web service that the end-to-end tests and the benchmarks run. On request
// it does what a test needs from a user's program: be slow, use memory or CPU, fail, stream, serve
// a WebSocket, crash on start. Response headers tell which process answered and when it started.
//
// Query parameters of any path, applied in this order:
//
//	sleep=<milliseconds>  wait before answering (at most 10 minutes)
//	deaf=1                ... to the end, also when the client has left
//	fetch=<URL>           read that page over HTTP; 502 if it cannot be read
//	bloat=<MiB>           touch that much memory while answering (at most 1024)
//	prime=<n>             count the primes up to n (at most 10 million)
//	status=<code>         answer with that status (200 to 599)
//	size=<bytes>          answer with a body of that many bytes (at most 64 MiB)
//	stamp=1               tell when the work began and ended, in X-Work-Begun and X-Work-Ended
//	                      (nanoseconds since 1970)
//	busy=<duration>       say in Ebb-Busy that the program is busy for so long after the answer
//	tag=<text>            answer with that text in a line, and the request's body (at most 1 MiB)
//	unasked=<ms>          so long after the answer, send bytes that no request asked for, as programs
//	                      do that answer HEAD with a body (HTTP/1.1; at most 10 s)
//
// Paths: /healthz, /env (JSON of the environment), /echo (JSON of method, host, headers and body
// size), /count (JSON: requests of this process so far, in flight now, maximum in flight, calls of
// /hooks/sleep and /hooks/wake, and requests between the two),
// /stream?n=&every= (server-sent events), /ws (a WebSocket that echoes), /runtime (JSON of the
// program's arguments, user, files and limits), /alive (500 after a request for /break),
// /grpc.health.v1.Health/ (gRPC's health service). Any other path says hello.
//
// Environment: PORT; TEXT (the body of any other path), or TEXT_FILE (the file to read it from at
// the start); WRITE_FILE (the program writes TEXT there and exits, as an init container does);
// CRASH=1 exits at once with code 5; START_DELAY_MS waits before listening; WORKERS=<n> handles at
// most n requests at a time, the others wait inside the process, as in a pre-fork server.
// FAIL_PERCENT of the requests fail with 500, and those with FAIL_QUERY in their query.
// SLOW_PERCENT of them take SLOW_MS longer.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

func main() {
	started := time.Now() // first of all: cold starts are measured against this time
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, started); err != nil {
		slog.Error("autoscale test image ends", "error", err)
		stop()
		os.Exit(5) //nolint:gocritic // stop has run
	}
}

func run(ctx context.Context, started time.Time) error {
	if os.Getenv("CRASH") == "1" {
		return errors.New("CRASH=1: this program is configured to crash at its start")
	}
	delay, err := boundedNumber(os.Getenv("START_DELAY_MS"), "START_DELAY_MS", 0, 600_000)
	if err != nil {
		return err
	}
	workers, err := boundedNumber(os.Getenv("WORKERS"), "WORKERS", 0, 10_000)
	if err != nil {
		return err
	}
	faults, err := readFaults()
	if err != nil {
		return err
	}
	votes, err := readVotes()
	if err != nil {
		return err
	}
	if delay > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(delay) * time.Millisecond):
		}
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	text := os.Getenv("TEXT")
	if text == "" {
		text = "Hello from the test image"
	}
	if file := os.Getenv("WRITE_FILE"); file != "" {
		return os.WriteFile(file, []byte(text), 0o644)
	}
	if file := os.Getenv("TEXT_FILE"); file != "" {
		read, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("TEXT_FILE: %w", err)
		}
		text = string(read)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Addr:              ":" + port,
		Handler:           votes.around(faults.around(newHandler(started, text, workers))),
		Protocols:         protocols,
		ReadHeaderTimeout: 30 * time.Second,
		ConnContext:       withConn,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on port %s: %w", port, err)
	case <-ctx.Done():
		ending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return server.Shutdown(ending)
	}
}

// handler is the whole service: counters are atomic, everything else is set once.
type handler struct {
	started time.Time
	pod     string
	text    string
	workers chan struct{} // nil: no limit
	total   atomic.Int64
	now     atomic.Int64
	most    atomic.Int64
	broken  atomic.Bool
	// asleep is set from the hook "sleep" to the hook "wake"; early counts requests in between.
	asleep atomic.Bool
	hooks  [2]atomic.Int64 // calls of "sleep" and of "wake"
	early  atomic.Int64
}

func newHandler(started time.Time, text string, workers int) http.Handler {
	h := &handler{started: started, text: text}
	h.pod, _ = os.Hostname() // the host name of a pod is the pod's name
	if workers > 0 {
		h.workers = make(chan struct{}, workers)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	mux.HandleFunc("/env", h.counted(h.env))
	mux.HandleFunc("/echo", h.counted(h.echo))
	mux.HandleFunc("/count", h.count)
	mux.HandleFunc("/hooks/{name}", h.hook)
	mux.HandleFunc("/stream", h.counted(h.stream))
	mux.HandleFunc("/ws", h.counted(h.socket))
	mux.HandleFunc("/runtime", h.counted(h.runtime))
	mux.HandleFunc("/break", h.counted(func(http.ResponseWriter, *http.Request) { h.broken.Store(true) }))
	mux.HandleFunc("/alive", h.alive)
	mux.HandleFunc("POST /grpc.health.v1.Health/{method}", h.counted(h.grpcHealth))
	mux.HandleFunc("/", h.counted(h.hello))
	return mux
}

func (h *handler) counted(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h.total.Add(1)
		if h.asleep.Load() {
			h.early.Add(1)
		}
		overlap := h.now.Add(1)
		defer h.now.Add(-1)
		for most := h.most.Load(); overlap > most && !h.most.CompareAndSwap(most, overlap); most = h.most.Load() {
		}
		w.Header().Set("X-Pod-Name", h.pod)
		w.Header().Set("X-Process-Start", strconv.FormatInt(h.started.UnixNano(), 10))
		w.Header().Set("X-Overlap", strconv.FormatInt(overlap, 10))
		if h.workers != nil {
			select {
			case h.workers <- struct{}{}:
				defer func() { <-h.workers }()
			case <-r.Context().Done():
				return
			}
		}
		next(w, r)
	}
}

func (h *handler) hello(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	work, err := parseWork(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if work.sleep > 0 {
		timer := time.NewTimer(work.sleep)
		defer timer.Stop()
		left := r.Context().Done()
		if work.deaf {
			left = nil
		}
		select {
		case <-timer.C:
		case <-left:
			return
		}
	}
	if work.fetch != "" {
		if err := fetch(r.Context(), work.fetch); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
	}
	touched := bloat(work.bloatMiB)
	primes := countPrimes(work.prime)
	if work.stamp {
		w.Header().Set("X-Work-Begun", strconv.FormatInt(begun.UnixNano(), 10))
		w.Header().Set("X-Work-Ended", strconv.FormatInt(time.Now().UnixNano(), 10))
	}
	if work.busy != "" {
		w.Header().Set("Ebb-Busy", work.busy)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if work.tag != "" || work.unasked >= 0 {
		h.tagged(w, r, work)
		return
	}
	if work.size > 0 {
		w.Header().Set("Content-Length", strconv.Itoa(work.size))
		w.WriteHeader(work.status)
		writeBytes(w, work.size)
		return
	}
	w.WriteHeader(work.status)
	fmt.Fprintf(w, "%s\n", h.text)
	if work.bloatMiB > 0 {
		fmt.Fprintf(w, "touched %d bytes\n", touched)
	}
	if work.prime > 0 {
		fmt.Fprintf(w, "%d primes up to %d\n", primes, work.prime)
	}
}

func (h *handler) env(w http.ResponseWriter, _ *http.Request) {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	writeJSON(w, env)
}

func (h *handler) echo(w http.ResponseWriter, r *http.Request) {
	size, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		http.Error(w, fmt.Sprintf("read the request's body: %v", err), http.StatusBadRequest)
		return
	}
	writeJSON(w, map[string]any{
		"method": r.Method, "host": r.Host, "path": r.URL.Path, "protocol": r.Proto,
		"headers": r.Header, "bodySize": size,
	})
}

func (h *handler) count(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{
		"pod": h.pod, "requests": h.total.Load(), "overlapNow": h.now.Load(), "overlapMost": h.most.Load(),
		"startedUnixNano": h.started.UnixNano(),
		"sleepHooks":      h.hooks[0].Load(), "wakeHooks": h.hooks[1].Load(), "early": h.early.Load(),
	})
}

// hook takes a call of Ebb's standby. "fail" answers 500.
func (h *handler) hook(w http.ResponseWriter, r *http.Request) {
	switch r.PathValue("name") {
	case "sleep":
		h.hooks[0].Add(1)
		h.asleep.Store(true)
	case "wake":
		h.hooks[1].Add(1)
		h.asleep.Store(false)
	default:
		http.Error(w, "this hook fails", http.StatusInternalServerError)
	}
}

func (h *handler) stream(w http.ResponseWriter, r *http.Request) {
	n, err := boundedNumber(r.URL.Query().Get("n"), "n", 10, 100_000)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	every, err := boundedNumber(r.URL.Query().Get("every"), "every", 100, 60_000)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flusher := http.NewResponseController(w)
	ticker := time.NewTicker(max(time.Millisecond, time.Duration(every)*time.Millisecond))
	defer ticker.Stop()
	for i := range n {
		fmt.Fprintf(w, "id: %d\ndata: %d\n\n", i, time.Now().UnixNano())
		if flusher.Flush() != nil || i == n-1 {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}

func (h *handler) socket(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	conn, err := upgrader.Upgrade(w, r, http.Header{"X-Pod-Name": {h.pod}})
	if err != nil {
		return // the upgrader has already sent a response
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil {
			return
		}
		if err := conn.WriteMessage(kind, message); err != nil {
			return
		}
	}
}

// work is what one request has to do, from its query.
type work struct {
	sleep                 time.Duration
	bloatMiB, prime, size int
	status                int
	fetch, tag, busy      string
	stamp, deaf           bool
	unasked               time.Duration // -1: nothing
}

func parseWork(query url.Values) (work, error) {
	sleep, err := boundedNumber(query.Get("sleep"), "sleep", 0, 600_000)
	if err != nil {
		return work{}, err
	}
	w := work{sleep: time.Duration(sleep) * time.Millisecond, fetch: query.Get("fetch"), tag: query.Get("tag"), busy: query.Get("busy"),
		stamp: query.Get("stamp") == "1", deaf: query.Get("deaf") == "1", unasked: -1}
	if text := query.Get("unasked"); text != "" {
		after, err := boundedNumber(text, "unasked", 0, 10_000)
		if err != nil {
			return work{}, err
		}
		w.unasked = time.Duration(after) * time.Millisecond
	}
	if w.bloatMiB, err = boundedNumber(query.Get("bloat"), "bloat", 0, 1024); err != nil {
		return work{}, err
	}
	if w.prime, err = boundedNumber(query.Get("prime"), "prime", 0, 10_000_000); err != nil {
		return work{}, err
	}
	if w.size, err = boundedNumber(query.Get("size"), "size", 0, 64<<20); err != nil {
		return work{}, err
	}
	if w.status, err = boundedNumber(query.Get("status"), "status", http.StatusOK, 599); err != nil {
		return work{}, err
	}
	if w.status < http.StatusOK {
		return work{}, fmt.Errorf("status %d: want 200 to 599", w.status)
	}
	return w, nil
}

// boundedNumber parses a whole number from 0 to most. If the parameter is absent it returns
// otherwise.
func boundedNumber(text, name string, otherwise, most int) (int, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%s=%q: want a whole number from 0 to %d", name, text, most)
	}
	return n, nil
}

// bloat writes one byte to every page, so that the memory is really allocated.
func bloat(mib int) int {
	const page = 4096
	buffer := make([]byte, mib<<20)
	for i := 0; i < len(buffer); i += page {
		buffer[i] = 1
	}
	return len(buffer)
}

// countPrimes is the sieve of Eratosthenes: it uses only CPU and memory.
func countPrimes(most int) int {
	if most < 2 {
		return 0
	}
	composite := make([]bool, most+1)
	count := 0
	for n := 2; n <= most; n++ {
		if composite[n] {
			continue
		}
		count++
		for multiple := n * n; multiple <= most; multiple += n {
			composite[multiple] = true
		}
	}
	return count
}

func writeBytes(w io.Writer, size int) {
	chunk := []byte(strings.Repeat("0123456789abcde\n", 2048))
	for size > 0 {
		n, err := w.Write(chunk[:min(size, len(chunk))])
		if err != nil {
			return
		}
		size -= n
	}
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(value)
}
