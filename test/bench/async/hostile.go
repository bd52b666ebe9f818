package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/shipped"
	"ebb.dev/ebb/wire"
)

const (
	pathOfCallbacks = "/called-back"
	// roleAttacker is what the benchmark starts itself as.
	roleAttacker = "attacker"
	// attackers begins the names of the attacker's services.
	attackers = "attacker-"
	// storeBytes is small, so that the attacker fills its share soon.
	storeBytes = 256 << 20
	large      = 250_000
	// pause is between two requests of one attacking client: all make about 1000 a second.
	pause = 100 * time.Millisecond
	// ahead is how long the attacks go on before the calls beside them begin.
	ahead = 10 * time.Second
)

// attack is what one tenant does, through the gateway if not said otherwise.
type attack struct {
	name    string
	clients int
	make    func(a *attacks, ctx context.Context, service string)
}

var all = []attack{
	{"large calls to a service that hangs, for each of 4 services", 8, func(a *attacks, ctx context.Context, service string) { a.post(ctx, service, "/hang", large, "") }},
	{"large results that nobody reads", 64, (*attacks).unread},
	{"heads that do not end, of a neighbour", 16, (*attacks).head},
	{"calls whose results are large", 8, func(a *attacks, ctx context.Context, service string) { a.post(ctx, service, "/large", 10, "") }},
	{"calls that fail", 4, func(a *attacks, ctx context.Context, service string) { a.post(ctx, service, "/fail", large, "") }},
	{"callbacks that nobody answers", 8, func(a *attacks, ctx context.Context, service string) { a.post(ctx, service, "/", 10, a.Hanging) }},
}

// attacks are those of all clients. They are a process of their own, which gets the CPU time that
// nobody else wants: a tenant's clients compute on its own machines, and only what they make the
// courier do is another tenant's concern.
type attacks struct {
	Courier string // host:port
	Targets map[string]string
	Hanging string // URL of a callback

	huge                      string // where a large result is
	accepted, refused, failed atomic.Int64
	group                     sync.WaitGroup
}

// attacker is the process of the attacks, and what it says when it ends.
type attacker struct {
	cmd                       *exec.Cmd
	told                      bytes.Buffer
	Accepted, Refused, Failed int64
}

// begin begins all attacks.
func (b *bench) begin(ctx context.Context, cluster *loopback.Cluster, courier string, called *service) (*attacker, error) {
	a := &attacks{Courier: strings.TrimPrefix(courier, "http://"), Targets: map[string]string{}, Hanging: "http://" + called.address + "/hang"}
	annotations := map[string]string{names.AsyncAnnotation: string(names.AsyncAllowed), names.AsyncCallbackHostsAnnotation: host(called.address)}
	for i := range 4 {
		t, err := cluster.Route("hostile", attackers+strconv.Itoa(i), 1, 1000, annotations)
		if err != nil {
			return nil, err
		}
		a.Targets[t.Route] = t.String()
	}
	what, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &attacker{cmd: exec.CommandContext(ctx, "nice", "-n", "19", self, "-role", roleAttacker)}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = bytes.NewReader(what), &p.told, os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the attacker: %w", err)
	}
	return p, nil
}

// end ends the attacks.
func (p *attacker) end() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the attacker: %w", err)
	}
	return json.Unmarshal(p.told.Bytes(), p)
}

// attack is the role of the attacker: it attacks until ctx is done.
func (*bench) attack(ctx context.Context) error {
	a := &attacks{}
	if err := json.NewDecoder(os.Stdin).Decode(a); err != nil {
		return fmt.Errorf("read what to attack: %w", err)
	}
	for deadline := time.Now().Add(30 * time.Second); a.huge == ""; time.Sleep(pause) {
		if time.Now().After(deadline) {
			return errors.New("the attacker's first call was not accepted")
		}
		a.huge = a.post(ctx, attackers+"0", "/huge", 10, "")
	}
	for _, one := range all {
		for i := range one.clients * len(a.Targets) {
			service := attackers + strconv.Itoa(i%len(a.Targets))
			a.group.Go(func() {
				for ctx.Err() == nil {
					one.make(a, ctx, service)
					select {
					case <-ctx.Done():
					case <-time.After(pause):
					}
				}
			})
		}
	}
	a.group.Wait()
	return json.NewEncoder(os.Stdout).Encode(attacker{Accepted: a.accepted.Load(), Refused: a.refused.Load(), Failed: a.failed.Load()})
}

// own returns an IPv4 address of this machine that is not loopback.
func own() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("find an address of this machine: %w", err)
	}
	for _, one := range all {
		if n, ok := one.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no IPv4 address but loopback, where callbacks are not sent")
}

func host(address string) string {
	name, _, _ := net.SplitHostPort(address)
	return name
}

// client is that of the gateway's connections for the attacker.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 512}}

// post makes a call, and returns where its result will be.
func (a *attacks) post(ctx context.Context, service, path string, size int, callback string) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.Courier+path, bytes.NewReader(make([]byte, size)))
	if err != nil {
		return ""
	}
	r.Host = service + ".example"
	r.Header.Set("Prefer", wire.PreferAsync)
	r.Header.Set(wire.HeaderAsyncTarget, a.Targets[service])
	if callback != "" {
		r.Header.Set(wire.HeaderCallback, callback)
	}
	response, err := client.Do(r)
	if err != nil {
		a.failed.Add(1)
		return ""
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusAccepted {
		a.refused.Add(1)
		return ""
	}
	a.accepted.Add(1)
	return response.Header.Get("Location")
}

