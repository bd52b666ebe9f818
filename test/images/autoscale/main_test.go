package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestQueryDecidesTheAnswer(t *testing.T) {
	started := time.Unix(1700000000, 42)
	h := newHandler(started, "hi", 0)
	for _, test := range []struct {
		name, path string
		status     int
		body       string
	}{
		{"plain", "/", 200, "hi\n"},
		{"status", "/?status=503", 503, "hi\n"},
		{"size", "/?size=20", 200, "0123456789abcde\n0123"},
		{"primes", "/?prime=100", 200, "hi\n25 primes up to 100\n"},
		{"memory", "/?bloat=1", 200, "hi\ntouched 1048576 bytes\n"},
		{"health", "/healthz", 200, "ok"},
		{"informational status is refused", "/?status=101", 400, "status 101: want 200 to 599\n"},
		{"too much memory is refused", "/?bloat=9999", 400, "bloat=\"9999\": want a whole number from 0 to 1024\n"},
		{"a tag", "/?tag=mine", 200, "mine\n"},
		{"unasked bytes far too late are refused", "/?unasked=10001", 400, "unasked=\"10001\": want a whole number from 0 to 10000\n"},
		{"negative sleep is refused", "/?sleep=-1", 400, "sleep=\"-1\": want a whole number from 0 to 600000\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			reply := httptest.NewRecorder()
			h.ServeHTTP(reply, httptest.NewRequest("GET", test.path, nil))
			if reply.Code != test.status || reply.Body.String() != test.body {
				t.Errorf("got %d %q, want %d %q", reply.Code, reply.Body, test.status, test.body)
			}
			if test.path != "/healthz" && reply.Header().Get("X-Process-Start") != "1700000000000000042" {
				t.Errorf("X-Process-Start = %q", reply.Header().Get("X-Process-Start"))
			}
		})
	}
}

func TestItFetchesAPageAndTellsWhenItWorked(t *testing.T) {
	h := newHandler(time.Now(), "hi", 0)
	page := httptest.NewServer(h)
	defer page.Close()
	for path, want := range map[string]int{"/": http.StatusOK, "/?status=404": http.StatusBadGateway} {
		before := time.Now()
		reply := httptest.NewRecorder()
		h.ServeHTTP(reply, httptest.NewRequest("GET", "/?stamp=1&fetch="+url.QueryEscape(page.URL+path), nil))
		if reply.Code != want {
			t.Fatalf("fetching %s: got %d %q, want %d", path, reply.Code, reply.Body, want)
		}
		if want != http.StatusOK {
			continue
		}
		var at [2]int64
		for i, name := range []string{"X-Work-Begun", "X-Work-Ended"} {
			var err error
			if at[i], err = strconv.ParseInt(reply.Header().Get(name), 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		if at[0] < before.UnixNano() || at[1] <= at[0] || at[1] > time.Now().UnixNano() {
			t.Errorf("it worked from %d to %d, and was asked at %d", at[0], at[1], before.UnixNano())
		}
	}
}

func TestStreamEndsAfterItsLastEvent(t *testing.T) {
	reply := httptest.NewRecorder()
	newHandler(time.Now(), "", 0).ServeHTTP(reply, httptest.NewRequest("GET", "/stream?n=3&every=1", nil))
	if got := strings.Count(reply.Body.String(), "data: "); got != 3 {
		t.Errorf("%d events, want 3: %q", got, reply.Body)
	}
}

func TestCountSeesEveryCountedRequest(t *testing.T) {
	h := newHandler(time.Now(), "", 1)
	for range 3 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	reply := httptest.NewRecorder()
	h.ServeHTTP(reply, httptest.NewRequest("GET", "/count", nil))
	var got struct{ Requests, OverlapMost, OverlapNow int }
	if err := json.Unmarshal(reply.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Requests != 3 || got.OverlapMost != 1 || got.OverlapNow != 0 {
		t.Errorf("got %+v, want 3 requests, at most 1 at a time, none now", got)
	}
}

func TestItTellsWhatItFindsAroundItselfAndCanBeBroken(t *testing.T) {
	h := newHandler(time.Now(), "", 0)
	ask := func(path string) *httptest.ResponseRecorder {
		reply := httptest.NewRecorder()
		h.ServeHTTP(reply, httptest.NewRequest("GET", path, nil))
		return reply
	}
	var around struct {
		Folder string
		User   int
		Files  map[string]string
	}
	if err := json.Unmarshal(ask("/runtime").Body.Bytes(), &around); err != nil {
		t.Fatal(err)
	}
	if here, _ := os.Getwd(); around.Folder != here || around.User != os.Getuid() || !strings.HasPrefix(around.Files["/dev/null"], "Dc ") {
		t.Errorf("/runtime returned %+v", around)
	}
	if before, _, after := ask("/alive").Code, ask("/break"), ask("/alive").Code; before != 200 || after != 500 {
		t.Errorf("/alive returned %d, and %d after /break", before, after)
	}
}

func TestItSpeaksGRPCsHealthService(t *testing.T) {
	request := httptest.NewRequest("POST", "/grpc.health.v1.Health/Check", strings.NewReader("\x00\x00\x00\x00\x00"))
	request.Header.Set("Content-Type", "application/grpc")
	reply := httptest.NewRecorder()
	newHandler(time.Now(), "", 0).ServeHTTP(reply, request)
	result := reply.Result()
	if body := reply.Body.String(); body != "\x00\x00\x00\x00\x02\x08\x01" || result.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%q, trailers %v", body, result.Trailer)
	}
}

func TestItSendsBytesThatNobodyAskedFor(t *testing.T) {
	server := httptest.NewUnstartedServer(newHandler(time.Now(), "hi", 0))
	server.Config.ConnContext = withConn
	server.Start()
	defer server.Close()
	for _, first := range []string{"HEAD /?tag=a&unasked=1", "GET /?tag=a&status=204&unasked=1", "GET /?tag=a&unasked=0"} {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		method, _, _ := strings.Cut(first, " ")
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: h\r\n\r\nPOST /?tag=b HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody", first)
		r := bufio.NewReader(c)
		for i, want := range []string{"a\n", "unasked\n", "b\nbody"} {
			if i > 0 {
				method = "GET"
			}
			response, err := http.ReadResponse(r, &http.Request{Method: method})
			if err != nil {
				t.Fatalf("%s, answer %d: %v", first, i, err)
			}
			body, err := io.ReadAll(response.Body)
			if i == 0 && (method == "HEAD" || response.StatusCode == 204) {
				want = ""
			}
			if err != nil || string(body) != want {
				t.Errorf("%s, answer %d: %q %v, want %q", first, i, body, err, want)
			}
		}
	}
}
