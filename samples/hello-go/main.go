// Command hello-go is the smallest useful service: it listens on $PORT, says hello to $TARGET, and
// lets requests in hand finish when it is told to stop.
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

	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: hello(env("TARGET", "World")), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		server.Shutdown(ending)
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}

func hello(target string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "Hello %s!\n", target)
	})
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
