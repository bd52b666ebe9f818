// Package tend tells pods to sleep and to wake.
//
// Owns: the orders to queue-proxies that are under way, one set for each revision. Reads: the pods
// of a revision and what they say of themselves. Writes: POSTs to queue-proxies, and what those
// answer to the index of pods; the resource requests of pods that sleep for long. Never: decides
// how many pods sleep; repeats an order: the loop asks again while it differs.
package tend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/wire"
)

const (
	// orderTimeout bounds one order, askTimeout the questions before it.
	orderTimeout = 2 * time.Second
	askTimeout   = time.Second
	// most bounds how many revisions are tended at once. One more is left to its next decision.
	most = 256
	// compressAfter is how long a pod is frozen before its memory is compressed.
	compressAfter = 20 * time.Second
	// deafFor is for how long others are told before a pod that did not follow an order. Its node
	// may be dead.
	deafFor = time.Minute
)

// Index knows the pods.
type Index interface {
	Ready(loop.Key) []pods.Pod
	NotReady(loop.Key) (asleep, lapsed []pods.Pod)
	// Said records how deeply a pod sleeps, 0 for awake, and why it was not frozen. It reports
	// whether that is news.
	Said(key loop.Key, pod string, depth uint8, failure string) bool
}

// Tender is the loop's Tender.
type Tender struct {
	Index Index
	// Ask asks pods for their stats.
	Ask  func(context.Context, loop.Key, []pods.Pod, func(pods.Pod, wire.Stat))
	Keys func() wire.Keys
	// MayWrite reports whether another replica cannot decide for a revision now. Otherwise its pods
	// may wake, but no more of them fall asleep.
	MayWrite func(loop.Key) bool
	// Resizer, if set, resizes the pods that sleep for long.
	Resizer *Resizer
	// Changed is called with a revision of which a pod fell asleep or woke. It does not block.
	Changed func(loop.Key)
	// Tell records an event of a revision.
	Tell func(key loop.Key, reason, message string)
	Log  *slog.Logger
	// Client sends the orders; nil stands for one with orderTimeout. Port replaces
	// wire.PortMetrics.
	Client *http.Client
	Port   int

	// Slept, Woken and Compressed count orders that a pod took, Refused those that failed.
	Slept, Woken, Compressed, Refused atomic.Int64

	signer wire.Signer
	mutex  sync.Mutex
	busy   map[loop.Key]struct{}
	deaf   map[target]time.Time // when a pod did not follow an order
}

// target is a pod.
type target struct {
	key loop.Key
	pod string
}

// Tend implements loop.Tender. While orders to a revision are under way, it does nothing: the loop
// decides again when they are done.
func (t *Tender) Tend(key loop.Key, s revision.PodOrders, why func() string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if _, busy := t.busy[key]; busy || len(t.busy) >= most {
		return
	}
	if t.busy == nil {
		t.busy = map[loop.Key]struct{}{}
	}
	t.busy[key] = struct{}{}
	go func() {
		changed := t.tend(context.Background(), key, s, why)
		t.mutex.Lock()
		delete(t.busy, key)
		t.mutex.Unlock()
		if changed {
			t.Changed(key)
		}
	}()
}

func (t *Tender) tend(ctx context.Context, key loop.Key, s revision.PodOrders, why func() string) (changed bool) {
	switch {
	case s.Wake > 0:
		asleep, _ := t.Index.NotReady(key)
		changed = t.order(ctx, key, t.lightest(key, asleep, int(s.Wake)), wire.LevelAwake, 0, &t.Woken, why)
	case s.Sleep > 0:
		changed = t.order(ctx, key, t.idlest(ctx, key, int(s.Sleep)), min(s.Level, standby.Frozen).String(), 1, &t.Slept, why)
	}
	if s.Grow && t.Resizer != nil {
		for _, pod := range t.Index.Ready(key) {
			if pod.Shrunk != "" {
				t.fit(t.Resizer.restore(ctx, key, pod))
			}
		}
	}
	if s.Look {
		changed = t.look(ctx, key, s) || changed
	}
	return changed
}

// fit notes the outcome of a resize. It is tried again with the next look.
func (t *Tender) fit(err error) {
	if err != nil {
		t.Refused.Add(1)
		t.Log.Warn("cannot resize a pod", "error", err)
	}
}

// lightest are the pods that wake soonest: those that sleep least deeply, and of these the one that
// fell asleep last. Those that did not follow the last order come after all others.
func (t *Tender) lightest(key loop.Key, asleep []pods.Pod, n int) []pods.Pod {
	sorted := slices.Clone(asleep)
	deaf := map[string]int{}
	t.mutex.Lock()
	for _, p := range asleep {
		if at, failed := t.deaf[target{key, p.Name}]; failed && time.Since(at) < deafFor {
			deaf[p.Name] = 1
		}
	}
	t.mutex.Unlock()
	slices.SortFunc(sorted, func(a, b pods.Pod) int {
		return cmp.Or(cmp.Compare(deaf[a.Name], deaf[b.Name]), cmp.Compare(a.Depth, b.Depth), b.Since.Compare(a.Since), strings.Compare(a.Name, b.Name))
	})
	return sorted[:min(n, len(sorted))]
}

// noteDeaf remembers whether a pod did not follow an order.
func (t *Tender) noteDeaf(key loop.Key, pod string, deaf bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	maps.DeleteFunc(t.deaf, func(_ target, at time.Time) bool { return time.Since(at) >= deafFor })
	switch {
	case !deaf:
		delete(t.deaf, target{key, pod})
	case t.deaf == nil:
		t.deaf = map[target]time.Time{{key, pod}: time.Now()}
	default:
		t.deaf[target{key, pod}] = time.Now()
	}
}

