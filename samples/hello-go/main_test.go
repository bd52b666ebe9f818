package main

import (
	"net/http/httptest"
	"testing"
)

func TestHelloNamesItsTarget(t *testing.T) {
	reply := httptest.NewRecorder()
	hello("Ebb").ServeHTTP(reply, httptest.NewRequest("GET", "/", nil))
	if got, want := reply.Body.String(), "Hello Ebb!\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
