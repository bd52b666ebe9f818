package nodes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/wire"
)

const (
	// answersWithin is how long an activator has to answer: a second for the pods, and the way.
	answersWithin = 1800 * time.Millisecond
	// maxAsked bounds how many activators are asked at once. They are others each time.
	maxAsked = 16
	// findPeriod is the time between two looks for activators.
	findPeriod = 10 * time.Second
)

// Activators asks activators.
type Activators struct {
	// Find returns their addresses.
	Find func(context.Context) ([]netip.Addr, error)
	// Port is that of announcements; 0 means wire.PortAnnounce.
	Port int
	// Keys are those of all tokens as they are now.
	Keys func() wire.Keys
	Log  *slog.Logger

	found atomic.Pointer[[]netip.Addr]
	asker asker

	mutex sync.Mutex
	nodes map[netip.Addr]string // where each runs that has said so
}

// Run looks for activators until ctx ends, and asks where they run. Those that were found last
// count while none can be found: what resolves their name may be on the node that died.
func (o *Activators) Run(ctx context.Context) error {
	tick := time.NewTicker(findPeriod)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, findPeriod/2)
		all, err := o.Find(limited)
		cancel()
		if err == nil && len(all) > 0 {
			o.found.Store(&all)
			o.keep(all)
			o.Ask(ctx, nil, func(wire.ReachAnswer) {})
		} else if err != nil && ctx.Err() == nil {
			o.Log.Debug("cannot look for activators", "error", err)
		}
		select {
		case <-ctx.Done():
			o.asker.client.CloseIdleConnections()
			return nil
		case <-tick.C:
		}
	}
}

// keep forgets where others run than these.
func (o *Activators) keep(found []netip.Addr) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	maps.DeleteFunc(o.nodes, func(a netip.Addr, _ string) bool { return !slices.Contains(found, a) })
}

// runs takes where an activator runs, "" if it does not know.
func (o *Activators) runs(activator netip.Addr, node string) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.nodes == nil {
		o.nodes = map[netip.Addr]string{}
	}
	if o.nodes[activator] = node; node == "" {
		delete(o.nodes, activator)
	}
}

// Nodes returns the address of one activator on each node, of those that have said where they run.
func (o *Activators) Nodes() map[string]string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	all := make(map[string]string, len(o.nodes))
	for activator, node := range o.nodes {
		all[node] = activator.String()
	}
	return all
}

// Has reports whether an address is that of an activator which has said where it runs.
func (o *Activators) Has(ip string) bool {
	address, err := netip.ParseAddr(ip)
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return err == nil && o.nodes[address] != ""
}

// Ask is Config.Others. Without pods, activators say only where they run.
func (o *Activators) Ask(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer)) {
	found := o.found.Load()
	if found == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	var asking sync.WaitGroup
	for n, i := range rand.Perm(len(*found)) {
		if n == maxAsked {
			break
		}
		asking.Go(func() {
			at := netip.AddrPortFrom((*found)[i], uint16(cmp.Or(o.Port, wire.PortAnnounce)))
			answer, err := o.asker.ask(ctx, at, o.Keys().Token("", wire.AutoscalerSubject), pods)
			if err != nil {
				o.Log.Debug("an activator does not say which pods it reaches", "error", err)
				return
			}
			o.runs(at.Addr(), answer.Node)
			got(answer)
		})
	}
	asking.Wait()
}

var errProof = errors.New("the answer does not prove who gave it")

// asker sends questions. The zero value is ready.
type asker struct {
	signer wire.Signer
	client http.Client
}

// ask asks who has a token at which pods somebody answers.
func (a *asker) ask(ctx context.Context, at netip.AddrPort, token string, pods []netip.Addr) (wire.ReachAnswer, error) {
	fail := func(err error) (wire.ReachAnswer, error) {
		return wire.ReachAnswer{}, fmt.Errorf("ask %s: %w", at, err)
	}
	body, err := json.Marshal(wire.ReachQuestion{Pods: pods})
	if err != nil {
		return fail(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at.String()+wire.PathReach, bytes.NewReader(body))
	if err != nil {
		return fail(err)
	}
	response, err := a.signer.Do(&a.client, request, token)
	if err != nil {
		return fail(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, wire.MaxReachBytes))
	switch {
	case err != nil:
		return fail(err)
	case response.StatusCode != http.StatusOK: // one of an older release knows no such path
		return fail(errors.New(response.Status + " " + strconv.Quote(string(text[:min(len(text), 200)]))))
	case !wire.Answers(response, token, response.Header.Get(wire.HeaderReachProof), text):
		return fail(errProof)
	}
	answer, err := wire.DecodeReachAnswer(text)
	if err != nil {
		return fail(err)
	}
	return answer, nil
}
