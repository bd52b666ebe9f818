package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

func begin(t *testing.T) (e *echo, url string, stop func()) {
	ctx, stop := context.WithCancel(t.Context())
	e = &echo{stopping: ctx}
	server := httptest.NewServer(e)
	t.Cleanup(func() {
		stop()
		server.Close()
		e.open.Wait()
	})
	return e, "ws" + strings.TrimPrefix(server.URL, "http"), stop
}

func TestEachMessageComesBack(t *testing.T) {
	_, url, _ := begin(t)
	for _, text := range []string{"hello", strings.Repeat("a", longest)} {
		if back, err := call(t.Context(), url, text); err != nil || back != text {
			t.Errorf("%d bytes came back, want %d: %v", len(back), len(text), err)
		}
	}
}

func TestAMessageThatIsTooLongEndsTheConnection(t *testing.T) {
	_, url, _ := begin(t)
	if _, err := call(t.Context(), url, strings.Repeat("a", longest+1)); err == nil {
		t.Error("it came back")
	}
}

func TestClientsAreToldThatThePodStops(t *testing.T) {
	e, url, stop := begin(t)
	conn, _, err := websocket.DefaultDialer.Dial(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stop()
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseGoingAway) {
		t.Errorf("got %v, want close 1001", err)
	}
	e.open.Wait()
}

func TestAPageOfAnotherHostMayNotConnect(t *testing.T) {
	_, url, _ := begin(t)
	_, response, err := websocket.DefaultDialer.Dial(url, map[string][]string{"Origin": {"http://elsewhere.example.com"}})
	if err == nil || response == nil || response.StatusCode != 403 {
		t.Errorf("got %v, %v, want 403", response, err)
	}
}
