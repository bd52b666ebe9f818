package main

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestAPromptIsAnsweredWordByWord(t *testing.T) {
	reply := httptest.NewRecorder()
	model(time.Millisecond).ServeHTTP(reply, httptest.NewRequest("POST", "/", strings.NewReader(`say "hi"`)))
	want := "data: {\"token\":\"say\"}\n\ndata: {\"token\":\"\\\"hi\\\"\"}\n\ndata: [DONE]\n\n"
	if got := reply.Body.String(); got != want || !reply.Flushed || reply.Header().Get("Content-Type") != "text/event-stream" {
		t.Errorf("got %q, flushed %v, %v, want %q", got, reply.Flushed, reply.Header(), want)
	}
}
