// Command events sends server-sent events: the numbers from 1 on, one each $PACE. A client that
// comes back with Last-Event-ID, as browsers do by themselves, goes on after the last that it got.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

//go:embed page.html
var page string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pace, err := time.ParseDuration(env("PACE", "500ms"))
	if err != nil || pace <= 0 {
		log.Fatalf("PACE is not a duration above 0: %v", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, page)
	})
	mux.Handle("GET /events", count(ctx, pace))
	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		server.Shutdown(context.Background()) // streams end by ctx
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
	<-ended
}

// count sends numbers, up to that of the parameter `to`, until the client leaves or the program is
// to stop. Clients come back after the time that `retry` says, and another pod takes them.
func count(stopping context.Context, pace time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		last, err := number(r.Header.Get("Last-Event-ID"), 0)
		if err != nil {
			http.Error(w, "Last-Event-ID is not a number of 0 or more", http.StatusBadRequest)
			return
		}
		to, err := number(r.FormValue("to"), 1<<62)
		if err != nil {
			http.Error(w, "to is not a number of 0 or more", http.StatusBadRequest)
			return
		}
		if last >= to { // the status by which a browser stops coming back
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		fmt.Fprint(w, "retry: 1000\n\n")
		flusher := http.NewResponseController(w)
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for last < to && flusher.Flush() == nil {
			select {
			case <-r.Context().Done():
				return
			case <-stopping.Done():
				return
			case <-tick.C:
			}
			last++
			fmt.Fprintf(w, "id: %d\ndata: %d\n\n", last, last)
		}
	}
}

// number reads a number of 0 or more.
func number(text string, otherwise int64) (int64, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n < 0 {
		err = strconv.ErrRange
	}
	return n, err
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
