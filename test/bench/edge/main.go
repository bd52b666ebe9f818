// Command edge measures Ebb in one process, as config/edge runs it, as JSON lines: its anonymous
// memory without services and with services at zero, and its CoAP entry. Everything runs on
// loopback; the cluster is an API server in memory, and the gateway an HTTP server that answers
// 13 bytes.
//
// Owns: the process it starts and a temporary directory. Reads: /proc. Writes: JSON lines. Never:
// asserts a figure.
package main

import (
	"flag"
	"os"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

// bench is what the flags say.
type bench struct {
	binary            string
	services, clients int
	settle, lasts     time.Duration
	out               *result.Printer
}

func main() {
	b := &bench{out: &result.Printer{Bench: "edge", Out: os.Stdout}}
	flag.StringVar(&b.binary, "binary", "", "program to measure; built from ./cmd/ebb by default")
	flag.IntVar(&b.services, "services", 50, "services at zero")
	flag.IntVar(&b.clients, "clients", 64, "CoAP clients, each with one request at a time")
	flag.DurationVar(&b.settle, "settle", 30*time.Second, "how long memory settles before it is read")
	flag.DurationVar(&b.lasts, "lasts", 10*time.Second, "how long CoAP requests are sent")
	flag.Parse()
	trial.Main("edge", b.run)
}
