// Package network creates the cluster's bridge and the networks of its nodes, and removes them.
//
// Owns: the bridge ebb0, its addresses and routes, what kube-proxy and the CNI
// plugins write for it, and all that is in a node's network namespace. Reads: the
// machine's addresses and routes. Writes: by `ip`, `sysctl` files and `nft`. Never:
// touches another interface or table, or lets a node with a namespace reach more
// than this bridge.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Bridge is the name of the interface that pods are attached to, and of the CNI network. With
// several nodes there is one in each node's namespace, and one on the machine that the nodes are
// attached to.
const Bridge = "ebb0"

// MaxNodes is how many nodes a plan has addresses for.
const MaxNodes = 8

// Plan says which addresses the cluster uses.
type Plan struct {
	Pods     netip.Prefix `json:"pods"`            // the machine, load balancers, nodes and pods
	Services netip.Prefix `json:"services"`        // served by kube-proxy
	Nodes    int          `json:"nodes,omitempty"` // how many there are, if several
}

// Candidates are tried in order: the first that the machine does not use wins. With several nodes,
// the first /22 is the bridge's, and each node's pods have one of those that follow.
func Candidates(nodes int) []Plan {
	bits := 22
	if nodes < 2 {
		nodes = 0
	} else {
		bits = 18
	}
	var plans []Plan
	for _, second := range []int{88, 123, 177, 201, 233} {
		plans = append(plans, Plan{
			Pods:     netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/%d", second, bits)),
			Services: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", second+1)),
			Nodes:    nodes,
		})
	}
	return plans
}

// Choose picks the first plan that overlaps none of the used networks.
func Choose(plans []Plan, used []netip.Prefix) (Plan, error) {
	for _, p := range plans {
		free := true
		for _, u := range used {
			if u.Bits() > 0 && (u.Overlaps(p.Pods) || u.Overlaps(p.Services)) {
				free = false
				break
			}
		}
		if free {
			return p, nil
		}
	}
	return Plan{}, errors.New("every address range the cluster could use is taken by a route of this machine; see `ip route` and remove one of 10.88.0.0/15, 10.123.0.0/15, ...")
}

// Machine is the bridge's own address, which is the API server's and that of the only node.
func (p Plan) Machine() netip.Addr { return p.link().Addr().Next() }

// link is the net of the machine's bridge.
func (p Plan) link() netip.Prefix { return netip.PrefixFrom(p.Pods.Addr(), 22) }

// Balancers are the addresses for Services of type LoadBalancer.
func (p Plan) Balancers() []netip.Addr {
	var all []netip.Addr
	for i := 3*256 + 200; i < 3*256+250; i++ {
		all = append(all, at(p.link(), i))
	}
	return all
}

// API is the Service address of the API server, DNS the one of the cluster's DNS.
func (p Plan) API() netip.Addr { return p.Services.Addr().Next() }

// DNS is the Service address of the cluster's DNS server.
func (p Plan) DNS() netip.Addr {
	b := p.Services.Addr().As4()
	b[3] = 10
	return netip.AddrFrom4(b)
}

func at(p netip.Prefix, i int) netip.Addr {
	b := p.Addr().As4()
	b[2] += byte(i >> 8)
	b[3] += byte(i)
	return netip.AddrFrom4(b)
}

// Used lists the networks that this machine has addresses in or routes to,
// leaving out the cluster's own bridge.
func Used(ctx context.Context) ([]netip.Prefix, error) {
	out, err := run(ctx, "ip", "-j", "-4", "route", "show", "table", "all")
	if err != nil {
		return nil, err
	}
	return parseRoutes(out)
}

