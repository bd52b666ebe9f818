package rewatch

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// away is an API server that answers from a time on, and counts the attempts.
type away struct {
	until    time.Time
	err      error
	attempts int
}

func (a *away) RoundTrip(*http.Request) (*http.Response, error) {
	a.attempts++
	if time.Now().Before(a.until) {
		return nil, a.err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestAWatchResumesAsSoonAsTheServerIsBack(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, c := range []struct {
		name, path string
		err        error
		waits      bool
	}{
		{"a watch", "/api/v1/pods?watch=true", refused, true},
		{"a watch as client-go writes it", "/api/v1/pods?resourceVersion=7&watch=1", refused, true},
		{"a list", "/api/v1/pods", refused, false},
		{"a watch that may have arrived", "/api/v1/pods?watch=true", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
		{"a watch that breaks in another way", "/api/v1/pods?watch=true", errors.New("bad certificate"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &away{until: time.Now().Add(5 * time.Minute), err: c.err}
				config := &rest.Config{}
				Soon(config)
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server"+c.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := config.WrapTransport(server).RoundTrip(request)
				if err == nil {
					response.Body.Close()
				}
				if late := time.Since(server.until); c.waits && (err != nil || late > pause || server.attempts > 601) {
					t.Errorf("%v, %s after the server was back, by %d attempts", err, late, server.attempts)
				}
				if !c.waits && (!errors.Is(err, c.err) || server.attempts != 1) {
					t.Errorf("got %v after %d attempts", err, server.attempts)
				}
			})
		})
	}
}

func TestAWatchThatIsStoppedWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/api?watch=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		began := time.Now()
		_, err = transport{&away{until: began.Add(time.Hour), err: refused}}.RoundTrip(request)
		if !errors.Is(err, refused) || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
