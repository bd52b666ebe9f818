// Command llm is shaped like a server of a language model, without the model: it answers a prompt
// word by word, as server-sent events, over a time that is long for a request. It ends what its
// client does not wait for, and lets requests in hand finish when it is told to stop.
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
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pace, err := time.ParseDuration(env("PACE", "100ms"))
	if err != nil {
		log.Fatalf("PACE: %v", err)
	}
	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: model(pace), ReadHeaderTimeout: 10 * time.Second}
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

// model answers a prompt with a token for each of its words, one each pace.
func model(pace time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prompt, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longest))
		if err != nil {
			http.Error(w, "the prompt cannot be read, or is larger than 1 MiB", http.StatusBadRequest)
			return
		}
		if len(prompt) == 0 {
			prompt = []byte("Ask me something")
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		flusher := http.NewResponseController(w)
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for word := range strings.FieldsSeq(string(prompt)) {
			select {
			case <-r.Context().Done(): // the client has left, and the slot is free for another
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
	})
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
