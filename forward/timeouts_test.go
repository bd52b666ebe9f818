package forward

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A thousand requests run into timeoutSeconds, directly and through two forwarders whose timers
// race, as an activator's and a pod's do: whoever comes first, the client gets 504 and nothing
// else.
func TestATimeoutBeforeTheResponseIsNothingBut504(t *testing.T) {
	const requests, atOnce = 1000, 100
	hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	timed := func(s *Server, p *policy) {
		inner := p.admit
		p.admit = func(r *Request) Decision {
			r.Timeouts = Timeouts{Total: 100 * time.Millisecond, ResponseStart: 100 * time.Millisecond}
			return inner(r)
		}
	}
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		for _, hops := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s through %d", protocol, hops), func(t *testing.T) {
				backend, client := httpBackend, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atOnce}}
				if protocol == "HTTP/2" {
					backend, client = h2cBackend, h2cClient(t)
				}
				addr := backend(t, hang)
				for range hops {
					addr, _ = proxyTo(t, addr, timed)
				}
				var left atomic.Int64
				left.Store(requests)
				var all sync.WaitGroup
				for range atOnce {
					all.Go(func() {
						for left.Add(-1) >= 0 {
							resp, err := client.Get("http://" + addr + "/")
							if err != nil {
								t.Error(err)
								continue
							}
							io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
							if resp.StatusCode != 504 {
								t.Errorf("got %d", resp.StatusCode)
							}
						}
					})
				}
				all.Wait()
				client.CloseIdleConnections()
			})
		}
	}
}

// A response that has begun ends cleanly through both forwarders, whichever timer fires first, and
// wherever in a chunk the container stopped.
func TestATimeoutAfterTheResponseBeganEndsItCleanly(t *testing.T) {
	raw := func(text string, later string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			c, buffered, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			io.WriteString(c, text)
			time.AfterFunc(10*time.Millisecond, func() { io.WriteString(c, later) })
			io.Copy(io.Discard, buffered)
			c.Close()
		}
	}
	for name, write := range map[string]func(w http.ResponseWriter){
		"between chunks":              raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\nbegun\r\n"),
		"in a chunk":                  raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "100\r\nbegun"),
		"in the chunk of the head":    raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\nbe", "gun"),
		"in the line of the next one": raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbe\r\n3\r\ngun\r", "\n1"),
		"until the connection ends":   raw("HTTP/1.1 200 OK\r\n\r\nbegun", ""),
	} {
		for _, action := range []Timeouts{{Action: EndResponse}, {Action: CutResponse}} {
			for _, first := range []string{"the outer", "the inner"} {
				t.Run(fmt.Sprintf("%s, %s fires first, action %d", name, first, action.Action), func(t *testing.T) {
					t.Parallel()
					addr := httpBackend(t, func(w http.ResponseWriter, r *http.Request) { write(w) })
					for _, hop := range []string{"the inner", "the outer"} {
						addr, _ = proxyTo(t, addr, func(s *Server, p *policy) {
							inner := p.admit
							p.admit = func(r *Request) Decision {
								r.Timeouts = action
								if r.Timeouts.Total = 30 * time.Second; hop == first {
									r.Timeouts.Total = 4 * time.Second
								}
								return inner(r)
							}
						})
					}
					resp, err := http.Get("http://" + addr + "/")
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					clean := action.Action == EndResponse
					if resp.StatusCode != 200 || string(body) != "begun" || (err == nil) != clean || (resp.Trailer.Get(TimeoutTrailer) == "timeoutSeconds") != clean {
						t.Errorf("got %d %q %v, trailer %v", resp.StatusCode, body, err, resp.Trailer)
					}
				})
			}
		}
	}
}

// A Handler may be asked for another upstream as often as connections fail: it is its word, and the
// request's timers, that end that.
func TestTheHandlerMayNameUpstreamsForAsLongAsItLikes(t *testing.T) {
	const fails = 40
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			backend, client := httpBackend, http.DefaultClient
			if protocol == "HTTP/2" {
				backend, client = h2cBackend, h2cClient(t)
			}
			good := NewUpstream(backend(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }), UpstreamOptions{})
			t.Cleanup(good.Close)
			l := listenLocal(t)
			l.Close()
			dead := NewUpstream(l.Addr().String(), UpstreamOptions{})
			asked := 0
			addr := start(t, &Server{Handler: &redirecting{
				policy: policy{admit: func(*Request) Decision { return Decision{Upstream: dead} }},
				redirect: func(*Request, error) Decision {
					if asked++; asked < fails {
						return Decision{Upstream: dead}
					}
					return Decision{Upstream: good}
				},
			}})
			resp, err := client.Get("http://" + addr + "/")
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 || string(body) != "ok" || asked != fails {
				t.Errorf("got %d %q after %d questions", resp.StatusCode, body, asked)
			}
		})
	}
}

// redirecting is a policy that is asked after a failed dial.
type redirecting struct {
	policy
	redirect func(*Request, error) Decision
}

func (r *redirecting) OnDialError(req *Request, err error) Decision { return r.redirect(req, err) }
