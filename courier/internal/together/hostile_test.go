package together

import (
	"io"
	"net/http"
	"testing"

	"ebb.dev/ebb/wire"
)

// A neighbour's clients send the head of a call, and never its body.
func TestSlowClientsOfANeighbourLeaveRoomForCalls(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, nil)
	neighbour := target
	neighbour.Namespace = "neighbour"
	body, end := io.Pipe()
	defer end.Close()
	const attackers = 600 // more than there are slots
	answers := make(chan int, attackers)
	for range attackers {
		r, err := http.NewRequestWithContext(t.Context(), "POST", w.front.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(wire.HeaderAsyncTarget, neighbour.String())
		go func() {
			response, err := (&http.Client{Transport: &http.Transport{}}).Do(r)
			if err != nil {
				return
			}
			response.Body.Close()
			answers <- response.StatusCode
		}()
	}
	if status := <-answers; status != http.StatusServiceUnavailable {
		t.Errorf("a call that finds no slot: %d", status)
	}
	w.call(nil)
	status, _, text := w.ask("POST", "/", nil, wire.HeaderAsyncTarget, neighbour.String())
	if status != http.StatusServiceUnavailable {
		t.Errorf("another call of the neighbour: %d %s", status, text)
	}
}
