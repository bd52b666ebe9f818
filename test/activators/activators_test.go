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

	"ebb.dev/ebb/test/internal/component"
	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/wire"
)

const (
	revision = "one-at-a-time"
	pods     = 4
	// Long requests keep all pods but one busy while short ones arrive. If each activator had its
	// own subset of pods, a short request could wait for seconds behind long ones while a pod of
	// another subset is idle.
	short, long = 40 * time.Millisecond, 3 * time.Second
	// bound is how long a request may wait while a pod is idle. It takes milliseconds; the rest
	// allows for a busy machine.
	bound = 2500 * time.Millisecond
)

// span is an interval of time.
type span struct{ from, to time.Time }

// ledger records what the containers saw.
type ledger struct {
	mu    sync.Mutex
	busy  [pods][]span
	began map[string]time.Time // by the request's id
	twice int                  // requests that a container handled at the same time as another
	now   [pods]int
}

// container is the program in a pod. It takes as long as the request says.
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
		case <-r.Context().Done(): // at its client's activator
		}
		l.mu.Lock()
		l.now[pod]--
		l.busy[pod] = append(l.busy[pod], span{from, time.Now()})
		l.mu.Unlock()
	}
}

// beside returns the longest time for which a pod was idle while a request waited.
func (l *ledger) beside(waited span) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pod := range pods {
		from := waited.from
		for _, b := range l.busy[pod] { // in order: a pod handles one at a time
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
	dir := component.Build(t)
	cluster, err := loopback.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	// The activators' ports are fixed, so each gets an unused loopback address.
	var ips, backs []string
	prefix := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(256))
	for n := range 5 {
		ips = append(ips, prefix+strconv.Itoa(10+n))
		backs = append(backs, component.BackOf(ips[n]))
	}
	ledger := &ledger{began: map[string]time.Time{}}
	var addresses []string
	for pod := range pods {
		container := httptest.NewServer(ledger.container(pod))
		t.Cleanup(container.Close)
		_, address := component.StartQueueProxy(t, dir, revision, fmt.Sprintf("pod-%d", pod), 1, container.Listener.Addr().String(), strings.Join(backs, ","))
		addresses = append(addresses, address)
	}
	if err := cluster.Revision(revision, 1, addresses...); err != nil {
		t.Fatal(err)
	}
	var activators []*component.Process
	for _, ip := range ips {
		activators = append(activators, component.StartActivator(t, dir, ip, cluster))
	}
	for n := 1; n <= len(ips); n++ {
		ledger.load(t, fmt.Sprintf("%d activators", n), ips[:n], func() {})
	}
	// A slot that a pod reserves for a dead activator becomes free soon, and its other pods can be
	// used by the other activators.
	ledger.load(t, "five activators, one of them killed", ips[:4], func() { activators[4].Stop() }, ips[4])
	if ledger.twice > 0 {
		t.Errorf("pods with one slot handled %d requests at the same time as another one", ledger.twice)
	}
}

// load sends requests to random activators in steady, for some seconds. Halfway it calls change;
// requests sent to doomed until then may fail. A pod could handle a third more short requests than
// it gets.
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
	t.Logf("%s: %d requests; wait while a pod was idle: %s (median), %s (p99), %s (max)", name, len(waits),
		waits[len(waits)/2].Round(time.Microsecond), waits[len(waits)*99/100].Round(time.Microsecond), worst.Round(time.Microsecond))
	if worst > bound {
		t.Errorf("%s: a request waited %s while a pod was idle", name, worst)
	}
}

func get(client *http.Client, ip, id string, takes time.Duration) (status int, err error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+component.FrontOf(ip)+"/?takes="+takes.String()+"&id="+strings.ReplaceAll(id, " ", "+"), nil)
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
