// Package reply owns what the shim answers itself: one plain sentence, and never what a program
// wrote to its standard error.
//
// Owns: nothing. Reads: nothing. Writes: responses. Never: tells a client more than what to do.
package reply

import (
	"net/http"
	"strconv"
)

// Plain answers with a sentence, at once: the client need not wait for the end of the handler.
func Plain(w http.ResponseWriter, status int, sentence string) {
	h := w.Header()
	clear(h)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(sentence)+1))
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(sentence + "\n")) // fails if the client has left
	_ = http.NewResponseController(w).Flush()
}
