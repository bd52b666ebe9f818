package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// rude counts requests whose clients do not behave. Their own outcome does not matter: they are
// there to show whether others suffer.
type rude struct{ left, unread, heads atomic.Int64 }

// rudeEvery is the time between two such requests to a service.
const rudeEvery = time.Second

// harass sends such requests to a service until ctx is done: of clients that leave early, of those
// that do not read, and HEAD to a program that answers it with a body.
func (s *soak) harass(ctx context.Context, url string, seed uint64, counts *rude) {
	random := rand.New(rand.NewPCG(s.seed, seed))
	client := s.Client(time.Minute)
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(rudeEvery)
	defer ticker.Stop()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		patience := time.Duration(100+random.IntN(400)) * time.Millisecond
		method, query, count := http.MethodGet, "", &counts.heads
		read := func(body io.Reader) { io.Copy(io.Discard, body) }
		switch random.IntN(3) {
		case 0:
			count, query = &counts.left, "?sleep=600"
		case 1:
			count, query = &counts.unread, "?size=8388608"
			read = func(body io.Reader) {
				io.ReadFull(body, make([]byte, 1))
				<-time.After(patience)
			}
		default:
			// At once: nobody can tell what comes after the next request from its answer.
			method, query, patience = http.MethodHead, "?tag=rude&unasked=0", 3*time.Second
		}
		open.Go(func() {
			count.Add(1)
			ctx, leave := context.WithTimeout(context.Background(), patience)
			defer leave()
			request, err := http.NewRequestWithContext(ctx, method, url+query, nil)
			if err != nil {
				return
			}
			response, err := client.Do(request)
			if err != nil {
				return
			}
			defer response.Body.Close()
			read(response.Body)
		})
	}
}
