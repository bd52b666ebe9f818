package nodes

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"ebb.dev/ebb/wire"
)

const (
	// findAgentsPeriod is the time between two looks for node agents.
	findAgentsPeriod = 15 * time.Second
	// maxAgents bounds how many node agents are witnesses. They stay the same, so that they know
	// the pods that answer them.
	maxAgents = 8
)

// Agents asks node agents. Each node with one is a place from which other nodes can be seen. Where
// none are installed, it finds none.
type Agents struct {
	// Self is the node that this process runs on. Its agent is no other witness.
	Self string
	// Find returns the addresses of those that run, by node.
	Find func(context.Context) (map[string]netip.Addr, error)
	// Port is where they are asked; 0 means wire.PortNodeAgent.
	Port int
	// Keys are those of all tokens as they are now.
	Keys func() wire.Keys
	Log  *slog.Logger

	asker asker
	mutex sync.Mutex
	found map[string]netip.Addr
	// chosen are the nodes whose agents are witnesses.
	chosen []string
}

// Run looks for agents until ctx ends. Those that were found last count while none can be found.
func (a *Agents) Run(ctx context.Context) error {
	tick := time.NewTicker(findAgentsPeriod)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, findAgentsPeriod/2)
		found, err := a.Find(limited)
		cancel()
		if err == nil {
			a.choose(found)
		} else if ctx.Err() == nil {
			a.Log.Debug("cannot look for node agents", "error", err)
		}
		select {
		case <-ctx.Done():
			a.asker.client.CloseIdleConnections()
			return nil
		case <-tick.C:
		}
	}
}

// choose keeps the witnesses that are still there, and adds others.
func (a *Agents) choose(found map[string]netip.Addr) {
	found = maps.Clone(found)
	delete(found, a.Self)
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.found = found
	a.chosen = slices.DeleteFunc(a.chosen, func(node string) bool { return !found[node].IsValid() })
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(node string) bool { return slices.Contains(a.chosen, node) })
	for _, i := range rand.Perm(len(others)) {
		if len(a.chosen) >= maxAgents {
			return
		}
		a.chosen = append(a.chosen, others[i])
	}
}

// Nodes returns the addresses of the witnesses, by node.
func (a *Agents) Nodes() map[string]string {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	all := make(map[string]string, len(a.chosen))
	for _, node := range a.chosen {
		all[node] = a.found[node].String()
	}
	return all
}

// Has reports whether an address is that of a witness.
func (a *Agents) Has(ip string) bool {
	address, err := netip.ParseAddr(ip)
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return err == nil && slices.ContainsFunc(a.chosen, func(node string) bool { return a.found[node] == address })
}

// Ask is Config.Agents.
func (a *Agents) Ask(ctx context.Context, on []string, pods []netip.Addr, got func(wire.ReachAnswer)) {
	a.mutex.Lock()
	if on == nil {
		on = a.chosen
	}
	at := map[string]netip.Addr{}
	for _, node := range on {
		if address := a.found[node]; address.IsValid() {
			at[node] = address
		}
	}
	a.mutex.Unlock()
	if len(at) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	token := a.Keys().Token("", wire.NodeAgentSubject)
	var asking sync.WaitGroup
	for node, address := range at {
		asking.Go(func() {
			answer, err := a.asker.ask(ctx, netip.AddrPortFrom(address, uint16(cmp.Or(a.Port, wire.PortNodeAgent))), token, pods)
			switch {
			case err != nil:
				a.Log.Debug("a node agent does not say which pods it reaches", "node", node, "error", err)
			case answer.Node != node: // it knows the token of all agents, and speaks for its own node alone
				a.Log.Warn("a node agent speaks for another node", "node", node, "says", answer.Node)
			default:
				got(answer)
			}
		})
	}
	asking.Wait()
}
