// Command page measures the dashboard: a real one, in front of an API server with many Services
// whose load moves, in headless Chromium, as JSON lines.
//
// Owns: the processes it starts and a temporary directory. Reads: /proc. Writes: JSON lines, and
// with -pictures the pictures of the docs. Never: asserts a figure.
//
// first_paint_ms is the time from the navigation to the frame in which the screen is full of
// Services with their load: what people wait for. The lines have the first frame with anything in
// it, and the one with all Services, too. script_kb are the bytes of the scripts of all pages (1 kB
// is 1000 bytes, before compression). api_p99_ms is the time of a question through the
// dashboard, while other pages are open. dashboard_rss_mib is the resident memory of the dashboard
// with those pages open.
package main

import (
	"flag"
	"os"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

// bench is what the flags say.
type bench struct {
	services, loads, open, questions int
	pictures                         string
	serve                            bool
	out                              *result.Printer
}

func main() {
	b := &bench{out: &result.Printer{Bench: "page", Out: os.Stdout}}
	flag.IntVar(&b.services, "services", 500, "Services of the cluster")
	flag.IntVar(&b.loads, "loads", 7, "how often the page is loaded")
	flag.IntVar(&b.open, "open", 50, "pages whose streams are open while questions are measured")
	flag.IntVar(&b.questions, "questions", 500, "questions that are measured")
	flag.StringVar(&b.pictures, "pictures", "", "measure nothing, and take the pictures of docs/dashboard.md and docs/kubectl-ebb.md into this folder")
	flag.BoolVar(&b.serve, "serve", false, "measure nothing, and serve the page until interrupted, to work on it")
	flag.Parse()
	trial.Main("page", b.run)
}
