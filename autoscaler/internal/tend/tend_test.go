package tend

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/wire"
)

var key = loop.Key{Namespace: "default", Name: "hello-00001"}

// house has pods at addresses of their own, and is the index.
type house struct {
	t     *testing.T
	mutex sync.Mutex
	pods  []pods.Pod // Depth 0 for those that are awake
	load  map[string]float64
	busy  map[string]wire.Busy
	told  map[string]string

	events []string
	deny   map[string]bool
	port   int
	keys   wire.Keys
}

func newHouse(t *testing.T, all ...pods.Pod) *house {
	h := &house{t: t, load: map[string]float64{}, told: map[string]string{}, deny: map[string]bool{}, keys: wire.KeysOf(map[string][]byte{"key": []byte("0123456789abcdef0123456789abcdef")})}
	for i := range all {
		all[i].IP = net.IPv4(127, 0, 0, byte(i+1)).String()
		l, err := net.Listen("tcp", net.JoinHostPort(all[i].IP, strconv.Itoa(h.port)))
		if err != nil {
			t.Skipf("no address %s here: %v", all[i].IP, err)
		}
		if h.port == 0 {
			h.port = l.Addr().(*net.TCPAddr).Port
		}
		name := all[i].Name
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.order(w, r, name) }))
		server.Listener.Close()
		server.Listener = l
		server.Start()
		t.Cleanup(server.Close)
	}
	h.pods = all
	return h
}

func (h *house) order(w http.ResponseWriter, r *http.Request, pod string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	signature, err := wire.ReadSignature(r)
	if err != nil || !signature.ByToken(h.keys.Token(key.Namespace, key.Name)) || r.Method != http.MethodPost || r.URL.Path != wire.PathStandby || h.deny[pod] {
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	h.told[pod] = r.URL.Query().Get("level")
	w.WriteHeader(http.StatusNoContent)
}

func (h *house) list(match func(pods.Pod) bool) (out []pods.Pod) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, p := range h.pods {
		if match(p) {
			out = append(out, p)
		}
	}
	return out
}

func (h *house) Ready(loop.Key) []pods.Pod {
	return h.list(func(p pods.Pod) bool { return p.Depth == 0 })
}

func (h *house) NotReady(loop.Key) (asleep, lapsed []pods.Pod) {
	return h.list(func(p pods.Pod) bool { return p.Depth > 0 }), nil
}

func (h *house) Said(_ loop.Key, pod string, depth uint8, _ string) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	i := slices.IndexFunc(h.pods, func(p pods.Pod) bool { return p.Name == pod })
	news := h.pods[i].Depth != depth
	h.pods[i].Depth = depth
	return news
}

func (h *house) tender() *Tender {
	return &Tender{Index: h, Keys: func() wire.Keys { return h.keys }, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Port: h.port,
		Changed: func(loop.Key) {}, MayWrite: func(loop.Key) bool { return true },
		Tell: func(_ loop.Key, reason, message string) {
			h.mutex.Lock()
			defer h.mutex.Unlock()
			h.events = append(h.events, reason+": "+message)
		},
		Ask: func(_ context.Context, _ loop.Key, all []pods.Pod, got func(pods.Pod, wire.Stat)) {
			for _, p := range all {
				got(p, wire.Stat{PodName: p.Name, AverageConcurrent: h.load[p.Name], Asleep: p.Depth, Busy: h.busy[p.Name]})
			}
		}}
}

func why() string { return "because" }

const frozen = 1 + uint8(standby.Frozen)

func TestPodsAreTold(t *testing.T) {
	long := time.Now().Add(-2 * compressAfter)
	for behaviour, c := range map[string]struct {
		pods   []pods.Pod
		load   map[string]float64
		busy   map[string]wire.Busy
		deny   string
		orders revision.PodOrders
		want   map[string]string
	}{
		"the idlest fall asleep": {
			pods: []pods.Pod{{Name: "a"}, {Name: "b"}, {Name: "c"}}, load: map[string]float64{"a": 2, "b": 0.5, "c": 1},
			orders: revision.PodOrders{Sleep: 2, Level: standby.Compressed}, want: map[string]string{"b": "frozen", "c": "frozen"}},
		"but not those that are busy": {
			pods: []pods.Pod{{Name: "a"}, {Name: "b"}, {Name: "c"}}, load: map[string]float64{"c": 1}, busy: map[string]wire.Busy{"a": wire.BusyTold, "b": wire.BusyBalked},
			orders: revision.PodOrders{Sleep: 1, Level: standby.Frozen}, want: map[string]string{"c": "frozen"}},
		"no deeper than they may": {
			pods: []pods.Pod{{Name: "a"}}, orders: revision.PodOrders{Sleep: 1, Level: standby.Warm}, want: map[string]string{"a": "warm"}},
		"those that sleep least deeply wake": {
			pods:   []pods.Pod{{Name: "a", Depth: frozen + 1}, {Name: "b", Depth: frozen}, {Name: "c"}},
			orders: revision.PodOrders{Wake: 1}, want: map[string]string{"b": wire.LevelAwake}},
		"more are asked for than there are": {
			pods:   []pods.Pod{{Name: "a", Depth: frozen}, {Name: "b"}},
			orders: revision.PodOrders{Wake: 5}, want: map[string]string{"a": wire.LevelAwake}},
		"those that slept long are compressed": {
			pods:   []pods.Pod{{Name: "a", Depth: frozen, Since: long}, {Name: "b", Depth: frozen, Since: time.Now()}},
			orders: revision.PodOrders{Look: true, Level: standby.Compressed}, want: map[string]string{"a": "compressed"}},
		"but not if they may not be": {
			pods:   []pods.Pod{{Name: "a", Depth: frozen, Since: long}},
			orders: revision.PodOrders{Look: true, Level: standby.Frozen}, want: map[string]string{}},
		"a pod that refuses does not stop the others": {
			pods: []pods.Pod{{Name: "a"}, {Name: "b"}}, deny: "a",
			orders: revision.PodOrders{Sleep: 2, Level: standby.Frozen}, want: map[string]string{"b": "frozen"}},
	} {
		t.Run(behaviour, func(t *testing.T) {
			h := newHouse(t, c.pods...)
			if c.load != nil {
				h.load = c.load
			}
			h.deny[c.deny], h.busy = true, c.busy
			tender := h.tender()
			changed := tender.tend(t.Context(), key, c.orders, why)
			for pod, level := range c.want {
				if h.told[pod] != level {
					t.Errorf("%s was told %q, want %q", pod, h.told[pod], level)
				}
			}
			if len(h.told) != len(c.want) || changed != (len(c.want) > 0 && !c.orders.Look) {
				t.Errorf("told %v, changed: %v", h.told, changed)
			}
			levels := map[string]bool{}
			for _, level := range c.want {
				levels[level] = true
			}
			if len(h.events) != len(levels) || len(levels) > 0 && !strings.Contains(h.events[0], ": ") {
				t.Errorf("events %q, want one", h.events)
			}
			if c.deny != "" && tender.Refused.Load() != 1 {
				t.Errorf("%d refusals counted", tender.Refused.Load())
			}
		})
	}
}

