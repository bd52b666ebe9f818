// Command async measures asynchronous calls through a real courier, with JetStream on the disk, to
// a real HTTP server, as JSON lines. Everything runs on loopback; the courier's cluster is an API
// server in memory.
//
// Owns: the processes it starts and a temporary directory. Reads: nothing. Writes: JSON lines.
// Never: asserts a figure.
//
// Clients send calls at a steady rate. A call's latency counts from when it was due, so a stall
// counts for all calls that it delays. Lost is a call that was accepted and did not reach the
// service within the time, duplicated one that reached it more than once. With -kill the courier,
// with the JetStream inside, and the service's pod are killed with SIGKILL in turn while it runs;
// then each call has an idempotency key, and a client repeats it until it is accepted.
//
// With -hostile the same calls, at a lower rate, are made twice: alone, and while another tenant
// does all of hostile.go at once, from a process with the lowest priority. Then lost counts results
// and callbacks, too. The courier has the GOMEMLIMIT of its manifest and is killed, as by the
// kernel, above the memory limit there.
package main

import (
	"flag"
	"os"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

// bench is what the flags say.
type bench struct {
	calls, clients, services, size int
	rate                           float64
	kill, sync, hostile            bool
	every, wait                    time.Duration
	dir                            string
	role, listen, collector        string
	out                            *result.Printer
}

func main() {
	b := &bench{out: &result.Printer{Bench: "async", Out: os.Stdout}}
	flag.IntVar(&b.calls, "calls", 100_000, "calls in all")
	flag.Float64Var(&b.rate, "rate", 3300, "calls that are due per second; 0: as fast as the clients can")
	flag.IntVar(&b.clients, "clients", 64, "clients, each with one call at a time")
	flag.IntVar(&b.services, "services", 1, "services that are called in turn")
	flag.IntVar(&b.size, "size", 1024, "bytes of a call's body")
	flag.BoolVar(&b.kill, "kill", false, "kill the courier and the pod in turn with SIGKILL")
	flag.BoolVar(&b.hostile, "hostile", false, "another tenant attacks; by default 200 calls per second then, 6000 in all, and 256 MiB for the store")
	flag.BoolVar(&b.sync, "sync", true, "the setting sync: a call is on the disk before it is accepted")
	flag.DurationVar(&b.every, "every", 4*time.Second, "time between two kills")
	flag.DurationVar(&b.wait, "wait", 3*time.Minute, "how long to wait for calls that were accepted")
	flag.StringVar(&b.dir, "dir", "", "directory on the disk to measure, for JetStream; a temporary one by default")
	flag.StringVar(&b.role, "role", "", "what the benchmark starts this program as: pod, attacker")
	flag.StringVar(&b.listen, "listen", "", "address of the pod")
	flag.StringVar(&b.collector, "collector", "", "address that the pod asks")
	flag.Parse()
	if b.hostile {
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["calls"] {
			b.calls = 6000
		}
		if !given["rate"] {
			b.rate = 200
		}
	}
	run := b.run
	switch b.role {
	case "pod":
		run = b.pod
	case roleAttacker:
		run = b.attack
	}
	trial.Main("async", run)
}
