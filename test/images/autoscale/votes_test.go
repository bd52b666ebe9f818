package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestSomeAnswersSayThatTheyFailed(t *testing.T) {
	t.Setenv("MARK_PERCENT", "50")
	v, err := readVotes()
	if err != nil {
		t.Fatal(err)
	}
	h := v.around(newHandler(time.Now(), "hi", 0))
	marked := 0
	for range 100 {
		reply := httptest.NewRecorder()
		h.ServeHTTP(reply, httptest.NewRequest("GET", "/", nil))
		if reply.Code != http.StatusOK {
			t.Fatalf("got %d", reply.Code)
		}
		if reply.Header().Get("Ebb-Failed") == "true" {
			marked++
		}
	}
	if marked < 10 || marked > 90 {
		t.Errorf("%d of 100 answers say that they failed", marked)
	}
	t.Setenv("MARK_PERCENT", "101")
	if _, err := readVotes(); err == nil {
		t.Error("101 percent can fail")
	}
}
