package settings

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"time"
)

// Courier is config-courier: asynchronous calls and schedules.
type Courier struct {
	Enabled        bool
	NATS           string // URL of a server that exists; "" is the one inside the courier
	Replicas       int32
	Synced         bool
	Bytes          int64
	MaxBody        int64
	MaxResult      int64
	QueueCalls     int32
	Concurrency    int32
	Attempts       int32
	FirstBackoff   time.Duration
	MaxBackoff     time.Duration
	AttemptTimeout time.Duration
	KeepQueued     time.Duration
	KeepResults    time.Duration
	KeepDead       time.Duration
	ResultsOfOne   int32
	Hops           int32
	Callbacks      []netip.Prefix
}

const maxBody = 100 << 20

func courierKeys(c *Courier) []key {
	return []key{
		{"enabled", "false", boolean(&c.Enabled), "Whether Routes lead the asynchronous requests of Services that ask for it to the courier, and schedules are followed. config/courier sets it."},
		{"nats-url", "", text(&c.NATS, "URL, or empty", isNATS), "Address of a NATS server with JetStream that keeps the calls, such as nats://nats.messaging:4222. Empty means the server inside the courier. After a change the courier restarts by itself."},
		{"nats-replicas", "1", whole(&c.Replicas, 1, 5), "Copies that the servers of nats-url keep of each call."},
		{"sync", "true", boolean(&c.Synced), "Whether a call is on the disk of the server inside the courier before it is accepted. If false, calls survive that the courier is killed, but not that its node loses power. After a change the courier restarts by itself."},
		{"store-bytes", "4294967296", whole(&c.Bytes, 64<<20, math.MaxInt64), "Bytes of all calls, results and dead letters. A namespace has a share: beyond it its new calls are refused, and its oldest results go. On the disk they may take twice as much. After a change the courier restarts by itself."},
		{"max-body", "10485760", whole(&c.MaxBody, 0, maxBody), "Largest body of a call, in bytes."},
		{"max-result", "10485760", whole(&c.MaxResult, 0, maxBody), "Largest body of a result, in bytes. Of a larger one only the record is kept."},
		{"queue-calls", "100000", whole(&c.QueueCalls, 1, math.MaxInt32), "Calls of one service that may wait. Beyond it calls are refused with 429."},
		{"concurrency", "100", whole(&c.Concurrency, 1, 10000), "Calls under way to a service whose revisions have no limit, for each pod. The annotation serving.ebb.dev/async-concurrency bounds it for a service."},
		{"attempts", "10", whole(&c.Attempts, 1, 1000), "Attempts to deliver a call before it goes to the dead letters."},
		{"first-backoff", "1s", duration(&c.FirstBackoff, time.Millisecond, time.Hour, 1), "Pause after the first attempt. It doubles with each attempt; up to half of it is random."},
		{"longest-backoff", "5m", duration(&c.MaxBackoff, time.Millisecond, 24*time.Hour, 1).says("at least first-backoff"), "Longest pause between two attempts."},
		{"attempt-timeout", "10m", duration(&c.AttemptTimeout, time.Second, 24*time.Hour, 1), "Longest time that one attempt may take, with its answer."},
		{"keep-queued", "24h", duration(&c.KeepQueued, time.Second, 30*24*time.Hour, 1), "Time after which a call that was not delivered goes to the dead letters."},
		{"keep-results", "24h", duration(&c.KeepResults, time.Second, 30*24*time.Hour, 1), "Time for which the result of a call can be read, and its idempotency key counts. After a change the courier restarts by itself."},
		{"keep-dead", "168h", duration(&c.KeepDead, time.Second, 90*24*time.Hour, 1), "Time for which dead letters are kept. After a change the courier restarts by itself."},
		{"results-per-namespace", "100000", whole(&c.ResultsOfOne, 1, math.MaxInt32), "Results that are kept of the calls of one namespace; the oldest go."},
		{"max-hops", "8", whole(&c.Hops, 1, 100), "Asynchronous calls and callbacks that may lead to one another. Beyond it calls are refused with 508."},
		{"callback-networks", "", structured("comma-separated CIDRs", c.setCallbacks), "Private networks, or Services, that callbacks may reach. Without it they reach public addresses only."},
	}
}

func isNATS(s string) bool {
	scheme, rest, ok := strings.Cut(s, "://")
	return s == "" || ok && rest != "" && (scheme == "nats" || scheme == "tls")
}

func (c *Courier) setCallbacks(text string) error {
	c.Callbacks = nil
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		network, err := netip.ParsePrefix(one)
		if err != nil {
			return errors.New(one + " is not a network such as 10.1.2.0/24")
		}
		c.Callbacks = append(c.Callbacks, network)
	}
	return nil
}

func (s *Snapshot) checkCourier(r *reader) {
	if c := s.Courier; c.MaxBackoff < c.FirstBackoff {
		r.fault("longest-backoff", c.MaxBackoff.String(), "is less than first-backoff, %v", c.FirstBackoff)
	}
}