func parseRoutes(text []byte) ([]netip.Prefix, error) {
	var routes []struct{ Dst, Dev string }
	if err := json.Unmarshal(text, &routes); err != nil {
		return nil, fmt.Errorf("read the machine's routes: %w", err)
	}
	var used []netip.Prefix
	for _, r := range routes {
		if r.Dev == Bridge {
			continue
		}
		if p, err := netip.ParsePrefix(r.Dst); err == nil {
			used = append(used, p)
		} else if a, err := netip.ParseAddr(r.Dst); err == nil {
			used = append(used, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return used, nil
}

// Up creates the bridge with its addresses, or what is missing of it. It saves the kernel settings
// that it changes in the file before, from which Down restores them.
func (p Plan) Up(ctx context.Context, before string) error {
	if _, err := os.Stat("/sys/class/net/" + Bridge); err != nil {
		if _, err := run(ctx, "ip", "link", "add", Bridge, "type", "bridge"); err != nil {
			return err
		}
	}
	if err := all(ctx, p.machineCommands()); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
		// Services need it: a reply between two pods on one bridge must pass the rules that rewrote
		// the request.
		if _, err := run(ctx, "modprobe", "br_netfilter"); err != nil {
			return fmt.Errorf("the kernel module br_netfilter is needed: %w", err)
		}
	}
	bridged := "1"
	if p.Nodes > 1 {
		bridged = "0" // no pods are on this bridge, and what nodes send one another is not the machine's
	}
	if err := set("/proc/sys", before, map[string]string{"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": bridged}); err != nil {
		return err
	}
	own := "net/ipv4/conf/" + Bridge + "/rp_filter" // goes with the bridge
	return write("/proc/sys", own, "0")
}

// machineCommands give the bridge its addresses, and the machine its routes.
func (p Plan) machineCommands() [][]string {
	ones := fmt.Sprint(p.link().Bits())
	commands := [][]string{{"ip", "address", "replace", p.Machine().String() + "/" + ones, "dev", Bridge}}
	// Load balancer addresses belong to the host, so that pods find them by ARP
	// and kube-proxy sees the packets.
	for _, a := range p.Balancers() {
		commands = append(commands, []string{"ip", "address", "replace", a.String() + "/32", "dev", Bridge})
	}
	if p.Nodes > 1 {
		commands = append(commands, []string{"ip", "link", "set", Bridge, "address", mac(p.Machine())})
	}
	commands = append(commands,
		[]string{"ip", "link", "set", Bridge, "up"},
		// Without it a machine that has no default route could reach no Service.
		[]string{"ip", "route", "replace", p.Services.String(), "dev", Bridge, "src", p.Machine().String()},
	)
	for _, n := range p.Each() {
		if n.Name != "" {
			commands = append(commands, n.reach(Bridge)...)
		}
	}
	return commands
}

func all(ctx context.Context, commands [][]string) error {
	for _, c := range commands {
		if _, err := run(ctx, c[0], c[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// set changes kernel settings. It saves the old values first, unless an earlier run has done so: a
// second run would only see what the first has set.
func set(root, before string, values map[string]string) error {
	if _, err := os.Stat(before); errors.Is(err, os.ErrNotExist) {
		found := map[string]string{}
		for key := range values {
			text, err := os.ReadFile(filepath.Join(root, key))
			if err != nil {
				return fmt.Errorf("read %s: %w", strings.ReplaceAll(key, "/", "."), err)
			}
			found[key] = strings.TrimSpace(string(text))
		}
		text, err := json.Marshal(found)
		if err != nil {
			return err
		}
		// Written whole or not at all: half a file would look like a whole one.
		if err := os.WriteFile(before+".part", text, 0o644); err != nil {
			return err
		}
		if err := os.Rename(before+".part", before); err != nil {
			return err
		}
	}
	for key, value := range values {
		if err := write(root, key, value); err != nil {
			return err
		}
	}
	return nil
}

func write(root, key, value string) error {
	if err := os.WriteFile(filepath.Join(root, key), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s: %w", strings.ReplaceAll(key, "/", "."), err)
	}
	return nil
}

// restore puts back what set has saved. It skips a setting that is gone with its kernel module.
func restore(root, before string) error {
	text, err := os.ReadFile(before)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var found map[string]string
	if err := json.Unmarshal(text, &found); err != nil {
		err = fmt.Errorf("read %s, the machine's settings before the cluster: %w", before, err)
		return errors.Join(err, os.Remove(before)) // otherwise every later run would fail too
	}
	var errs []error
	for key, value := range found {
		if err := write(root, key, value); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(before)
}

// gone says that a link listed below /sys/class/net is there no more.
func gone(port string) bool {
	_, err := os.Lstat(port)
	return errors.Is(err, os.ErrNotExist)
}

// Down removes the bridge and the rules that kube-proxy and the CNI plugins have written for it,
// and restores the settings that Up has saved in before.
func Down(ctx context.Context, before string) error {
	errs := []error{restore("/proc/sys", before)}
	if _, err := os.Stat("/sys/class/net/" + Bridge); err == nil {
		// What is still attached to the bridge are the host ends of pods' links.
		ports, _ := filepath.Glob("/sys/class/net/" + Bridge + "/brif/*")
		for _, port := range ports {
			// A link goes with its pod's network namespace, perhaps just now.
			if _, err := run(ctx, "ip", "link", "delete", filepath.Base(port)); err != nil && !gone(port) {
				errs = append(errs, err)
			}
		}
		if _, err := run(ctx, "ip", "link", "delete", Bridge); err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := exec.LookPath("nft"); err == nil {
		for _, family := range []string{"ip", "ip6"} {
			// The table may not exist.
			_, _ = run(ctx, "nft", "delete", "table", family, "kube-proxy")
		}
	}
	// libcni remembers each attachment under the network's name.
	for _, pattern := range []string{"/var/lib/cni/results/" + Bridge + "-*", "/var/lib/cni/cache/results/" + Bridge + "-*"} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				errs = append(errs, err)
			}
		}
	}
	// Removed only if they are empty: other programs may use them.
	for _, dir := range []string{"/var/lib/cni/results", "/var/lib/cni/cache/results", "/var/lib/cni/cache", "/var/lib/cni"} {
		_ = os.Remove(dir)
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out, nil
}
