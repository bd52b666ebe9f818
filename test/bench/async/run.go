package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/shipped"
	"ebb.dev/ebb/wire"
)

func (b *bench) run(ctx context.Context) error {
	dir, err := os.MkdirTemp(b.dir, "bench-async")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := process.Build(ctx, dir, "courier"); err != nil {
		return err
	}
	at := "127.0.0.1"
	if b.hostile { // callbacks never reach loopback
		if at, err = own(); err != nil {
			return err
		}
	}
	called, err := startService(at, b.calls)
	if err != nil {
		return err
	}
	defer called.server.Close()
	cluster, err := loopback.Start(dir)
	if err != nil {
		return err
	}
	defer cluster.Stop()
	set := map[string]string{"first-backoff": "100ms", "longest-backoff": "2s", "attempts": "100", "sync": strconv.FormatBool(b.sync)}
	annotations := map[string]string{names.AsyncAnnotation: string(names.AsyncAllowed)}
	if b.hostile {
		annotations[names.AsyncCallbackAnnotation] = "http://" + called.address + pathOfCallbacks
		set["store-bytes"], set["callback-networks"] = strconv.Itoa(storeBytes), at+"/32"
		delete(set, "attempts")
		delete(set, "longest-backoff")
	}
	if err := cluster.Settings("config-courier", set); err != nil {
		return err
	}
	var targets []string
	for i := range b.services {
		t, err := cluster.Route(loopback.Namespace, "bench-"+strconv.Itoa(i), 1, 0, annotations)
		if err != nil {
			return err
		}
		targets = append(targets, t.String())
	}
	gateway, procs := called.address, []*proc{}
	if b.kill {
		address, release, err := reserve.Take()
		if err != nil {
			return err
		}
		defer release()
		gateway = address.String()
		self, err := os.Executable()
		if err != nil {
			return err
		}
		procs = append(procs, &proc{ready: gateway, args: []string{self, "-role", "pod", "-listen", gateway, "-collector", called.address}})
	}
	// Its ports are fixed, so it gets an unused loopback address.
	ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	address := net.JoinHostPort(ip, strconv.Itoa(wire.PortHTTP1))
	procs = append(procs, &proc{ready: address, args: []string{filepath.Join(dir, "courier")}, env: []string{"KUBECONFIG=" + cluster.Kubeconfig, "EBB_LISTEN_IP=" + ip,
		"POD_NAME=courier-0", "EBB_AUTOSCALER=" + cluster.Autoscaler, "SYSTEM_NAMESPACE=" + loopback.SystemNamespace,
		"EBB_COURIER_DIR=" + filepath.Join(dir, "store"), "EBB_COURIER_GATEWAY=" + gateway}})
	last := procs[len(procs)-1]
	if b.hostile {
		soft, err := shipped.MemoryLimit(shipped.Courier)
		if err != nil {
			return err
		}
		last.env = append(last.env, "GOMEMLIMIT="+soft)
	}
	for _, p := range procs {
		if err := p.start(ctx); err != nil {
			return err
		}
		defer func() { p.Stop() }() // the process that there is then
	}
	if b.hostile {
		return b.besideAttacks(ctx, cluster, "http://"+address, targets, called, last)
	}
	fields, err := b.measure(ctx, "http://"+address, targets, called, procs)
	if err != nil {
		return err
	}
	last.Stop()
	if used := last.ProcessState; used != nil && !b.kill {
		fields["courier_cpu_us_per_call"] = float64((used.UserTime() + used.SystemTime()).Microseconds()) / float64(b.calls)
	}
	return b.out.Summary(fields)
}

// proc is a process that can be killed and started again.
type proc struct {
	*process.Process
	ready     string // the address
	args, env []string
}

func (p *proc) start(ctx context.Context) error {
	started, err := process.Start(exec.CommandContext(ctx, p.args[0], p.args[1:]...), p.env...)
	if err != nil {
		return err
	}
	p.Process = started
	if err := p.AwaitListening(ctx, p.ready); err != nil {
		p.Stop()
		return err
	}
	return nil
}

// calls is what became of the calls.
type calls struct {
	sent     []time.Time // when each was due
	accepted []float64   // milliseconds until 202
	kills    atomic.Int64
	repeated atomic.Int64
	places   []string // where the results are
}

