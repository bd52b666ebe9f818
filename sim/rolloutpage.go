package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb.dev/ebb/judge"
)

const rolloutIntroduction = `# Simulated rollouts

Would a judge of rollouts find a bad revision, and leave a good one alone? ` + "`go run ./sim -rollouts %d`" + ` plays so many rollouts of
each kind in virtual time, and ` + "`make simulate`" + ` writes this page. The judge (` + "`judge`" + `) and the shares (` + "`ingress/rollout`" + `) are code
of Ebb; requests are a model. How to have
a rollout judged is told in [gradual rollout](../how-to/gradual-rollout.md#have-it-judged), and how the judge works in
[decision 19](../decisions/0019-a-rollout-is-judged-by-what-both-revisions-did.md).

| Traffic | Requests | The rollout takes |
|---|---|---|
| *low* | 1 a second | 2 minutes |
| *low, slowly* | 1 a second | 20 minutes |
| *steady* | 100 a second | 2 minutes |
| *bursty* | 5 s of 380 a second, then 15 s of 7 | 2 minutes |
| *steady, 5 %% first* | 100 a second | 2 minutes, in steps: ` + "`5%% 30s, 25%% 30s, 50%% 1m`" + ` |

Each request fails by chance, one in a thousand if nothing else is said. Under *bursty* more fail, and together: each 20 s a sender comes
with 20 bad requests, each minute what both revisions need fails half of the requests for two seconds, and each pod stalls for half a
second in five minutes. Requests take 30 ms, one in a hundred more than 120 ms. Pods close their reports at different times, so the
end of a second is told with the next one. The guard is the one word ` + "`on`" + `: ` + "`%s`" + `.

## A revision that is as good as the old one

By the proof at most %.1f %% of these go back, whatever fails, if the figures are of the same seconds. Here they are not quite. The judge
stands still while evidence is too much to go on and too little to go back.

Under *fails one client* the new revision fails all requests of one of many clients, which sends a fifth as many as all others. That may
be an attack, so the rollout waits for a person, here for as long as ten minutes. Under *bursty* pods of the new revision stall besides,
which fails requests of others, too.

`

const rolloutLessons = `
## A revision that is worse

Times are from the first percent, of the rollouts that went back; *p99 3 times as long* slows one request in twenty, *3 times as long* each
of them. *Bad answers* are the mean of what the new revision failed or slowed until then, in all rollouts.

`

const rolloutEnd = `
- 0.1 % of the requests of two minutes are 12 under *steady*.
- Without steps a rollout of two minutes gives one percent more each 1.2 seconds. What takes time is that the new revision gets requests:
  one that fails 20 % goes back after eight bad answers, with these steps as with a first one of 5 %. That has them sooner, and the steps after it
  have the small faults later.
- Under *low* the new revision gets 60 requests. That is enough to find one that fails 20 %, because the split stands still while it fails
  more than it may and can hardly be compared. It is not enough to see 5 %, or slow requests. A longer rollout sees more.
- A burst of bad requests convicts nobody, because both revisions fail it. One bad moment of one revision does not convict it either:
  evidence has to come from three moments. So a revision that fails everything is not found at once.
`

// rolloutPage is the report.
func rolloutPage(kinds []rollouts, g judge.Guard) string {
	var good, worse strings.Builder
	for _, k := range kinds {
		if k.fault.alike {
			good.WriteString(k.row(rolledOut.ended, false))
		} else {
			worse.WriteString(k.row(rolledOut.wentBack, true))
		}
	}
	return fmt.Sprintf(rolloutIntroduction, len(kinds[0].all), g, 100*judge.FalseAlarms) +
		"| Traffic | New revision | Went back | Stood still for a time | Took: median | 90 % within |\n|---|---|--:|--:|--:|--:|\n" + good.String() +
		rolloutLessons +
		"| Traffic | New revision | Went back | Stood still for a time | After: median | 90 % within | Bad answers |\n|---|---|--:|--:|--:|--:|--:|\n" + worse.String() +
		rolloutEnd
}

func (r rolledOut) ended() bool    { return true }
func (r rolledOut) wentBack() bool { return r.back }
func (r rolledOut) stood() bool    { return r.waited }

func (k rollouts) count(which func(rolledOut) bool) (n int) {
	for _, r := range k.all {
		if which(r) {
			n++
		}
	}
	return n
}

// row is the result in words, with the times of those that count.
func (k rollouts) row(counts func(rolledOut) bool, bad bool) string {
	var times []time.Duration
	sum := 0
	for _, r := range k.all {
		sum += r.bad
		if counts(r) {
			times = append(times, r.took)
		}
	}
	slices.Sort(times)
	at := func(q float64) string {
		if len(times) == 0 {
			return ""
		}
		return fmt.Sprintf("%.0f s", times[min(int(q*float64(len(times))), len(times)-1)].Seconds())
	}
	share := func(n int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(len(k.all))) }
	row := fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", k.traffic.name, k.fault.name, share(k.count(rolledOut.wentBack)), share(k.count(rolledOut.stood)), at(0.5), at(0.9))
	if bad {
		row += fmt.Sprintf(" %.1f |", float64(sum)/float64(len(k.all)))
	}
	return row + "\n"
}