// idlest are the pods with the fewest requests, and of these the youngest. A pod that does not
// answer stays awake, and so does one that is busy. The last pod that answers may fall asleep too.
func (t *Tender) idlest(ctx context.Context, key loop.Key, n int) []pods.Pod {
	type load struct {
		pod      pods.Pod
		inFlight float64
	}
	var mutex sync.Mutex
	var all []load
	var balked []string
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	t.Ask(ctx, key, t.Index.Ready(key), func(pod pods.Pod, stat wire.Stat) {
		mutex.Lock()
		defer mutex.Unlock()
		switch {
		case stat.Busy == wire.BusyBalked:
			balked = append(balked, pod.Name)
		case stat.Asleep == 0 && stat.Busy == wire.NotBusy:
			all = append(all, load{pod, stat.AverageConcurrent})
		}
	})
	if len(all) < n && len(balked) > 0 {
		t.Tell(key, "StandbyHookFailed", fmt.Sprintf("pod %s stays awake for %s: its hook before sleep or after a wake failed; the log of its queue-proxy says how",
			slices.Min(balked), standby.HookPause))
	}
	slices.SortFunc(all, func(a, b load) int {
		return cmp.Or(cmp.Compare(a.inFlight, b.inFlight), b.pod.Started.Compare(a.pod.Started), strings.Compare(a.pod.Name, b.pod.Name))
	})
	chosen := make([]pods.Pod, 0, n)
	for _, one := range all[:min(n, len(all))] {
		chosen = append(chosen, one.pod)
	}
	return chosen
}

// look asks the pods that sleep, and those that may, what they do. It compresses those that have
// been frozen for long.
func (t *Tender) look(ctx context.Context, key loop.Key, s revision.PodOrders) (changed bool) {
	asleep, lapsed := t.Index.NotReady(key)
	var news atomic.Bool
	var mutex sync.Mutex
	var long []pods.Pod
	t.Ask(ctx, key, slices.Concat(asleep, lapsed), func(pod pods.Pod, stat wire.Stat) {
		if t.Index.Said(key, pod.Name, stat.Asleep, stat.FreezeFailure) {
			news.Store(true)
		}
		if stat.Asleep == 1+uint8(standby.Frozen) && !pod.Since.IsZero() && time.Since(pod.Since) >= compressAfter {
			mutex.Lock()
			defer mutex.Unlock()
			long = append(long, pod)
		}
	})
	if s.Level == standby.Compressed && len(long) > 0 {
		t.order(ctx, key, long, standby.Compressed.String(), 1+uint8(standby.Frozen), &t.Compressed,
			func() string { return "frozen for at least " + compressAfter.String() })
	}
	for _, pod := range asleep {
		if t.Resizer != nil && pod.Shrunk == "" && !pod.Since.IsZero() && time.Since(pod.Since) >= shrinkAfter && t.MayWrite(key) {
			t.fit(t.Resizer.shrink(ctx, key, pod.Name))
		}
	}
	return news.Load()
}

// order tells pods to sleep at a level or to wake, and why. depth is what each that takes the order
// counts as until it says more itself. It reports whether one took it.
func (t *Tender) order(ctx context.Context, key loop.Key, all []pods.Pod, level string, depth uint8, counter *atomic.Int64, why func() string) bool {
	if level != wire.LevelAwake && !t.MayWrite(key) {
		return false
	}
	token := t.Keys().Token(key.Namespace, key.Name)
	var taken atomic.Int64
	var group sync.WaitGroup
	for _, pod := range all {
		group.Go(func() {
			err := t.post(ctx, pod, level, token)
			t.noteDeaf(key, pod.Name, err != nil)
			if err != nil {
				t.Refused.Add(1)
				t.Log.Warn("a pod did not follow the order to sleep or to wake", "revision", key.String(), "pod", pod.Name, "to", level, "error", err)
				return
			}
			taken.Add(1)
			t.Index.Said(key, pod.Name, depth, "")
		})
	}
	group.Wait()
	counter.Add(taken.Load())
	n := taken.Load()
	if n == 0 {
		return false
	}
	because := why()
	t.Log.Info("told pods to sleep or to wake", "revision", key.String(), "pods", n, "to", level, "because", because)
	if level == wire.LevelAwake {
		t.Tell(key, "PodsWoken", fmt.Sprintf("told %d to wake: %s", n, because))
	} else {
		t.Tell(key, "PodsAsleep", fmt.Sprintf("told %d to sleep, %s: %s", n, level, because))
	}
	return true
}

var errRefused = errors.New("refused")

func (t *Tender) post(ctx context.Context, pod pods.Pod, level, token string) error {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	address := net.JoinHostPort(pod.IP, strconv.Itoa(cmp.Or(t.Port, wire.PortMetrics)))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+wire.PathStandby+"?level="+level, nil)
	if err != nil {
		return fmt.Errorf("order to %s: %w", address, err)
	}
	client := t.Client
	if client == nil {
		client = defaultClient
	}
	response, err := t.signer.Do(client, request, token)
	if err != nil {
		return fmt.Errorf("order to %s: %w", address, err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 512))
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("order to %s: %s: %s: %w", address, response.Status, strings.TrimSpace(string(text)), errRefused)
	}
	return nil
}

// defaultClient keeps no connections: orders are rare, and a pod's address is used again.
var defaultClient = &http.Client{Timeout: orderTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