// A pod whose node is dead sleeps on, as far as anybody knows. It is not told again and again in
// place of others.
func TestAnotherPodIsToldAfterOneThatDidNotFollow(t *testing.T) {
	h := newHouse(t, pods.Pod{Name: "a", Depth: frozen}, pods.Pod{Name: "b", Depth: frozen + 1}, pods.Pod{Name: "c", Depth: frozen + 1})
	h.deny["a"] = true
	tender := h.tender()
	for _, want := range []string{"", "b", "b c"} {
		tender.tend(t.Context(), key, revision.PodOrders{Wake: 1}, why)
		if got := strings.Join(slices.Sorted(maps.Keys(h.told)), " "); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	h.deny["a"] = false
	tender.tend(t.Context(), key, revision.PodOrders{Wake: 1}, why)
	if h.told["a"] != wire.LevelAwake || len(tender.deaf) > 0 {
		t.Errorf("told %v; still deaf: %v", h.told, tender.deaf)
	}
	tender.deaf = map[target]time.Time{{key, "long ago"}: time.Now().Add(-deafFor)}
	if tender.noteDeaf(key, "d", true); len(tender.deaf) != 1 {
		t.Errorf("deaf are %v", tender.deaf)
	}
}

// Another replica may decide already, and want them awake.
func TestWhoMayNotWritePutsNoPodToSleep(t *testing.T) {
	for _, orders := range []revision.PodOrders{{Sleep: 1, Level: standby.Frozen}, {Look: true, Level: standby.Compressed}, {Wake: 1}} {
		h := newHouse(t, pods.Pod{Name: "a"}, pods.Pod{Name: "b", Depth: frozen, Since: time.Now().Add(-time.Hour)})
		tender := h.tender()
		cluster := fake.NewClientset()
		tender.Resizer, tender.MayWrite = &Resizer{Kube: cluster}, func(loop.Key) bool { return false }
		tender.tend(t.Context(), key, orders, why)
		if want := int(orders.Wake); len(h.told) != want || want > 0 && h.told["b"] != wire.LevelAwake || len(cluster.Actions()) > 0 {
			t.Errorf("%+v: told %v, and the API server %v", orders, h.told, cluster.Actions())
		}
	}
}

// While orders are under way, the same revision is not told anything else.
func TestARevisionIsTendedByOneAtATime(t *testing.T) {
	h := newHouse(t, pods.Pod{Name: "a"}, pods.Pod{Name: "b"})
	tender, begun, goOn := h.tender(), make(chan struct{}), make(chan struct{})
	ask := tender.Ask
	tender.Ask = func(ctx context.Context, k loop.Key, all []pods.Pod, got func(pods.Pod, wire.Stat)) {
		close(begun) // a second time panics
		<-goOn
		ask(ctx, k, all, got)
	}
	done := make(chan struct{})
	tender.Changed = func(loop.Key) { close(done) }
	tender.Tend(key, revision.PodOrders{Sleep: 1, Level: standby.Frozen}, why)
	<-begun
	tender.Tend(key, revision.PodOrders{Sleep: 1, Level: standby.Frozen}, why)
	close(goOn)
	<-done
	if asleep, _ := h.NotReady(key); len(asleep) != 1 || cmp.Or(asleep[0].Depth, 0) != 1 {
		t.Errorf("%+v sleep", asleep)
	}
}

// A pod whose hook failed stays awake, and the revision says so.
func TestAHookThatFailedIsTold(t *testing.T) {
	h := newHouse(t, pods.Pod{Name: "b"}, pods.Pod{Name: "a"}, pods.Pod{Name: "c"})
	h.busy = map[string]wire.Busy{"a": wire.BusyBalked, "b": wire.BusyBalked, "c": wire.BusyTold}
	if h.tender().tend(t.Context(), key, revision.PodOrders{Sleep: 1, Level: standby.Frozen}, why) || len(h.told) > 0 {
		t.Errorf("told %v", h.told)
	}
	if len(h.events) != 1 || !strings.HasPrefix(h.events[0], "StandbyHookFailed: pod a stays awake for 1m0s: ") {
		t.Errorf("events %q", h.events)
	}
}
