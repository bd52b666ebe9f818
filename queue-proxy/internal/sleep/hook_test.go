package sleep

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/standby"
)

func takes(d time.Duration, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return err
		}
	}
}

func newHookedRig(t *testing.T) *rig {
	return newRigWith(t, func(r *rig, o *Options) {
		r.before, r.after = takes(0, nil), takes(0, nil)
		o.SleepHook, o.WakeHook = r.hook("sleep", &r.before), r.hook("wake", &r.after)
	})
}

func (r *rig) expect(what string, want ...string) {
	r.t.Helper()
	if got := r.called(); !slices.Equal(got, want) {
		r.t.Errorf("%s: the hooks called were %v, want %v", what, got, want)
	}
}

func TestAProgramIsCalledBeforeItSleepsAndAfterItWoke(t *testing.T) {
	for _, frozen := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newHookedRig(t)
			if frozen {
				r.agent(time.Millisecond)
			}
			r.before, r.after = takes(300*time.Millisecond, nil), takes(200*time.Millisecond, nil)
			for range 2 {
				r.sleep(standby.Frozen)
				time.Sleep(3 * time.Second)
				r.expect("asleep", "sleep")
				begin := time.Now()
				if !r.request(t.Context(), false, 0) {
					t.Error("the request was refused")
				}
				if took := time.Since(begin); took < 200*time.Millisecond || took > 205*time.Millisecond {
					t.Errorf("the request took %s, the hook 200ms", took)
				}
				r.expect("awake", "wake")
				time.Sleep(standby.SettleTime + time.Millisecond)
				r.heard(Gone, Asleep, Awake)
			}
		})
	}
}

// A request that comes while the program is called before its sleep waits for the end of the call,
// and for that after it. The pod does not freeze in between.
func TestARequestDuringTheHookBeforeSleepWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHookedRig(t)
		r.agent(time.Millisecond)
		r.before = takes(500*time.Millisecond, nil)
		r.sleep(standby.Frozen)
		for r.State() != standby.Leaving {
			time.Sleep(time.Millisecond)
		}
		begin := time.Now()
		if !r.request(t.Context(), false, 0) || time.Since(begin) < 400*time.Millisecond {
			t.Errorf("answered after %s", time.Since(begin))
		}
		r.is(standby.Awake)
		r.expect("awake", "sleep", "wake")
		if r.frozen {
			t.Error("the pod was frozen")
		}
	})
}

func TestAHookThatFailsKeepsThePodAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHookedRig(t)
		r.agent(time.Millisecond)
		r.before = takes(time.Second, errors.New("it answered 500"))
		r.sleep(standby.Frozen)
		time.Sleep(4 * time.Second)
		r.is(standby.Awake)
		r.expect("the hook before sleep failed", "sleep", "wake")
		if !r.Balked() {
			t.Error("it does not say so")
		}
		if err := r.Sleep(standby.Frozen); err == nil || !strings.Contains(err.Error(), "before sleep failed: it answered 500") {
			t.Errorf("the order was answered %v", err)
		}
		time.Sleep(standby.HookPause)
		r.expect("in the pause")
		// The hook after the wake fails: the request is answered, and the pod stays awake too.
		r.before, r.after = takes(0, nil), takes(time.Second, errors.New("it answered 404"))
		r.sleep(standby.Frozen)
		time.Sleep(4 * time.Second)
		r.is(standby.Asleep)
		if !r.request(t.Context(), false, 0) {
			t.Error("the request was refused")
		}
		if err := r.Sleep(standby.Frozen); err == nil || !strings.Contains(err.Error(), "after the wake failed: it answered 404") {
			t.Errorf("the order was answered %v", err)
		}
		time.Sleep(standby.HookPause)
		r.after = takes(0, nil)
		r.sleep(standby.Frozen)
		time.Sleep(4 * time.Second)
		r.is(standby.Asleep)
	})
}

// The pod is deleted in the middle of a hook: the program is called before it is told to end.
func TestAPodThatEndsInTheMiddleOfAHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHookedRig(t)
		r.agent(time.Millisecond)
		r.before = takes(time.Second, nil)
		r.sleep(standby.Frozen)
		for r.State() != standby.Leaving {
			time.Sleep(time.Millisecond)
		}
		r.End()
		time.Sleep(2 * time.Second)
		r.is(standby.Awake)
		r.expect("ended", "sleep", "wake")
		r.sleep(standby.Frozen)
		time.Sleep(4 * time.Second)
		r.is(standby.Awake)
	})
}

func TestACallIsBounded(t *testing.T) {
	var asked atomic.Value
	stop := make(chan struct{})
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Method + " " + r.RequestURI)
		switch r.URL.Path {
		case "/hangs":
			<-stop
		case "/drips":
			for range 1000 {
				if _, err := w.Write([]byte("x")); err != nil || http.NewResponseController(w).Flush() != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		case "/500":
			w.WriteHeader(500)
		case "/elsewhere":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		case "/head":
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		case "/long":
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}))
	defer program.Close()
	defer close(stop)
	port := int(netip.MustParseAddrPort(program.Listener.Addr().String()).Port())
	for _, c := range []struct{ hook, asked, err string }{
		{"/sleep?level=1", "POST /sleep?level=1", ""},
		{"GET /sleep", "GET /sleep", ""},
		{"/long", "POST /long", ""},
		{"/hangs 100ms", "POST /hangs", "it did not end within 100ms"},
		{"/drips 100ms", "POST /drips", "it did not end within 100ms"},
		{"/head", "POST /head", "exceeded 65536 bytes"},
		{"/500", "POST /500", "it answered 500 Internal Server Error"},
		{"/elsewhere", "POST /elsewhere", "it answered 302 Found"},
		{":1/sleep", "", "connection refused"},
		{":" + strconv.Itoa(port) + "/other", "POST /other", ""},
	} {
		h, err := standby.ParseHook(c.hook)
		if err != nil {
			t.Fatal(err)
		}
		asked.Store("")
		begin := time.Now()
		switch err = Call(h, port)(t.Context()); {
		case (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err):
			t.Errorf("%s: %v, want %q", c.hook, err, c.err)
		case asked.Load() != c.asked:
			t.Errorf("%s: the program was asked %q", c.hook, asked.Load())
		case time.Since(begin) > 10*time.Second:
			t.Errorf("%s took %s", c.hook, time.Since(begin))
		}
	}
}

// BenchmarkCall is what a hook takes beside its own time.
func BenchmarkCall(b *testing.B) {
	program := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer program.Close()
	call := Call(standby.Hook{Method: "POST", Path: "/", Bound: time.Second}, int(netip.MustParseAddrPort(program.Listener.Addr().String()).Port()))
	for b.Loop() {
		if err := call(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
