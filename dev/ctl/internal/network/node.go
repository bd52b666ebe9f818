package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"ebb.dev/ebb/dev/ctl/internal/place"
)

// Uplink is the interface by which a node in a namespace is attached to the machine's bridge.
const Uplink = "eth0"

// Node is one node's part of a plan.
type Node struct {
	Name    string       // a, b, ...; "" is the only one, which is the machine itself
	Address netip.Addr   // the node's own
	Pods    netip.Prefix // on the bridge of its pods, which has the first address
}

// Each returns the nodes of the plan.
func (p Plan) Each() []Node {
	if p.Nodes < 2 {
		return []Node{{Address: p.Machine(), Pods: p.Pods}}
	}
	var nodes []Node
	for i, name := range place.NodeNames[:min(p.Nodes, MaxNodes)] {
		nodes = append(nodes, Node{name, at(p.link(), 2+i), netip.PrefixFrom(at(p.link(), (1+i)*1024), 22)})
	}
	return nodes
}

// Gateway is the address of the bridge of the node's pods.
func (n Node) Gateway() netip.Addr { return n.Pods.Addr().Next() }

// PodRange is the part of the net that host-local gives to pods.
func (n Node) PodRange() (first, last netip.Addr) {
	return at(n.Pods, 10), at(n.Pods, 3*256+199)
}

// CNI is the configuration of the plugins that attach pods.
func (n Node) CNI(data string) ([]byte, error) {
	first, last := n.PodRange()
	return json.MarshalIndent(map[string]any{
		"cniVersion": "0.4.0",
		"name":       Bridge,
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": Bridge, "isDefaultGateway": true, "hairpinMode": true, "mtu": 1500,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": data,
					"ranges": [][]any{{map[string]any{
						"subnet": n.Pods.String(), "rangeStart": first.String(), "rangeEnd": last.String(), "gateway": n.Gateway().String(),
					}}},
				},
			},
		},
	}, "", "  ")
}

// port is the machine's end of the node's link.
func (n Node) port() string { return Bridge + "-" + n.Name }

// mac is made of the address. Who sends to a node does not ask for it: a node without power does
// not answer ARP, and the sender would know after a second what no sender knows that has a router
// in between, as in a cloud.
func mac(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:00", b[0], b[1], b[2], b[3])
}

// reach are the commands that make the node and its pods known to a neighbour.
func (n Node) reach(device string) [][]string {
	return [][]string{
		{"ip", "neighbour", "replace", n.Address.String(), "lladdr", mac(n.Address), "nud", "permanent", "dev", device},
		{"ip", "route", "replace", n.Pods.String(), "via", n.Address.String(), "dev", device},
	}
}

// Inside is the command that runs another one in a network namespace. namespace is the file that it
// is mounted on.
func Inside(namespace string) []string { return []string{"nsenter", "--net=" + namespace} }

// NodeUp makes what is missing of the network of a node: its namespace, the link to the machine's
// bridge, the bridge of its pods, and routes to the other nodes' pods. It is not for the only node,
// which has what Up has made.
func (p Plan) NodeUp(ctx context.Context, n Node, namespace string) error {
	if !mounted(namespace) {
		if err := makeNamespace(ctx, namespace); err != nil {
			return err
		}
		// The other end may have been in a namespace that is just ending.
		if _, err := run(ctx, "ip", "link", "delete", n.port()); err != nil && !gone("/sys/class/net/"+n.port()) {
			return err
		}
	}
	if gone("/sys/class/net/" + n.port()) {
		if _, err := run(ctx, "ip", "link", "add", n.port(), "type", "veth", "peer", "name", Uplink, "netns", namespace); err != nil {
			return err
		}
	}
	inside := func(c []string) []string { return append(Inside(namespace), c...) }
	if show := inside([]string{"ip", "link", "show", Bridge}); all(ctx, [][]string{show}) != nil {
		if err := all(ctx, [][]string{inside([]string{"ip", "link", "add", Bridge, "type", "bridge"})}); err != nil {
			return err
		}
	}
	commands := [][]string{{"ip", "link", "set", n.port(), "master", Bridge}, {"ip", "link", "set", n.port(), "up"}}
	for _, c := range p.nodeCommands(n) {
		commands = append(commands, inside(c))
	}
	return all(ctx, commands)
}

func makeNamespace(ctx context.Context, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	_, err := run(ctx, "unshare", "--net="+file, "true")
	return err
}

// mounted says whether a file stands for a namespace.
func mounted(file string) bool {
	const nsfs = 0x6e736673
	var s syscall.Statfs_t
	return syscall.Statfs(file, &s) == nil && int64(s.Type) == nsfs
}

