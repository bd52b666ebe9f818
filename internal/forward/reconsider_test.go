package forward

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// twoTries sends to the first upstream, and to the second when that refuses.
type twoTries struct {
	policy
	second     *Upstream
	replayable []bool
}

func (p *twoTries) Reconsider(r *Request, resp *Response) (Verdict, bool) {
	if resp.Status == 503 && resp.Header("ebb-refused") != "" {
		p.replayable = append(p.replayable, resp.Replayable)
		return Verdict{Upstream: p.second}, true
	}
	return Verdict{}, false
}

func TestARefusedRequestGoesElsewhereWithItsBody(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		backend := httpBackend
		client := http.DefaultClient
		if protocol == "HTTP/2" {
			backend, client = h2cBackend, h2cClient(t)
		}
		refuses := backend(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Ebb-Refused", "limit")
			w.WriteHeader(503)
		})
		accepts := backend(t, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			w.Header().Set("X-Secret", "inner")
			fmt.Fprint(w, n, " ", err)
		})
		for _, size := range []int{0, 10, 1 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes", protocol, size), func(t *testing.T) {
				first := NewUpstream(refuses, UpstreamOptions{})
				defer first.Close()
				p := &twoTries{second: NewUpstream(accepts, UpstreamOptions{})}
				defer p.second.Close()
				p.admit = func(r *Request) Verdict {
					r.DeferBody()
					r.AddResponseHeader("X-Added", "1")
					return Verdict{Upstream: first}
				}
				addr := start(t, &Server{Handler: p, StripResponse: []string{"X-Secret"}})
				for range 2 {
					resp, err := client.Post("http://"+addr, "text/plain", strings.NewReader(strings.Repeat("x", size)))
					if err != nil {
						t.Fatal(err)
					}
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if want := fmt.Sprint(size, " <nil>"); resp.StatusCode != 200 || string(body) != want {
						t.Errorf("got %d %q, want %q", resp.StatusCode, body, want)
					}
					if resp.Header.Get("X-Secret") != "" || resp.Header.Get("X-Added") != "1" {
						t.Errorf("header: %v", resp.Header)
					}
				}
			})
		}
	}
}

func TestContinueIsAnsweredHere(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s expect=%q", b, r.Header.Get("Expect"))
	})
	up := NewUpstream(backend, UpstreamOptions{})
	addr, _ := proxyTo(t, backend, func(s *Server, p *policy) {
		p.admit = func(r *Request) Verdict {
			r.Continue()
			return Verdict{Upstream: up}
		}
	})
	c := dialTo(t, addr)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	r := bufio.NewReader(c)
	if head, err := readHeadOf(r); err != nil || head != "HTTP/1.1 100 Continue\r\n\r\n" {
		t.Fatalf("got %q %v", head, err)
	}
	io.WriteString(c, "ok")
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if string(body) != `ok expect=""` {
		t.Errorf("got %q", body)
	}
}
