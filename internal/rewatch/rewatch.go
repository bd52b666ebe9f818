// Package rewatch resumes watches within about a second after the API server is back. client-go
// doubles the pause after each failed attempt, up to between 30 s and a minute, and its informers
// have no option for that.
//
// Owns: when a watch that found no API server is tried again. Reads: nothing. Writes: nothing.
// Never: repeats a request that may have arrived, nor answers a server that asks to wait.
package rewatch

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// pause is the longest time between two attempts to connect. It is the time that others, who wait
// for what a watch tells, may wait too long.
const pause = time.Second

// Soon makes the clients of a configuration do so.
func Soon(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{next} })
}

type transport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := t.next.RoundTrip(r)
		var broken *net.OpError
		if !errors.As(err, &broken) || broken.Op != "dial" || r.URL.Query().Get("watch") == "" {
			return response, err
		}
		// Not all at once.
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-r.Context().Done():
			timer.Stop()
			return nil, err
		case <-timer.C:
		}
	}
}
