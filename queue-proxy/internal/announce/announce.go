// Package announce tells the activators that this pod answers, that it goes away, or that it keeps
// a slot for one of them.
//
// Owns: the sequence number of this pod's announcements. Reads: the activators' addresses from DNS.
// Writes: POSTs to them. Never: tells anything that is not true at the moment of sending; what was
// overtaken is dropped.
package announce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/wire"
)

// Announcer is one pod's voice.
type Announcer struct {
	Activators string            // host:port of the headless Service, or several, separated by commas
	Token      func() string     // of the revision; "" while there is none
	Base       wire.Announcement // who speaks; Ready and Sequence are set here
	Logf       func(format string, args ...any)
	// Leaving, if set, reports whether the pod goes away. Then it is not ready, whatever is said.
	Leaving func() bool
	// Resolve replaces the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	once     sync.Once
	client   *http.Client
	signer   wire.Signer
	sequence atomic.Uint64
	word     atomic.Uint64 // the sequence of the newest word about the pod itself
	known    atomic.Pointer[map[netip.AddrPort]struct{}]
	looked   atomic.Int64 // unix nanoseconds of the last lookup
}

const (
	tryTimeout = time.Second
	firstPause = 20 * time.Millisecond
	maxWait    = time.Second
	// An activator that could not be reached for this long learns of the pod from Kubernetes.
	giveUp = 15 * time.Second
)

func (a *Announcer) init() {
	a.once.Do(func() {
		a.client = &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second},
			Timeout:   tryTimeout,
		}
		if a.Resolve == nil {
			a.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
				return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
			}
		}
		// Restarts of this container must not look like old news.
		a.sequence.Store(uint64(time.Now().UnixMicro()))
	})
}

// Enabled reports whether there is anybody to tell and an address to be told of.
func (a *Announcer) Enabled() bool { return a.Activators != "" && a.Base.Address.IsValid() }

// Say tells every activator whether the pod is ready, and tries again for a bounded time. A newer
// word ends an older one's attempts after the one under way, and the end of ctx ends them at once.
func (a *Announcer) Say(ctx context.Context, ready bool, userReady time.Time) {
	word := a.Base
	word.Ready, word.UserReady = ready, userReady
	a.say(ctx, word)
}

// SayAsleep tells every activator, in the same way, that the pod sleeps at a level, and that a
// request wakes it.
func (a *Announcer) SayAsleep(ctx context.Context, level string, userReady time.Time) {
	word := a.Base
	word.Ready, word.Asleep, word.UserReady = true, level, userReady
	a.say(ctx, word)
}

func (a *Announcer) say(ctx context.Context, word wire.Announcement) {
	a.init()
	if !a.Enabled() {
		return
	}
	// In this order: who says later that the pod leaves takes a later number.
	word.Sequence = a.sequence.Add(1)
	a.word.Store(word.Sequence)
	if a.Leaving != nil && a.Leaving() {
		word.Ready, word.Asleep = false, ""
	}
	body := word.Encode()
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	told := map[netip.AddrPort]bool{}
	pause := firstPause
	for {
		err := a.tellAll(ctx, body, told)
		if err == nil || a.word.Load() != word.Sequence {
			return
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			if errors.Is(ctx.Err(), context.DeadlineExceeded) { // else the word is overtaken, or the process ends
				a.Logf("announce ready=%v asleep=%q: %v", word.Ready, word.Asleep, err)
			}
			return
		case <-t.C:
		}
		pause = min(2*pause, maxWait)
	}
}

// tellAll tells every activator that DNS names now and that was not told yet.
func (a *Announcer) tellAll(ctx context.Context, body []byte, told map[netip.AddrPort]bool) error {
	addrs, err := a.lookup(ctx)
	if err != nil {
		return err
	}
	type answer struct {
		addr netip.AddrPort
		err  error
	}
	answers := make(chan answer, len(addrs))
	sent := 0
	for _, addr := range addrs {
		if told[addr] {
			continue
		}
		sent++
		go func() {
			_, err := a.post(ctx, addr.String(), body)
			answers <- answer{addr, err}
		}()
	}
	var failed error
	for range sent {
		switch got := <-answers; {
		case got.err == nil:
			told[got.addr] = true
		default:
			failed = got.err
		}
	}
	return failed
}

func (a *Announcer) lookup(ctx context.Context) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	var out []netip.AddrPort
	for name := range strings.SplitSeq(a.Activators, ",") {
		found, err := a.resolve(ctx, name)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	known := make(map[netip.AddrPort]struct{}, len(out))
	for _, one := range out {
		known[one] = struct{}{}
	}
	a.known.Store(&known)
	return out, nil
}

func (a *Announcer) resolve(ctx context.Context, name string) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return nil, fmt.Errorf("activators' address %q: %w", name, err)
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		return nil, fmt.Errorf("activators' address %q: %w", name, err)
	}
	ips, err := a.Resolve(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("resolve %s: no address", host)
	}
	out := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		out = append(out, netip.AddrPortFrom(ip.Unmap(), uint16(number)))
	}
	return out, nil
}

// relookup is how often at most an unknown caller makes the activators' name be resolved again.
const relookup = time.Second

// Activator reports whether caller, host:port as in wire.HeaderNoQueue, is an activator by what DNS
// said last. Everybody can send the header, and what is offered to a caller carries the revision's
// token, so only activators may be callers. For an unknown one DNS is asked again in the
// background; until it knows it, it is an ordinary client.
func (a *Announcer) Activator(caller string) bool {
	address, err := netip.ParseAddrPort(caller)
	if err != nil {
		return false
	}
	if known := a.known.Load(); known != nil {
		if _, ok := (*known)[netip.AddrPortFrom(address.Addr().Unmap(), address.Port())]; ok {
			return true
		}
	}
	a.init()
	now, last := time.Now().UnixNano(), a.looked.Load()
	if a.Enabled() && now-last > int64(relookup) && a.looked.CompareAndSwap(last, now) {
		go a.Warm(context.Background())
	}
	return false
}

// Warm resolves the activators' name ahead of the moment that counts.
func (a *Announcer) Warm(ctx context.Context) {
	a.init()
	if a.Enabled() {
		_, _ = a.lookup(ctx) // its failure will be met again, and told then
	}
}

// Offer tells one activator that a slot is kept for it. It reports whether the offer was taken.
func (a *Announcer) Offer(ctx context.Context, caller string) bool {
	a.init()
	if !a.Base.Address.IsValid() {
		return false
	}
	word := a.Base
	word.Ready, word.SlotFree = true, true
	word.Sequence = a.sequence.Add(1)
	status, err := a.post(ctx, caller, word.Encode())
	return err == nil && status == http.StatusNoContent
}

var errRefused = errors.New("refused")

func (a *Announcer) post(ctx context.Context, addr string, body []byte) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+wire.PathAnnounce, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.signer.Do(a.client, req, a.Token())
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	if resp.StatusCode >= 300 && resp.StatusCode != http.StatusGone {
		return resp.StatusCode, fmt.Errorf("%s answered %s: %s: %w", addr, resp.Status, bytes.TrimSpace(text), errRefused)
	}
	return resp.StatusCode, nil
}
