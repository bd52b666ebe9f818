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
	"strings"
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

	called  []int32 // callbacks, by number of the call
	hanging chan struct{}
}

func startService(ip string, calls int) (*service, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return nil, err
	}
	s := &service{address: l.Addr().String(), hanging: make(chan struct{})}
	s.reset(calls)
	s.server = &http.Server{Handler: s}
	go s.server.Serve(l)
	return s, nil
}

// reset forgets all calls.
func (s *service) reset(calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reached, s.at, s.called, s.got = make([]int32, calls), make([]time.Time, calls), make([]int32, calls), 0
}

// ServeHTTP answers what it is sent, once it has all of it.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.Host, attackers) || r.URL.Path == "/hang" {
		s.attacked(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) < 8 {
		http.Error(w, "no call", http.StatusBadRequest)
		return
	}
	number, now := binary.BigEndian.Uint64(body), time.Now()
	s.mu.Lock()
	if number < uint64(len(s.reached)) && r.URL.Path == pathOfCallbacks {
		s.called[number]++
	} else if number < uint64(len(s.reached)) {
		if s.reached[number]++; s.reached[number] == 1 {
			s.at[number], s.last = now, now
			s.got++
		}
	}
	s.mu.Unlock()
	w.Write(body[:8]) // the number of the call, for its callback
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
