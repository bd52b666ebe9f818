package activators

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/wire"
)

const (
	revision = "one-at-a-time"
	pods     = 4
	// Long requests keep all pods but one busy while short ones come. With slices of pods for each
	// activator, a short one that meets a slice whose pods have long ones would wait for seconds
	// beside the idle pod of another slice.
	short, long = 40 * time.Millisecond, 3 * time.Second
	// bound is how long a request may wait beside an idle pod. It takes milliseconds; the rest is
	// for a machine that is busy with other things.
	bound = 2500 * time.Millisecond
)

// span is a time in which something was so.
type span struct{ from, to time.Time }

// ledger is what the containers saw.
type ledger struct {
	mu    sync.Mutex
	busy  [pods][]span
	began map[string]time.Time // by the request's id
	twice int                  // requests that a container had beside another one
	now   [pods]int
}

// container is the program in a pod: it takes as long as the request says.
func (l *ledger) container(pod int) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		takes, err := time.ParseDuration(r.URL.Query().Get("takes"))
		if err != nil {
			return // queue-proxy's probe
		}
		from := time.Now()
		l.mu.Lock()
		l.began[r.URL.Query().Get("id")] = from
		if l.now[pod]++; l.now[pod] > 1 {
			l.twice++
		}
		l.mu.Unlock()
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done(): // with its client's activator
		}
		l.mu.Lock()
		l.now[pod]--
		l.busy[pod] = append(l.busy[pod], span{from, time.Now()})
		l.mu.Unlock()
	}
}

// beside is the longest time for which one pod was idle while a request waited.
func (l *ledger) beside(waited span) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pod := range pods {
		from := waited.from
		for _, b := range l.busy[pod] { // in order: a pod has one at a time
			if !b.to.After(from) {
				continue
			}
			if !b.from.Before(waited.to) {
				break
			}
			longest = max(longest, b.from.Sub(from))
			from = b.to
		}
		longest = max(longest, waited.to.Sub(from))
	}
	return longest
}

func TestNoRequestWaitsBesideAnIdlePodWithOneToFiveActivators(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	dir := build(t)
	cluster, err := loopback.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	// The activators' ports are fixed, so addresses of loopback that nobody else has keep them
	// apart from everything else.
	var ips, backs []string
	prefix := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(256))
	for n := range 5 {
		ips = append(ips, prefix+strconv.Itoa(10+n))
		backs = append(backs, backOf(ips[n]))
	}
	ledger := &ledger{began: map[string]time.Time{}}
	var addresses []string
	for pod := range pods {
		container := httptest.NewServer(ledger.container(pod))
		t.Cleanup(container.Close)
		_, address := startQueueProxy(t, dir, fmt.Sprintf("pod-%d", pod), container.Listener.Addr().String(), strings.Join(backs, ","))
		addresses = append(addresses, address)
	}
	if err := cluster.Revision(revision, 1, addresses...); err != nil {
		t.Fatal(err)
	}
	var activators []*process
	for _, ip := range ips {
		activators = append(activators, startActivator(t, dir, ip, cluster))
	}
	for n := 1; n <= len(ips); n++ {
		ledger.load(t, fmt.Sprintf("%d activators", n), ips[:n], func() {})
	}
	// A slot that a pod keeps for an activator that is dead is free again soon, and its other pods
	// are the others' as well.
	ledger.load(t, "five activators, one of them killed", ips[:4], func() { activators[4].Process.Kill() }, ips[4])
	if ledger.twice > 0 {
		t.Errorf("a pod with one slot had %d requests beside another one", ledger.twice)
	}
}

// load sends requests at random to the activators at steady, for some seconds; halfway it calls
// change, and those sent to doomed until then may fail. One pod can do a good third more of the
// short ones.
func (l *ledger) load(t *testing.T, name string, steady []string, change func(), doomed ...string) {
	t.Helper()
	const lasts, gap = long, float64(short) / 0.7
	client := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	defer client.CloseIdleConnections()
	var waits []time.Duration
	var worst time.Duration
	var requests sync.WaitGroup
	source := rand.New(rand.NewPCG(uint64(len(steady)), uint64(len(doomed))))
	begin, changed := time.Now(), false
	type sent struct {
		id string
		at time.Time
	}
	var all []sent
	for i := 0; time.Since(begin) < lasts; i++ {
		if !changed && time.Since(begin) > lasts/2 {
			change()
			changed = true
		}
		to, mayFail := steady[source.IntN(len(steady))], false
		if !changed && len(doomed) > 0 && source.IntN(5) == 0 {
			to, mayFail = doomed[0], true
		}
		takes := short
		if i < pods-1 {
			takes = long
		}
		id := fmt.Sprintf("%s/%d", name, i)
		if !mayFail {
			all = append(all, sent{id, time.Now()})
		}
		requests.Go(func() {
			status, err := get(client, to, id, takes)
			if !mayFail && (err != nil || status != http.StatusOK) {
				t.Errorf("%s, %s: a request got %d, %v", name, to, status, err)
			}
		})
		<-time.After(time.Duration(source.ExpFloat64() * gap))
	}
	requests.Wait()
	for _, s := range all {
		l.mu.Lock()
		began, ok := l.began[s.id]
		l.mu.Unlock()
		if !ok {
			continue // it failed, and that was said
		}
		idle := l.beside(span{s.at, began})
		waits = append(waits, idle)
		worst = max(worst, idle)
	}
	slices.Sort(waits)
	if len(waits) == 0 {
		t.Fatalf("%s: no request reached a pod", name)
	}
	t.Logf("%s: %d requests; beside an idle pod they waited %s (median), %s (99 of 100), %s (longest)", name, len(waits),
		waits[len(waits)/2].Round(time.Microsecond), waits[len(waits)*99/100].Round(time.Microsecond), worst.Round(time.Microsecond))
	if worst > bound {
		t.Errorf("%s: a request waited %s while a pod was idle", name, worst)
	}
}

func get(client *http.Client, ip, id string, takes time.Duration) (status int, err error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+frontOf(ip)+"/?takes="+takes.String()+"&id="+strings.ReplaceAll(id, " ", "+"), nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set(wire.HeaderNamespace, loopback.Namespace)
	request.Header.Set(wire.HeaderRevision, revision)
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, err
	}
	return response.StatusCode, nil
}
