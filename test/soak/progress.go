package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// progress prints lost requests within a second, next to the disturbances, and the counts every
// minute, until ctx is done. So a run of an hour shows at once what went wrong and when.
func (s *soak) progress(ctx context.Context, probers map[string]*probe.Prober) {
	printed := map[string]int{}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for n := 1; ; n++ {
		done := false
		select {
		case <-ctx.Done():
			done = true // print what the last responses brought, too
		case <-ticker.C:
		}
		sent, failed, skipped := 0, 0, 0
		for name, prober := range probers {
			seen := prober.Seen()
			for _, failure := range seen.Failures[printed[name]:] {
				fmt.Fprintf(os.Stderr, "%s: %s\n", name, failure)
			}
			printed[name] = len(seen.Failures)
			sent, failed, skipped = sent+seen.Sent, failed+seen.Failed, skipped+seen.Skipped
		}
		if done {
			return
		}
		if n%60 == 0 {
			// If printing fails, the next disturbance reports it.
			_ = s.out.Line(result.Fields{"minute": n / 60, "requests": sent, "failed": failed, "not_sent": skipped})
		}
	}
}