func (b *bench) measure(ctx context.Context, courier string, targets []string, called *service, procs []*proc) (result.Fields, error) {
	c := &calls{sent: make([]time.Time, b.calls), accepted: make([]float64, b.calls), places: make([]string, b.calls)}
	if err := b.warm(ctx, courier, targets[0]); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, procs[len(procs)-1].Output())
	}
	killing, stop := context.WithCancel(ctx)
	var killed sync.WaitGroup
	if b.kill {
		killed.Go(func() { b.disturb(killing, procs, c) })
	}
	began := time.Now()
	var next atomic.Int64
	var clients sync.WaitGroup
	var failure atomic.Value
	for range b.clients {
		clients.Go(func() {
			client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
			for ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= b.calls {
					return
				}
				due := time.Now()
				if b.rate > 0 {
					due = began.Add(time.Duration(float64(n) / b.rate * float64(time.Second)))
					time.Sleep(time.Until(due))
				}
				c.sent[n] = due
				if err := b.call(ctx, client, courier, targets[n%len(targets)], n, c); err != nil {
					failure.Store(err)
					return
				}
				c.accepted[n] = result.Milliseconds(time.Since(due))
			}
		})
	}
	clients.Wait()
	took := time.Since(began)
	stop()
	killed.Wait()
	if err, failed := failure.Load().(error); failed {
		return nil, fmt.Errorf("%w\n%s", err, procs[len(procs)-1].Output())
	}
	if err := b.await(ctx, called); err != nil {
		return nil, err
	}
	fields := b.summarize(c, called, began, took)
	if b.hostile {
		fields["lost_results"], fields["lost_callbacks"] = b.results(ctx, courier, targets, c), called.uncalled(ctx, b.wait)
	}
	return fields, nil
}

// warm makes connections and queues with calls that do not count.
func (b *bench) warm(ctx context.Context, courier, target string) error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		r, err := request(ctx, courier, target, make([]byte, max(b.size, 8)), 1<<62, b.kill)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(r)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusAccepted {
				return nil
			}
			err = fmt.Errorf("the courier answered %s", response.Status)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no call was accepted: %w", err)
		}
	}
}

func request(ctx context.Context, courier, target string, body []byte, n int, keyed bool) (*http.Request, error) {
	binary.BigEndian.PutUint64(body, uint64(n))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, courier+"/work", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Host = "bench.example"
	r.Header.Set("Prefer", wire.PreferAsync)
	r.Header.Set(wire.HeaderAsyncTarget, target)
	if keyed { // it costs two look-ups, and without kills nothing is repeated
		r.Header.Set("Idempotency-Key", "bench-"+strconv.Itoa(n))
	}
	return r, nil
}

// call sends a call until it is accepted.
func (b *bench) call(ctx context.Context, client *http.Client, courier, target string, n int, c *calls) error {
	body := make([]byte, max(b.size, 8))
	for ctx.Err() == nil {
		r, err := request(ctx, courier, target, body, n, b.kill)
		if err != nil {
			return err
		}
		response, err := client.Do(r)
		if err == nil {
			text, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
			response.Body.Close()
			switch response.StatusCode {
			case http.StatusAccepted:
				c.places[n] = response.Header.Get("Location")
				return nil
			case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusNotFound:
				if !b.kill && !b.hostile && response.StatusCode != http.StatusTooManyRequests {
					return fmt.Errorf("a call was refused: %s: %s", response.Status, text)
				}
			default:
				return fmt.Errorf("a call was refused: %s: %s", response.Status, text)
			}
		} else if !b.kill && !b.hostile {
			return fmt.Errorf("a call failed: %w", err)
		}
		c.repeated.Add(1)
		time.Sleep(20 * time.Millisecond)
	}
	return ctx.Err()
}

// disturb kills the processes in turn.
func (b *bench) disturb(ctx context.Context, procs []*proc, c *calls) {
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(b.every):
		}
		p := procs[i%len(procs)]
		p.Stop()
		c.kills.Add(1)
		if err := p.start(context.WithoutCancel(ctx)); err != nil {
			fmt.Fprintln(os.Stderr, "async:", err)
			return
		}
	}
}

// await returns when every call has reached the service, or after a while in which none has.
func (b *bench) await(ctx context.Context, called *service) error {
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		got, last := called.count()
		if got == b.calls {
			time.Sleep(time.Second) // for what comes twice
			return nil
		}
		if time.Since(last) > b.wait && time.Since(begin) > b.wait {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func (b *bench) summarize(c *calls, called *service, began time.Time, took time.Duration) result.Fields {
	called.mu.Lock()
	defer called.mu.Unlock()
	lost, duplicated := 0, 0
	var starts []float64
	for n := range b.calls {
		switch {
		case called.reached[n] == 0:
			lost++
			continue
		case called.reached[n] > 1:
			duplicated++
		}
		starts = append(starts, result.Milliseconds(called.at[n].Sub(c.sent[n])))
	}
	return result.Fields{
		"calls": b.calls, "bytes": b.size, "services": b.services, "kills": c.kills.Load(), "repeated": c.repeated.Load(),
		"accepted_per_s": float64(b.calls) / took.Seconds(), "delivered_per_s": float64(called.got) / called.last.Sub(began).Seconds(),
		"p50_accept_ms": result.Quantile(c.accepted, 0.5), "p99_accept_ms": result.Quantile(c.accepted, 0.99),
		"p50_start_ms_warm": result.Quantile(starts, 0.5), "p99_start_ms_warm": result.Quantile(starts, 0.99),
		"lost": lost, "duplicated": duplicated,
	}
}
