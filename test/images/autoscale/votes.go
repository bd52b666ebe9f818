package main

import (
	"math/rand/v2"
	"net/http"
	"os"
)

// votes makes a program that knows of some of its answers that they are bad: MARK_PERCENT of them
// say so in Ebb-Failed.
type votes int

func readVotes() (votes, error) {
	percent, err := boundedNumber(os.Getenv("MARK_PERCENT"), "MARK_PERCENT", 0, 100)
	return votes(percent), err
}

func (v votes) around(next http.Handler) http.Handler {
	if v == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rand.IntN(100) < int(v) {
			w.Header().Set("Ebb-Failed", "true")
		}
		next.ServeHTTP(w, r)
	})
}
