// Package component builds queue-proxy and the activator and runs them as processes, for tests of
// the data path without a cluster.
//
// Owns: the processes, until the test ends. Reads: their logs. Writes: nothing. Never: links a
// component into the test.
package component

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/wire"
)

// Build builds queue-proxy and the activator, with the race detector if the tests run with it.
func Build(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	args := []string{"build", "-o", dir + "/"}
	if raceDetector {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "ebb.dev/ebb/queue-proxy", "ebb.dev/ebb/activator")...).CombinedOutput(); err != nil {
		t.Fatalf("build queue-proxy and the activator: %v\n%s", err, out)
	}
	return dir
}

// Process is a running component.
type Process struct {
	*process.Process
	name string
}

// start ends the process with the test, which tells what it logged if it fails.
func start(t *testing.T, name, path string, env ...string) *Process {
	t.Helper()
	p, err := process.Start(exec.Command(path), env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended := !p.Alive()
		p.Stop()
		if t.Failed() {
			text := p.Output()
			t.Logf("%s (had ended: %t, %v):\n%s", name, ended, p.ProcessState, text[max(0, len(text)-10000):])
		}
	})
	return &Process{p, name}
}

// await returns the field of the first line that has the message.
func (p *Process) await(t *testing.T, message, field string) (value string) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("%s logs %q", p.name, message), func() bool {
		alive := p.Alive() // before its last words are read
		for text := range strings.Lines(p.Output()) {
			var line map[string]any
			if json.Unmarshal([]byte(text), &line) == nil && (line["msg"] == message || line["message"] == message) {
				value, _ = line[field].(string)
				return true
			}
		}
		if !alive {
			t.Fatalf("%s ended, and logged no line %q", p.name, message)
		}
		return false
	})
	return value
}

// StartQueueProxy starts the queue-proxy of a pod of the revision, with a limit of requests (0:
// none), and returns its address.
func StartQueueProxy(t *testing.T, dir, revision, pod string, limit int, container, activators string) (p *Process, address string) {
	t.Helper()
	user, err := netip.ParseAddrPort(container)
	if err != nil {
		t.Fatal(err)
	}
	told := wire.Sidecar{
		Place: wire.Place{Namespace: loopback.Namespace, Revision: revision, Pod: pod, PodIP: netip.MustParseAddr("127.0.0.1")},
		Ports: wire.Ports{UserPort: int(user.Port())}, Limits: wire.Limits{Concurrency: limit, Timeout: 300 * time.Second},
		Reports: wire.Reports{Activators: activators}, CertDir: "/nowhere", DrainQuiet: 5 * time.Second,
		Secrets: wire.Secrets{Token: wire.Token(loopback.TokenKey, loopback.Namespace, revision)},
	}
	p = start(t, pod, dir+"/queue-proxy", told.Env()...)
	_, port, err := net.SplitHostPort(p.await(t, "queue-proxy serves", "address"))
	if err != nil {
		t.Fatalf("%s logged no address: %v", pod, err)
	}
	return p, net.JoinHostPort("127.0.0.1", port)
}

// StartActivator starts an activator at the given address, on its fixed ports, and waits until it
// is ready.
func StartActivator(t *testing.T, dir, ip string, cluster *loopback.Cluster) *Process {
	t.Helper()
	p := start(t, "activator "+ip, dir+"/activator", "KUBECONFIG="+cluster.Kubeconfig, "EBB_LISTEN_IP="+ip, "POD_IP="+ip, "POD_NAME=activator-"+ip,
		"EBB_AUTOSCALER="+cluster.Autoscaler, "SYSTEM_NAMESPACE="+loopback.SystemNamespace)
	p.await(t, "the cluster's revisions and their pods are known", "")
	request, err := http.NewRequest(http.MethodGet, "http://"+FrontOf(ip)+wire.PathHealth, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("User-Agent", wire.AgentKubelet+"test")
	eventually.Seen(t, "the activator at "+ip+" is ready", func() (error, bool) {
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err, false
		}
		response.Body.Close()
		return errors.New(response.Status), response.StatusCode == http.StatusOK
	})
	return p
}

// FrontOf returns the address for requests of the activator at ip, BackOf the one for announcements
// of pods.
func FrontOf(ip string) string { return net.JoinHostPort(ip, strconv.Itoa(wire.PortHTTP1)) }
func BackOf(ip string) string  { return net.JoinHostPort(ip, strconv.Itoa(wire.PortAnnounce)) }
