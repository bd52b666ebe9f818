package main

import (
	"context"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestItStartsAfterAWhileAndStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !load(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("it started after %s, want 1m", time.Since(began))
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began = time.Now()
		if load(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("it was told to stop after 1s and stopped after %s", time.Since(began))
		}
	})
}

func TestItSaysHello(t *testing.T) {
	reply := httptest.NewRecorder()
	hello(reply, httptest.NewRequest("GET", "/", nil))
	if got := reply.Body.String(); got != "Hello at last!\n" {
		t.Errorf("got %q", got)
	}
}
