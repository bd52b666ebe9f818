// Command db-pool is a service with a pool of connections to PostgreSQL. Before its pod sleeps it
// closes them, so that the server has room for others, and after the wake it opens one again. It
// makes reports after its answer, and says for how long that may take.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	_ "github.com/lib/pq"
)

const (
	connections = 10
	// longest is how long a report may take.
	longest = 5 * time.Minute
	// hooks is where Ebb calls before a sleep and after a wake: from inside the pod only.
	hooks = "127.0.0.1:9000"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := open(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.ListenAndServe(hooks, s.hooks())) }()
	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
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

// service is the program; its database is a pool.
type service struct {
	db      *sql.DB
	running atomic.Int64 // reports
}

// open makes a pool, which connects when it is needed.
func open(url string) (*service, error) {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return &service{db: db}, nil
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.hello)
	mux.HandleFunc("POST /reports", s.begin)
	mux.HandleFunc("GET /reports", s.look)
	return mux
}

func (s *service) hooks() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sleep", s.sleep)
	mux.HandleFunc("POST /wake", s.wake)
	return mux
}

func (s *service) hello(w http.ResponseWriter, r *http.Request) {
	var version string
	if err := s.db.QueryRowContext(r.Context(), "show server_version").Scan(&version); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	fmt.Fprintf(w, "Hello PostgreSQL %s!\n", version)
}

// begin answers at once and makes a report then. No request is open meanwhile, so the answer says
// that the program is busy.
func (s *service) begin(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.ParseFloat(r.FormValue("seconds"), 64)
	if err != nil || !(seconds >= 0 && seconds <= longest.Seconds()) {
		http.Error(w, fmt.Sprintf("seconds is not a number from 0 to %.0f", longest.Seconds()), http.StatusBadRequest)
		return
	}
	s.running.Add(1)
	go func() {
		defer s.running.Add(-1)
		ctx, cancel := context.WithTimeout(context.Background(), longest)
		defer cancel()
		// This stands for a query that takes long.
		if _, err := s.db.ExecContext(ctx, "select pg_sleep($1)", seconds); err != nil {
			log.Printf("a report failed: %v", err)
		}
	}()
	w.Header().Set("Ebb-Busy", longest.String())
	w.WriteHeader(http.StatusAccepted)
}

// look tells how many reports are under way. If none is, the pod need not stay. One that begins
// meanwhile keeps it: 0 ends no word that came after this request.
func (s *service) look(w http.ResponseWriter, _ *http.Request) {
	n := s.running.Load()
	if n == 0 {
		w.Header().Set("Ebb-Busy", "0")
	}
	fmt.Fprintf(w, "%d reports are under way\n", n)
}

// sleep closes the connections. No request is open, and none comes before wake.
func (s *service) sleep(w http.ResponseWriter, _ *http.Request) {
	s.db.SetMaxIdleConns(-1)
	if n := s.db.Stats().OpenConnections; n > 0 {
		http.Error(w, fmt.Sprintf("%d connections are in use", n), http.StatusConflict) // the pod stays awake
	}
}

// wake lets the pool keep connections again, and opens the first one. A server that is away is no
// reason to fail: the pool connects when it is needed.
func (s *service) wake(w http.ResponseWriter, r *http.Request) {
	s.db.SetMaxIdleConns(connections)
	if err := s.db.PingContext(r.Context()); err != nil {
		log.Printf("no connection after the wake: %v", err)
	}
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
