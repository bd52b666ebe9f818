package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

func keys() wire.Keys {
	key := []byte("0123456789abcdef0123456789abcdef")
	return wire.Keys{Current: key, Accepted: [][]byte{key}}
}

// Only an answer counts that proves to be an activator's; the others are as if there was none.
func TestOnlyAnActivatorsAnswerCounts(t *testing.T) {
	pod := netip.MustParseAddr("10.0.0.2")
	answer, _ := json.Marshal(wire.ReachAnswer{Node: "c", Silent: []netip.Addr{pod}})
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, s *wire.Signature)
		counts bool
	}{
		"an activator": {func(w http.ResponseWriter, s *wire.Signature) {
			w.Header().Set(wire.HeaderReachProof, s.Answer(answer))
			w.Write(answer)
		}, true},
		"somebody else":           {func(w http.ResponseWriter, _ *wire.Signature) { w.Write(answer) }, false},
		"one of an older release": {func(w http.ResponseWriter, _ *wire.Signature) { w.WriteHeader(http.StatusNotFound) }, false},
		"an activator with a flaw": {func(w http.ResponseWriter, s *wire.Signature) {
			w.Header().Set(wire.HeaderReachProof, s.Answer([]byte("x")))
			w.Write([]byte("x"))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				signature, err := wire.ReadSignature(r)
				if err != nil || !signature.By(keys(), "", wire.AutoscalerSubject) || r.URL.Path != wire.PathReach {
					t.Errorf("%s: %v", r.URL, err)
					return
				}
				body, _ := io.ReadAll(r.Body)
				if q, err := wire.DecodeReachQuestion(body); err != nil || !signature.Covers(body) || len(q.Pods) > 1 || len(q.Pods) == 1 && q.Pods[0] != pod {
					t.Errorf("%s: %v", body, err)
				}
				c.answer(w, signature)
			}))
			defer server.Close()
			at := netip.MustParseAddrPort(server.Listener.Addr().String())
			var away atomic.Bool
			o := &Activators{Port: int(at.Port()), Keys: keys, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
				Find: func(context.Context) ([]netip.Addr, error) {
					if away.Load() {
						return nil, errors.New("no DNS")
					}
					return []netip.Addr{at.Addr()}, nil
				}}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { o.Run(ctx); close(done) }()
			eventually.True(t, "activators are found", func() bool { return o.found.Load() != nil })
			away.Store(true)
			n := 0
			o.Ask(t.Context(), []netip.Addr{pod}, func(a wire.ReachAnswer) {
				if n++; a.Node != "c" || len(a.Silent) != 1 {
					t.Errorf("%+v", a)
				}
			})
			if n == 1 != c.counts {
				t.Errorf("%d answers", n)
			}
			if on := o.Nodes(); on["c"] == at.Addr().String() != c.counts || len(on) != n {
				t.Errorf("they run on %v", on)
			}
			cancel()
			<-done
		})
	}
}

// The news of an activator count, and those that are not found any more run nowhere.
func TestWhereActivatorsRun(t *testing.T) {
	address := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	o := &Activators{}
	for n, node := range map[byte]string{1: "a", 2: "b", 3: "c", 4: ""} {
		o.runs(address(n), node)
	}
	if got := o.Nodes(); !maps.Equal(got, map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}) {
		t.Errorf("%v", got)
	}
	for _, ip := range []string{"10.0.0.1", "10.0.0.3"} {
		if !o.Has(ip) {
			t.Errorf("%s is no activator", ip)
		}
	}
	for _, ip := range []string{"10.0.0.4", "10.0.0.5", "a", ""} {
		if o.Has(ip) {
			t.Errorf("%q is an activator", ip)
		}
	}
	o.runs(address(1), "d")
	o.runs(address(2), "")
	o.keep([]netip.Addr{address(1), address(2), address(4)})
	if got := o.Nodes(); !maps.Equal(got, map[string]string{"d": "10.0.0.1"}) {
		t.Errorf("later: %v", got)
	}
}
