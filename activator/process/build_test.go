package process

import (
	"io"
	"strings"
	"testing"

	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/wire"
)

func TestOptionsFromTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		name, lacks                string
		set                        map[string]string
		announce, autoscaler, fail string
	}{
		{name: "in a pod it listens everywhere and reports to the Service", announce: ":8014", autoscaler: "autoscaler.knative-serving.svc.cluster.local.:8080"},
		{name: "one address", set: map[string]string{"EBB_LISTEN_IP": "127.1.2.3"}, announce: "127.1.2.3:8014"},
		{name: "one IPv6 address", set: map[string]string{"EBB_LISTEN_IP": "::1"}, announce: "[::1]:8014"},
		{name: "a name is no address", set: map[string]string{"EBB_LISTEN_IP": "localhost"}, fail: "EBB_LISTEN_IP"},
		{name: "another autoscaler", set: map[string]string{"EBB_AUTOSCALER": "127.0.0.1:1"}, announce: ":8014", autoscaler: "127.0.0.1:1"},
		{name: "who it is must be known", lacks: "POD_NAME", fail: "POD_NAME"},
		{name: "so must its address", lacks: "POD_IP", fail: "POD_IP"},
		{name: "an old TLS version", set: map[string]string{"ACTIVATOR_TLS_MIN_VERSION": "1.0"}, fail: "ACTIVATOR_TLS_MIN_VERSION"},
		{name: "bounds are positive", set: map[string]string{"EBB_HOLD_BYTES": "0"}, fail: "EBB_HOLD_BYTES"},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := map[string]string{"SYSTEM_NAMESPACE": "knative-serving", "POD_NAME": "a", "POD_IP": "10.0.0.1"}
			for k, v := range c.set {
				env[k] = v
			}
			delete(env, c.lacks)
			of := component.New("activator", func(k string) string { return env[k] }, io.Discard)
			o := readOptions(of)
			err := of.Env.Err()
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) {
					t.Fatalf("got error %v, want one that names %s", err, c.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := of.Address(wire.PortAnnounce); got != c.announce {
				t.Errorf("listens for announcements on %s, want %s", got, c.announce)
			}
			if !strings.HasPrefix(o.autoscaler, c.autoscaler) {
				t.Errorf("reports to %s, want %s", o.autoscaler, c.autoscaler)
			}
		})
	}
}