// unread asks for a large result and does not read it.
func (a *attacks) unread(ctx context.Context, service string) {
	if service != attackers+"0" {
		return
	}
	a.hold(ctx, "", fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s.example\r\n%s: %s\r\n\r\n", a.huge, service, wire.HeaderAsyncTarget, a.Targets[service]))
}

// endless is a head without its end.
var endless = "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 62<<10)

// head sends a head without its end, from an address of its own, on many connections.
func (a *attacks) head(ctx context.Context, _ string) {
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() { a.hold(ctx, "127.9.9.9", endless) })
	}
	group.Wait()
}

// hold sends something and keeps the connection until it is closed.
func (a *attacks) hold(ctx context.Context, from, text string) {
	dialer := net.Dialer{Timeout: time.Second}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := dialer.DialContext(ctx, "tcp", a.Courier)
	if err != nil {
		a.failed.Add(1)
		return
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(2048)
	}
	if _, err := io.WriteString(c, text); err != nil {
		a.failed.Add(1)
		return
	}
	time.Sleep(9 * time.Second) // whatever comes is not read
}

// attacked answers the calls of the attacker.
func (s *service) attacked(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	switch r.URL.Path {
	case "/hang":
		select {
		case <-s.hanging:
		case <-r.Context().Done():
		}
	case "/large":
		_, _ = w.Write(make([]byte, large))
	case "/huge":
		_, _ = w.Write(make([]byte, 9_000_000))
	case "/fail":
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// besideAttacks measures twice, and says what the attacks made of it.
func (b *bench) besideAttacks(ctx context.Context, cluster *loopback.Cluster, courier string, targets []string, called *service, p *proc) error {
	limit, err := shipped.ContainerMemory(shipped.Courier)
	if err != nil {
		return err
	}
	quiet, err := b.measure(ctx, courier, targets, called, []*proc{p})
	if err != nil {
		return err
	}
	called.reset(b.calls)
	attacking, stop := context.WithCancel(ctx)
	defer stop()
	watched := &watched{limit: limit, proc: p}
	var watching sync.WaitGroup
	watching.Go(func() { watched.run(attacking) })
	a, err := b.begin(attacking, cluster, courier, called)
	if err != nil {
		return err
	}
	time.Sleep(ahead)
	beside, err := b.measure(ctx, courier, targets, called, []*proc{p})
	close(called.hanging)
	err = errors.Join(err, a.end())
	stop()
	watching.Wait()
	if err != nil {
		return err
	}
	fields := result.Fields{"quiet_p99_accept_ms": quiet["p99_accept_ms"], "quiet_p50_accept_ms": quiet["p50_accept_ms"],
		"quiet_p99_start_ms_warm": quiet["p99_start_ms_warm"], "lost_calls": beside["lost"],
		"limit_mib": float64(limit) / (1 << 20), "rss_peak_mib": float64(watched.most) / (1 << 20), "restarts": watched.restarts,
		"attacks_accepted": a.Accepted, "attacks_refused": a.Refused, "attacks_failed": a.Failed}
	for _, name := range []string{"calls", "duplicated", "lost_results", "lost_callbacks", "p99_accept_ms", "p50_accept_ms", "p99_start_ms_warm"} {
		fields[name] = beside[name]
	}
	lost := 0
	for _, name := range []string{"lost_calls", "lost_results", "lost_callbacks"} {
		n, _ := fields[name].(int)
		lost += n
	}
	fields["lost"] = lost
	return b.out.Summary(fields)
}

// results counts the calls whose result is not there.
func (b *bench) results(ctx context.Context, courier string, targets []string, c *calls) (lost int) {
	for n, place := range c.places {
		for deadline := time.Now().Add(b.wait); ; time.Sleep(50 * time.Millisecond) {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, courier+place, nil)
			if err != nil {
				return lost + len(c.places) - n
			}
			r.Host = "bench.example"
			r.Header.Set(wire.HeaderAsyncTarget, targets[n%len(targets)])
			status := 0
			if response, err := http.DefaultClient.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
				status = response.StatusCode
			}
			if status == http.StatusOK {
				break
			}
			if status == http.StatusNotFound || status == http.StatusBadGateway || time.Now().After(deadline) || ctx.Err() != nil {
				lost++
				break
			}
		}
	}
	return lost
}

// uncalled counts the calls whose callback has not come within the time.
func (s *service) uncalled(ctx context.Context, within time.Duration) (n int) {
	for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		n = 0
		s.mu.Lock()
		for _, called := range s.called {
			if called == 0 {
				n++
			}
		}
		s.mu.Unlock()
		if n == 0 || time.Now().After(deadline) || ctx.Err() != nil {
			return n
		}
	}
}

// watched is the courier as the kubelet and the kernel watch it: it is killed above its limit, and
// started again when it has ended.
type watched struct {
	limit    int64
	proc     *proc
	most     int64 // of its memory
	restarts int
}

func (w *watched) run(ctx context.Context) {
	for ctx.Err() == nil {
		now, peak, alive := memory(w.proc.Process.Process.Pid)
		w.most = max(w.most, peak)
		if !alive || now > w.limit {
			fmt.Fprintf(os.Stderr, "async: the courier ended or takes %d MiB:\n%s", now>>20, tail(w.proc.Output()))
			w.proc.Stop()
			w.restarts++
			if err := w.proc.start(context.WithoutCancel(ctx)); err != nil {
				fmt.Fprintln(os.Stderr, "async:", err)
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func tail(text string) string { return text[max(0, len(text)-4000):] }

// memory returns what a process takes of the machine's, now and at most.
func memory(pid int) (now, peak int64, alive bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || syscall.Kill(pid, 0) != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "State":
			if strings.HasPrefix(strings.TrimSpace(value), "Z") {
				return 0, 0, false
			}
		case "VmRSS":
			now = n << 10
		case "VmHWM":
			peak = n << 10
		}
	}
	return now, peak, true
}
