package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// service is what is called. It counts how often each call reaches it.
type service struct {
	mu      sync.Mutex
	reached []int32     // by number of the call
	at      []time.Time // when it was reached first
	got     int         // calls that reached it
	last    time.Time
	server  *http.Server
	address string
}

func startService(calls int) (*service, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &service{reached: make([]int32, calls), at: make([]time.Time, calls), address: l.Addr().String()}
	s.server = &http.Server{Handler: s}
	go s.server.Serve(l)
	return s, nil
}

// ServeHTTP answers what it is sent, once it has all of it.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) < 8 {
		http.Error(w, "no call", http.StatusBadRequest)
		return
	}
	number, now := binary.BigEndian.Uint64(body), time.Now()
	s.mu.Lock()
	if number < uint64(len(s.reached)) {
		if s.reached[number]++; s.reached[number] == 1 {
			s.at[number], s.last = now, now
			s.got++
		}
	}
	s.mu.Unlock()
	w.Write([]byte("done"))
}

func (s *service) count() (got int, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got, s.last
}

// pod is the process in front of the service that is killed in its place: what it has passed on was
// delivered, whether or not the pod lived to say so.
func (b *bench) pod(ctx context.Context) error {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: b.collector})
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 256}
	server := &http.Server{Addr: b.listen, Handler: proxy}
	go func() {
		<-ctx.Done()
		server.Close()
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
