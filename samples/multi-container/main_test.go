package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestItIsReadyWhileTheContainerBesideItAnswers(t *testing.T) {
	status, text := http.StatusOK, "Hello!\n"
	beside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	defer beside.Close()
	both := app(beside.URL)
	get := func(path string) *httptest.ResponseRecorder {
		reply := httptest.NewRecorder()
		both.ServeHTTP(reply, httptest.NewRequest("GET", path, nil))
		return reply
	}
	if reply := get("/"); reply.Code != 200 || reply.Body.String() != "The container beside this one says: Hello!\n" {
		t.Errorf("got %d %q", reply.Code, reply.Body)
	}
	if reply := get("/ready"); reply.Code != 200 {
		t.Errorf("it is not ready: %d %q", reply.Code, reply.Body)
	}
	fails := func(when string) {
		t.Helper()
		if answer, ready := get("/"), get("/ready"); answer.Code != 502 || ready.Code != 503 {
			t.Errorf("%s: got %d and for readiness %d, want 502 and 503", when, answer.Code, ready.Code)
		}
	}
	text = strings.Repeat("a", longest+1)
	fails("the answer is too long")
	status = http.StatusInternalServerError
	fails("the container beside fails")
	beside.Close()
	fails("the container beside is gone")
}
