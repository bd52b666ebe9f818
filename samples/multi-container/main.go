// Command multi-container is a service of two containers: it answers with what the container beside
// it says, at $BESIDE, and is ready only while that one answers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: app(env("BESIDE", "http://localhost:9000")), ReadHeaderTimeout: 10 * time.Second}
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

// app serves /, and /ready for the readiness probe.
func app(beside string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		text, err := ask(r.Context(), beside)
		if err != nil {
			log.Print(err)
			http.Error(w, "the container beside this one does not answer", http.StatusBadGateway)
			return
		}
		fmt.Fprintf(w, "The container beside this one says: %s", text)
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if _, err := ask(r.Context(), beside); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// longest bounds an answer, in bytes.
const longest = 64 << 10

func ask(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask %s: status %s", url, response.Status)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, longest+1))
	if err == nil && len(text) > longest {
		err = errors.New("the answer is too long")
	}
	if err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", url, err)
	}
	return string(text), nil
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
