// Command websocket sends back each message of a WebSocket. It pings its clients, and tells them
// when it is to stop, so that they connect to another pod. With -say it is a client: it sends the
// text to a URL and prints what comes back.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

const (
	longest = 1 << 20          // bytes of a message
	pings   = 20 * time.Second // between two pings
	silence = 3 * pings        // after which a client that does not answer them is gone
	writing = 10 * time.Second // how long a client may take to read a message
)

func main() {
	say := flag.String("say", "", "text to send, to the URL that is the argument")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if *say != "" {
		text, err := call(ctx, flag.Arg(0), *say)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(text)
		return
	}
	e := &echo{stopping: ctx}
	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: e, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		server.Shutdown(context.Background()) // does not wait for WebSockets
		e.open.Wait()
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
	<-ended
}

// echo is the server. A browser may connect only from a page of the same host: the default of
// Upgrader.CheckOrigin.
type echo struct {
	websocket.Upgrader
	stopping context.Context
	open     sync.WaitGroup
}

func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.open.Add(1)
	defer e.open.Done()
	conn, err := e.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
	done := make(chan struct{})
	defer close(done)
	go e.control(conn, done)
	if err := sendBack(conn); websocket.IsUnexpectedCloseError(err, websocket.CloseNormalClosure, websocket.CloseGoingAway) {
		log.Printf("a client at %s is gone: %v", r.RemoteAddr, err)
	}
}

func sendBack(conn *websocket.Conn) error {
	conn.SetReadLimit(longest)
	alive := func(string) error { return conn.SetReadDeadline(time.Now().Add(silence)) }
	conn.SetPongHandler(alive)
	for {
		alive("")
		kind, message, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		conn.SetWriteDeadline(time.Now().Add(writing))
		if err := conn.WriteMessage(kind, message); err != nil {
			return err
		}
	}
}

// control pings until the connection is done. When the program is to stop it says so; the client
// then closes, or has a moment until this side does.
func (e *echo) control(conn *websocket.Conn, done <-chan struct{}) {
	tick := time.NewTicker(pings)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writing))
		case <-e.stopping.Done():
			conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseGoingAway, "another pod takes over"), time.Now().Add(writing))
			select {
			case <-done:
			case <-time.After(writing):
				conn.Close()
			}
			return
		}
	}
}

// call is the client.
func call(ctx context.Context, url, text string) (string, error) {
	conn, response, err := websocket.DefaultDialer.DialContext(ctx, url, nil)
	if err != nil {
		if response != nil {
			err = fmt.Errorf("%w: %s", err, response.Status)
		}
		return "", fmt.Errorf("connect to %q: %w", url, err)
	}
	defer conn.Close()
	if err := conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		return "", err
	}
	_, back, err := conn.ReadMessage()
	if err != nil {
		return "", err
	}
	goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	if err := conn.WriteControl(websocket.CloseMessage, goodbye, time.Now().Add(writing)); err != nil {
		return "", err
	}
	// The server's own close message is the end.
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		return "", errors.Join(errors.New("the server did not close"), err)
	}
	return string(back), nil
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
