package main

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/udp"

	"ebb.dev/ebb/test/internal/result"
)

// load sends CoAP requests from clients with addresses of their own, because the entry bounds what
// one address may send. A client waits for each answer (NSTART is 1).
func (b *bench) load(ctx context.Context) (rps, p50, p99 float64, failed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.lasts)
	defer cancel()
	var mutex sync.Mutex
	var took []float64
	var clients sync.WaitGroup
	began := time.Now()
	for i := range b.clients {
		c, err := udp.Dial(coap, options.WithErrors(func(error) {}), options.WithDialer(&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 79, byte(i>>8), byte(i)+1)}}))
		if err != nil {
			return 0, 0, 0, 0, err
		}
		clients.Go(func() {
			defer c.Close()
			host := message.Option{ID: message.URIHost, Value: []byte("hello.default.example.com")}
			for ctx.Err() == nil {
				start := time.Now()
				answer, err := c.Get(ctx, "/", host)
				ok := err == nil && answer.Code() == codes.Content
				mutex.Lock()
				switch {
				case ok:
					took = append(took, result.Milliseconds(time.Since(start)))
				case ctx.Err() == nil:
					failed++
				}
				mutex.Unlock()
				// The entry takes 200 datagrams in a second from one address.
				select {
				case <-ctx.Done():
				case <-time.After(time.Until(start.Add(6 * time.Millisecond))):
				}
			}
		})
	}
	clients.Wait()
	return float64(len(took)) / time.Since(began).Seconds(), result.Quantile(took, 0.5), result.Quantile(took, 0.99), failed, nil
}
