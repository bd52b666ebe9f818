package main

import (
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"
)

// faults make a program that is worse than its predecessor.
type faults struct {
	fail, slow int // percent of the requests
	slowFor    time.Duration
	query      string // requests with this text in their query fail
}

func readFaults() (f faults, err error) {
	f.query = os.Getenv("FAIL_QUERY")
	var slowMs int
	for _, v := range []struct {
		name string
		into *int
		most int
	}{{"FAIL_PERCENT", &f.fail, 100}, {"SLOW_PERCENT", &f.slow, 100}, {"SLOW_MS", &slowMs, 60_000}} {
		if *v.into, err = boundedNumber(os.Getenv(v.name), v.name, 0, v.most); err != nil {
			return faults{}, err
		}
	}
	f.slowFor = time.Duration(slowMs) * time.Millisecond
	return f, nil
}

// around adds the faults to a handler, by chance but for the query.
func (f faults) around(next http.Handler) http.Handler {
	if f == (faults{}) {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rand.IntN(100) < f.slow {
			time.Sleep(f.slowFor)
		}
		if rand.IntN(100) < f.fail {
			http.Error(w, "failed by FAIL_PERCENT", http.StatusInternalServerError)
			return
		}
		if f.query != "" && strings.Contains(r.URL.RawQuery, f.query) {
			http.Error(w, "failed by FAIL_QUERY", http.StatusInternalServerError)
			return
		}
		next.ServeHTTP(w, r)
	})
}