// nodeCommands run in the namespace of the node. It has no default route: what is not the
// cluster's goes nowhere.
func (p Plan) nodeCommands(n Node) [][]string {
	ones := func(p netip.Prefix) string { return fmt.Sprint("/", p.Bits()) }
	commands := [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "link", "set", Uplink, "address", mac(n.Address)},
		{"ip", "link", "set", Uplink, "up"},
		{"ip", "address", "replace", n.Address.String() + ones(p.link()), "dev", Uplink},
		{"ip", "link", "set", Bridge, "up"},
		// As with other bridges, what a node sends to its pods comes from their gateway's address.
		{"ip", "address", "replace", n.Gateway().String() + ones(n.Pods), "dev", Bridge},
		{"ip", "route", "replace", p.Services.String(), "dev", Bridge, "src", n.Address.String()},
		{"ip", "neighbour", "replace", p.Machine().String(), "lladdr", mac(p.Machine()), "nud", "permanent", "dev", Uplink},
	}
	for _, other := range p.Each() {
		if other.Name != n.Name {
			commands = append(commands, other.reach(Uplink)...)
		}
	}
	settings := []string{"ipv4/ip_forward=1", "bridge/bridge-nf-call-iptables=1",
		"ipv4/conf/all/rp_filter=0", "ipv4/conf/" + Uplink + "/rp_filter=0", "ipv4/conf/" + Bridge + "/rp_filter=0"}
	// Below /proc/sys/net each process sees the settings of its own namespace.
	script := `cd /proc/sys/net && for s; do echo "${s#*=}" >"${s%%=*}" || exit; done`
	return append(commands, append([]string{"sh", "-c", script, "sh"}, settings...))
}

// PowerOff keeps the node from sending or receiving anything more.
func (n Node) PowerOff(ctx context.Context) error {
	if gone("/sys/class/net/" + n.port()) {
		return nil // it is off
	}
	_, err := run(ctx, "ip", "link", "set", n.port(), "down")
	return err
}

// Cut is a part of a node's traffic that is lost.
type Cut struct {
	In, Out bool
	Peer    Peer
}

// Peer is whom a node no longer hears, or is no longer heard by.
type Peer string

const (
	Everyone Peer = ""
	// Control is the API server, in both roles: as the server of the node's programs, and as the
	// client of its kubelet. The machine's requests to pods get through.
	Control Peer = "control"
	// Nodes are the other nodes and their pods.
	Nodes Peer = "nodes"
)

// ParseCut reads what a person asks for: in or out, both by default; control or nodes, everyone by
// default.
func ParseCut(words []string) (Cut, error) {
	var c Cut
	for _, w := range words {
		switch {
		case w == "in" && !c.In:
			c.In = true
		case w == "out" && !c.Out:
			c.Out = true
		case (w == string(Control) || w == string(Nodes)) && c.Peer == Everyone:
			c.Peer = Peer(w)
		default:
			return Cut{}, fmt.Errorf("a node's network is cut in or out, from control or from nodes: %q is not clear", strings.Join(words, " "))
		}
	}
	if !c.In && !c.Out {
		c.In, c.Out = true, true
	}
	return c, nil
}

// cutTable has the rules that lose packets, in the node's namespace.
const cutTable = "ip ebb-cut"

// rules are nft's, in place of those of an earlier cut.
func (p Plan) rules(n Node, c Cut) string {
	var in, out []string
	switch c.Peer {
	case Everyone:
		in, out = []string{""}, []string{""}
	case Control:
		from, to := "ip saddr "+p.Machine().String()+" ", "ip daddr "+p.Machine().String()+" "
		in, out = []string{from + "tcp sport 6443 ", from + "tcp dport 10250 "}, []string{to + "tcp dport 6443 ", to + "tcp sport 10250 "}
	case Nodes:
		var nets []string
		for _, other := range p.Each() {
			if other.Name != n.Name {
				nets = append(nets, other.Address.String(), other.Pods.String())
			}
		}
		set := "{ " + strings.Join(nets, ", ") + " } "
		in, out = []string{"ip saddr " + set}, []string{"ip daddr " + set}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "add table %s\ndelete table %s\ntable %s {\n", cutTable, cutTable, cutTable)
	chain := func(name, hook, priority, device string, matches []string) {
		fmt.Fprintf(&text, "\tchain %s {\n\t\ttype filter hook %s priority %s;\n", name, hook, priority)
		for _, m := range matches {
			fmt.Fprintf(&text, "\t\t%s \"%s\" %sdrop\n", device, Uplink, m)
		}
		text.WriteString("\t}\n")
	}
	// Before the addresses of Services are put in or taken out, and after.
	if c.In {
		chain("in", "prerouting", "-400", "iifname", in)
	}
	if c.Out {
		chain("out", "postrouting", "400", "oifname", out)
	}
	text.WriteString("}\n")
	return text.String()
}

// Lose makes the node lose a part of its traffic, until Mend.
func (p Plan) Lose(ctx context.Context, n Node, namespace string, c Cut) error {
	nft := append(Inside(namespace), "nft", p.rules(n, c))
	_, err := run(ctx, nft[0], nft[1:]...)
	return err
}

// Mend ends what Lose began.
func Mend(ctx context.Context, namespace string) error {
	if !mounted(namespace) {
		return nil
	}
	nft := append(Inside(namespace), "nft", "add table "+cutTable+"\ndelete table "+cutTable+"\n")
	_, err := run(ctx, nft[0], nft[1:]...)
	return err
}
