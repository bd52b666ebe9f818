package sidecar

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"ebb.dev/ebb/queue-proxy/internal/probe"
	"ebb.dev/ebb/queue-proxy/internal/sleep"
	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/wire"
)

// restQuiet is how long no request may have come before a pod that was told to sleep does.
// Activators and gateways need as long to learn that it rests.
const restQuiet = 2 * time.Second

// buildStandby makes the part that lets the pod sleep. A revision that does not sleep has none.
func (s *Sidecar) buildStandby() error {
	if s.cfg.Standby == nil {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stopSleeper = stop
	s.sleeper = sleep.New(ctx, sleep.Options{
		SleepHook: s.hook("sleep", s.cfg.SleepHook), WakeHook: s.hook("wake", s.cfg.WakeHook),
		Gate: gate{s}, Announce: s.announceSleep, Probe: s.answers,
		Woke:   func(level standby.Level, waited time.Duration) { s.metrics.Woke(level, waited) },
		PodUID: s.cfg.PodUID, Node: nodeAddresses(s.cfg.NodeIPs), Quiet: restQuiet, Log: s.log,
	})
	l, err := listen("the node agent", s.cfg.StandbyPort)
	if err != nil {
		stop()
		return err
	}
	s.ports.agent = l
	s.spare = time.AfterFunc(sparePeriod, s.giveBack)
	return nil
}

// hook returns what calls a hook, nil for none.
func (s *Sidecar) hook(name string, h *standby.Hook) func(context.Context) error {
	if h == nil {
		return nil
	}
	call := sleep.Call(*h, s.cfg.UserPort)
	return func(ctx context.Context) error {
		begin := time.Now()
		err := call(ctx)
		s.metrics.Hooked(name, time.Since(begin), err)
		return err
	}
}

// gate closes the idle connections to the container when the pod falls asleep: a program that wakes
// finds that they have been idle for too long, and closes them under the next request.
type gate struct{ s *Sidecar }

func (g gate) Open() { g.s.gate.Open() }
func (g gate) Shut() bool {
	shut := g.s.gate.Shut()
	if shut {
		g.s.user.CloseIdle()
	}
	return shut
}

// answers asks the user container once.
func (s *Sidecar) answers(ctx context.Context) error {
	for i := range s.probes {
		if err := s.probes[i].Once(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sidecar) announceSleep(ctx context.Context, w sleep.Word) {
	ready := s.userReady.Load()
	if ready == nil || s.drainer.Draining() {
		return
	}
	s.gate.Press()
	switch w {
	case sleep.Asleep:
		s.announcer.SayAsleep(ctx, s.sleeper.Depth().String(), *ready)
		s.spare.Reset(0)
	default:
		s.announcer.Say(ctx, w == sleep.Awake, *ready)
	}
}

// sparePeriod is how often a queue-proxy whose pod is compressed gives memory back. Its answers to
// probes and scrapes leave about 1 MiB of garbage in that time, which the collector would neither
// collect so soon nor give back.
const sparePeriod = 30 * time.Second

// giveBack gives the node the memory that queue-proxy does not use, as long as the pod is
// compressed: queue-proxy itself is not.
func (s *Sidecar) giveBack() {
	if s.sleeper.Depth() == standby.Compressed {
		debug.FreeOSMemory()
		s.spare.Reset(sparePeriod)
	}
}

// depth is how deeply the pod sleeps, and why it was not frozen, as wire.Stat has them. One that
// rests counts as asleep: nothing is to be sent to it.
func (s *Sidecar) depth() (depth uint8, failure string) {
	if s.sleeper.State() == standby.Awake {
		return 0, ""
	}
	return 1 + uint8(s.sleeper.Depth()), s.sleeper.Failure()
}

// busy says why the pod is not to sleep.
func (s *Sidecar) busy(now time.Time) wire.Busy {
	switch {
	case s.work != nil && s.work.Now(now):
		return wire.BusyTold
	case s.sleeper != nil && s.sleeper.Balked():
		return wire.BusyBalked
	}
	return wire.NotBusy
}

var errAsleep = errors.New("the pod sleeps")

// ready answers the kubelet's readiness probe. A pod that sleeps is not ready, so Services leave it
// alone, and its container is not asked.
func (s *Sidecar) ready(ctx context.Context) error {
	if s.asleep() {
		return errAsleep
	}
	return s.prober.Ready(ctx)
}

func (s *Sidecar) asleep() bool { return s.sleeper != nil && s.sleeper.State() != standby.Awake }

// standbyOrder is the autoscaler's order: POST PathStandby?level=LEVEL, or level=awake.
func (s *Sidecar) standbyOrder(w http.ResponseWriter, r *http.Request) {
	signature, err := wire.ReadSignature(r)
	if err != nil || !signature.ByToken(s.reporter.Token()) {
		http.Error(w, "only the autoscaler may tell this pod to sleep or to wake", http.StatusUnauthorized)
		return
	}
	if err := s.orders.Check(signature, w.Header()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if s.sleeper == nil {
		http.Error(w, "standby is off for this revision", http.StatusConflict)
		return
	}
	name := r.URL.Query().Get("level")
	if name == wire.LevelAwake {
		s.sleeper.Wake()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	level, err := standby.ParseLevel(name)
	if err != nil {
		http.Error(w, "level: "+err.Error()+", or "+wire.LevelAwake, http.StatusBadRequest)
		return
	}
	if err := s.sleeper.Sleep(min(level, *s.cfg.Standby)); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// liveness answers the kubelet's liveness probes of the containers: it asks the container, unless
// it may be frozen. A frozen container cannot answer, and must not be killed for that. One that
// hangs is to be killed, also in a pod that sleeps warm or has lost its agent.
func (s *Sidecar) liveness(w http.ResponseWriter, r *http.Request) {
	one, ok := s.cfg.LivenessProbes[strings.TrimPrefix(r.URL.Path, wire.PathLiveness)]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if s.sleeper == nil || !s.sleeper.MayBeFrozen() {
		if err := s.alive(r.Context(), &probe.Spec{Probe: one}); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

// alive forgives a probe that failed because the container was frozen meanwhile.
func (s *Sidecar) alive(ctx context.Context, spec *probe.Spec) error {
	err := spec.Once(ctx, spec.Timeout())
	if err != nil && s.sleeper != nil && s.sleeper.MayBeFrozen() {
		return nil
	}
	return err
}

// nodeAddresses are where the node's agent calls from: the node's own addresses, or, where the
// network gives each node an address among its pods, the gateway of the pod.
func nodeAddresses(node []netip.Addr) []netip.Addr {
	out := append([]netip.Addr(nil), node...)
	if text, err := os.ReadFile("/proc/net/route"); err == nil {
		out = append(out, gateways(string(text))...)
	}
	return out
}

// gateways reads the default gateways of /proc/net/route (proc(5)): hexadecimal, in the byte order
// of the machine.
func gateways(routes string) (out []netip.Addr) {
	for line := range strings.Lines(routes) {
		f := strings.Fields(line)
		if len(f) < 3 || f[1] != "00000000" {
			continue
		}
		var word uint32
		if _, err := fmt.Sscanf(f[2], "%X", &word); err != nil || word == 0 {
			continue
		}
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], word)
		out = append(out, netip.AddrFrom4(b))
	}
	return out
}
