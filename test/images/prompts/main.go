// Command prompts is shaped like a server of a language model, without the model (samples/llm has
// one): it answers a prompt word by word, as server-sent events, over a time that is long for a
// request. It works on a few prompts at once (BATCH), a word each PACE, lets the others wait, and
// tells how many do. It ends what its client does not wait for, and lets requests in hand finish
// when it is told to stop.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pace, err := time.ParseDuration(env("PACE", "100ms"))
	if err != nil || pace <= 0 {
		log.Fatalf("PACE is not a duration above 0: %v", err)
	}
	batch, err := strconv.Atoi(env("BATCH", "4"))
	if err != nil || batch < 1 {
		log.Fatalf("BATCH is not a number above 0: %v", err)
	}
	m := newModel(batch, pace)
	mux := http.NewServeMux()
	mux.Handle("/", m)
	mux.HandleFunc("GET /metrics", m.metrics)
	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		server.Shutdown(context.Background()) // Kubernetes waits for timeoutSeconds
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
	<-ended
}

// longest bounds a prompt, in bytes.
const longest = 1 << 20

// model works on as many prompts at once as the accelerator can batch.
type model struct {
	batch   chan struct{}
	pace    time.Duration
	waiting atomic.Int64
}

func newModel(batch int, pace time.Duration) *model {
	return &model{batch: make(chan struct{}, batch), pace: pace}
}

// page has the names, labels and numbers of a page of vLLM with one engine.
const page = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="prompts"} %d.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="prompts"} %d.0
# HELP vllm:num_requests_waiting_by_reason Number of requests waiting, by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="prompts",reason="capacity"} %[2]d.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="prompts",reason="deferred"} 0.0
`

// metrics tells the load.
func (m *model) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprintf(w, page, len(m.batch), m.waiting.Load())
}

// enter waits for a place in the batch. It returns false if the client left before.
func (m *model) enter(ctx context.Context) bool {
	m.waiting.Add(1)
	defer m.waiting.Add(-1)
	select {
	case m.batch <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// ServeHTTP answers a prompt with a token for each of its words, one each pace.
func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	prompt, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longest))
	if err != nil {
		http.Error(w, "the prompt cannot be read, or is larger than 1 MiB", http.StatusBadRequest)
		return
	}
	if len(prompt) == 0 {
		prompt = []byte("Ask me something")
	}
	if !m.enter(r.Context()) {
		return
	}
	defer func() { <-m.batch }()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	flusher := http.NewResponseController(w)
	tick := time.NewTicker(m.pace)
	defer tick.Stop()
	for word := range strings.FieldsSeq(string(prompt)) {
		select {
		case <-r.Context().Done(): // the client has left, and the place is free for another
			return
		case <-tick.C:
		}
		token, _ := json.Marshal(map[string]string{"token": word})
		fmt.Fprintf(w, "data: %s\n\n", token)
		if flusher.Flush() != nil {
			return
		}
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
