package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestFaultsComeByChance(t *testing.T) {
	t.Setenv("FAIL_PERCENT", "50")
	t.Setenv("SLOW_PERCENT", "50")
	t.Setenv("SLOW_MS", "20")
	f, err := readFaults()
	if err != nil {
		t.Fatal(err)
	}
	h := f.around(newHandler(time.Now(), "hi", 0))
	failed, slow := 0, 0
	for range 100 {
		reply, sent := httptest.NewRecorder(), time.Now()
		h.ServeHTTP(reply, httptest.NewRequest("GET", "/", nil))
		if reply.Code == http.StatusInternalServerError {
			failed++
		}
		if time.Since(sent) >= f.slowFor {
			slow++
		}
	}
	if failed < 10 || failed > 90 || slow < 10 {
		t.Errorf("%d of 100 failed, and %d were slow", failed, slow)
	}
	t.Setenv("FAIL_PERCENT", "0")
	t.Setenv("FAIL_QUERY", "bad=1")
	if f, err = readFaults(); err != nil {
		t.Fatal(err)
	}
	h = f.around(newHandler(time.Now(), "hi", 0))
	for query, want := range map[string]int{"": 200, "?good=1": 200, "?size=1&bad=1": 500} {
		reply := httptest.NewRecorder()
		if h.ServeHTTP(reply, httptest.NewRequest("GET", "/"+query, nil)); reply.Code != want {
			t.Errorf("%q: %d, want %d", query, reply.Code, want)
		}
	}
	t.Setenv("FAIL_PERCENT", "101")
	if _, err := readFaults(); err == nil {
		t.Error("101 percent can fail")
	}
}
