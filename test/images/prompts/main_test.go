package main

import (
	"context"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPromptIsAnsweredWordByWord(t *testing.T) {
	reply := httptest.NewRecorder()
	newModel(1, time.Millisecond).ServeHTTP(reply, httptest.NewRequest("POST", "/", strings.NewReader(`say "hi"`)))
	want := "data: {\"token\":\"say\"}\n\ndata: {\"token\":\"\\\"hi\\\"\"}\n\ndata: [DONE]\n\n"
	if got := reply.Body.String(); got != want || !reply.Flushed || reply.Header().Get("Content-Type") != "text/event-stream" {
		t.Errorf("got %q, flushed %v, %v, want %q", got, reply.Flushed, reply.Header(), want)
	}
}

func TestWhatDoesNotFitTheBatchWaitsAndIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(2, time.Second)
		ctx, leave := context.WithCancel(t.Context())
		for range 5 {
			go m.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("one two three")).WithContext(ctx))
		}
		told := func() string {
			synctest.Wait()
			reply := httptest.NewRecorder()
			m.metrics(reply, httptest.NewRequest("GET", "/metrics", nil))
			var numbers []string
			for _, found := range regexp.MustCompile(`(?m)^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$`).FindAllStringSubmatch(reply.Body.String(), -1) {
				numbers = append(numbers, found[1])
			}
			return strings.Join(numbers, " running, ") + " waiting"
		}
		if text := told(); text != "2.0 running, 3.0 waiting" {
			t.Errorf("of five prompts: %s", text)
		}
		time.Sleep(3*time.Second + time.Millisecond)
		if text := told(); text != "2.0 running, 1.0 waiting" {
			t.Errorf("after two were answered: %s", text)
		}
		leave()
		if text := told(); text != "0.0 running, 0.0 waiting" {
			t.Errorf("after the clients left: %s", text)
		}
	})
}
