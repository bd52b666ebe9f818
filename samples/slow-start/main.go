// Command slow-start is hello-go that needs a while before it listens, as programs do that load a
// model or fill a cache. It stops at once if it is told to while it starts.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	takes, err := time.ParseDuration(env("STARTS_IN", "5s"))
	if err != nil || takes < 0 {
		log.Fatalf("STARTS_IN is not a duration of 0 or more: %v", err)
	}
	if !load(ctx, takes) {
		return
	}
	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: http.HandlerFunc(hello), ReadHeaderTimeout: 10 * time.Second}
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

// load stands for what takes long. It returns false if the program is to stop before.
func load(ctx context.Context, takes time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(takes):
		return true
	}
}

func hello(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, "Hello at last!")
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
