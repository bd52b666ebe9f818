package view

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
)

// watcher reads a stream in virtual time.
type watcher struct {
	http.ResponseWriter
	header http.Header
	status int
	events *bufio.Scanner
	pipe   *io.PipeWriter
	cancel func()
}

func (w *watcher) Header() http.Header         { return w.header }
func (w *watcher) WriteHeader(status int)      { w.status = status }
func (w *watcher) Write(b []byte) (int, error) { return w.pipe.Write(b) }
func (w *watcher) Flush()                      {}

func (w *watcher) next() (e v1alpha1.Event) {
	w.events.Scan()
	json.Unmarshal(w.events.Bytes(), &e)
	return e
}

func watch(t *testing.T, s *Server, path string) *watcher { return watchAs(t, s, "root", path) }

func watchAs(t *testing.T, s *Server, user, path string) *watcher {
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "GET", root+path, nil)
	r.Header.Set("X-Remote-User", user)
	reader, writer := io.Pipe()
	w := &watcher{header: http.Header{}, pipe: writer, events: bufio.NewScanner(reader), cancel: cancel}
	w.events.Buffer(nil, 1<<20)
	go func() {
		s.ServeHTTP(w, r)
		writer.Close()
	}()
	return w
}

func TestAStreamTellsWhatChangesAtMostOnceASecond(t *testing.T) {
	for _, selector := range []string{"", "&fieldSelector=metadata.name=cart"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.set("cart", "shop/cart-00001")
			s := newServer(w.replicas())
			stream := watch(t, s, "/namespaces/shop/services?watch=true"+selector)
			if e := stream.next(); e.Type != "ADDED" || e.Object.Name != "cart" || stream.status != 200 {
				t.Fatalf("%+v", e)
			}
			began := time.Now()
			for range 10 {
				w.change("shop", "cart-00001", func() { w.ready = 7 })
			}
			for {
				e := stream.next()
				if e.Type != "MODIFIED" || time.Since(began) > 10*time.Second {
					t.Fatalf("%+v", e)
				}
				if e.Object.Now.Replicas.Ready == 7 {
					break
				}
			}
			w.change("shop", "cart-00001", func() { clear(w.services) })
			for e := stream.next(); e.Type != "DELETED"; e = stream.next() {
				if e.Type != "MODIFIED" {
					t.Fatalf("%+v", e)
				}
			}
			quiet := time.Now()
			if e := stream.next(); e.Type != "BOOKMARK" || time.Since(quiet) < bookmarkEvery/2 {
				t.Errorf("%+v after %v", e, time.Since(quiet))
			}
			close(s.stopped)
			if stream.events.Scan() {
				t.Errorf("%s after the end", stream.events.Bytes())
			}
			stream.cancel()
		})
	}
}

// One who may view one namespace keeps nobody else from having streams, also not with all the
// ServiceAccounts that an editor of a namespace makes.
func TestStreamsOfOneUserLeaveRoomForOthers(t *testing.T) {
	for name, attacker := range map[string]func(i int) string{
		"a user":                         func(int) string { return "shop" },
		"ServiceAccounts of a namespace": func(i int) string { return fmt.Sprintf("system:serviceaccount:shop:robot-%d", i) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.set("cart", "shop/cart-00001")
				s := newServer(w.replicas())
				const full = "/namespaces/shop/services?watch=true&fieldSelector=metadata.name=cart"
				var open []*watcher
				refused := 0
				for i := range 2 * maxFullStreams {
					stream := watchAs(t, s, attacker(i), full)
					if synctest.Wait(); stream.status == http.StatusTooManyRequests {
						refused++
					}
					go io.Copy(io.Discard, readerOf(stream))
					open = append(open, stream)
				}
				if refused < maxFullStreams {
					t.Errorf("%d of %d streams were refused", refused, 2*maxFullStreams)
				}
				for i := range maxFullStreams / 8 {
					other := watchAs(t, s, "root", full)
					if e := other.next(); e.Type != "ADDED" || other.status != http.StatusOK {
						t.Fatalf("stream %d of another user: %d %+v", i+1, other.status, e)
					}
					go io.Copy(io.Discard, readerOf(other))
					open = append(open, other)
				}
				for _, stream := range open {
					stream.cancel()
				}
			})
		})
	}
}

func TestMoreStreamsThanThereMayBeAreToldToComeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set("cart", "shop/cart-00001")
		s := newServer(w.replicas())
		var open []*watcher
		for range maxStreams / 2 {
			stream := watch(t, s, "/services?watch=true")
			if e := stream.next(); e.Type != "ADDED" {
				t.Fatalf("%+v", e)
			}
			go io.Copy(io.Discard, readerOf(stream))
			open = append(open, stream)
		}
		synctest.Wait()
		answer := ask(s, "root", root+"/services?watch=true")
		if answer.Code != 429 || answer.Header().Get("Retry-After") == "" {
			t.Errorf("%d %v", answer.Code, answer.Header())
		}
		if answer := ask(s, "root", root+"/services"); answer.Code != 200 {
			t.Errorf("a list beside them: %d", answer.Code)
		}
		for _, stream := range open {
			stream.cancel()
		}
		synctest.Wait()
		time.Sleep(2 * time.Second)
		again := watch(t, s, "/services?watch=true&timeoutSeconds=3")
		if e := again.next(); e.Type != "ADDED" {
			t.Errorf("%+v", e)
		}
		began := time.Now()
		for again.events.Scan() {
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a stream of three seconds took %v", took)
		}
	})
}

// readerOf goes on reading a stream.
func readerOf(w *watcher) io.Reader {
	reader, writer := io.Pipe()
	go func() {
		for w.events.Scan() {
		}
		writer.Close()
	}()
	return reader
}
