// Command control measures the control plane: the seconds from apply to Ready for many services at
// once and then for one more, the CPU time and anonymous memory of Ebb's components before and
// after, and the number of API writes for each service. It prints JSON lines and a summary.
//
// Owns: its namespace. Reads: Services, by a watch; the components' metrics; the API server's audit
// log, if EBB_AUDIT_LOG names it. Writes: N Services that start no pod, and
// allow-zero-initial-scale in config-autoscaler during the run. Never: asserts a figure.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	n := flag.Int("n", 200, "services to apply at once; the environment variable N overrides it")
	image := flag.String("image", "dev.local/ebb-test/autoscale:dev", "image of the services, never started")
	settle := flag.Duration("settle", 20*time.Second, "how long the cluster must be idle before components are measured")
	flag.Parse()
	if text := os.Getenv("N"); text != "" {
		var err error
		if *n, err = strconv.Atoi(text); err != nil || *n < 1 {
			fmt.Fprintf(os.Stderr, "control: N=%q: want a whole number, at least 1\n", text)
			os.Exit(2)
		}
	}
	b := bench{n: *n, image: *image, settle: *settle, out: &result.Printer{Bench: "control", Out: os.Stdout}}
	trial.Main("control", b.run)
}
