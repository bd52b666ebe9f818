package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func lines(commands [][]string) []string {
	var out []string
	for _, c := range commands {
		out = append(out, strings.Join(c, " "))
	}
	return out
}

func TestTheOnlyNodeChangesNothingOfTheMachine(t *testing.T) {
	p := Candidates(1)[0]
	got := lines(p.machineCommands())
	if want := len(p.Balancers()) + 3; len(got) != want {
		t.Errorf("%d commands, want %d: %q", len(got), want, got)
	}
	for _, want := range []string{"ip address replace 10.88.0.1/22 dev ebb0", "ip address replace 10.88.3.200/32 dev ebb0",
		"ip route replace 10.89.0.0/16 dev ebb0 src 10.88.0.1"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// Each node and the machine know the way to all pods, and ask nobody for the address of a link: a
// node without power does not answer.
func TestEveryoneKnowsTheWayToAllPods(t *testing.T) {
	p := Candidates(3)[0]
	views := map[string][]string{"": lines(p.machineCommands())}
	for _, n := range p.Each() {
		views[n.Name] = lines(p.nodeCommands(n))
	}
	macs := map[netip.Addr]string{p.Machine(): mac(p.Machine())}
	for _, n := range p.Each() {
		macs[n.Address] = mac(n.Address)
		if !slices.Contains(views[n.Name], "ip link set eth0 address "+mac(n.Address)) {
			t.Errorf("node %s does not have the link address that the others send to", n.Name)
		}
		if !slices.Contains(views[n.Name], "ip neighbour replace 10.88.0.1 lladdr 02:0a:58:00:01:00 nud permanent dev eth0") {
			t.Errorf("node %s asks for the machine's link address", n.Name)
		}
		for viewer, commands := range views {
			device := "eth0"
			if viewer == "" {
				device = "ebb0"
			}
			route := "ip route replace " + n.Pods.String() + " via " + n.Address.String() + " dev " + device
			neighbour := "ip neighbour replace " + n.Address.String() + " lladdr " + mac(n.Address) + " nud permanent dev " + device
			if viewer == n.Name {
				route, neighbour = "ip address replace "+n.Gateway().String()+"/22 dev ebb0", "ip link set lo up"
			}
			for _, want := range []string{route, neighbour} {
				if !slices.Contains(commands, want) {
					t.Errorf("%q does not %q", viewer, want)
				}
			}
		}
	}
	if !slices.Contains(views[""], "ip link set ebb0 address 02:0a:58:00:01:00") {
		t.Error("the machine does not have the link address that nodes send to")
	}
	if len(macs) != 4 {
		t.Errorf("link addresses are not different: %v", macs)
	}
}

func TestANodeReachesNothingButTheCluster(t *testing.T) {
	for _, p := range Candidates(MaxNodes) {
		for _, n := range p.Each() {
			for _, c := range p.nodeCommands(n) {
				if c[0] != "ip" || c[1] != "route" {
					continue
				}
				to, err := netip.ParsePrefix(c[3])
				if err != nil || to.Bits() < 16 || !p.Pods.Contains(to.Addr()) && p.Services != to {
					t.Errorf("node %s has the route %q", n.Name, c)
				}
			}
		}
	}
}

func TestACutIsClear(t *testing.T) {
	for text, want := range map[string]Cut{
		"":           {In: true, Out: true},
		"in":         {In: true},
		"out nodes":  {Out: true, Peer: Nodes},
		"control in": {In: true, Peer: Control},
		"in out":     {In: true, Out: true},
	} {
		if got, err := ParseCut(strings.Fields(text)); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"up", "in in", "control nodes", "in b", "control control"} {
		if got, err := ParseCut(strings.Fields(text)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
}

func TestTheRulesOfACut(t *testing.T) {
	p := Candidates(3)[0]
	b := p.Each()[1]
	const in, out = "type filter hook prerouting priority -400;", "type filter hook postrouting priority 400;"
	for name, c := range map[string]struct {
		cut       Cut
		has, none []string
	}{
		"all": {Cut{In: true, Out: true}, []string{in, out, `iifname "eth0" drop`, `oifname "eth0" drop`}, []string{"addr"}},
		"in":  {Cut{In: true}, []string{in, `iifname "eth0" drop`}, []string{out, "oifname"}},
		"out": {Cut{Out: true}, []string{out, `oifname "eth0" drop`}, []string{in, "iifname"}},
		"control": {Cut{In: true, Out: true, Peer: Control}, []string{
			`iifname "eth0" ip saddr 10.88.0.1 tcp sport 6443 drop`, `iifname "eth0" ip saddr 10.88.0.1 tcp dport 10250 drop`,
			`oifname "eth0" ip daddr 10.88.0.1 tcp dport 6443 drop`, `oifname "eth0" ip daddr 10.88.0.1 tcp sport 10250 drop`,
		}, []string{`"eth0" drop`}},
		"nodes": {Cut{In: true, Out: true, Peer: Nodes}, []string{
			`iifname "eth0" ip saddr { 10.88.0.2, 10.88.4.0/22, 10.88.0.4, 10.88.12.0/22 } drop`,
			`oifname "eth0" ip daddr { 10.88.0.2, 10.88.4.0/22, 10.88.0.4, 10.88.12.0/22 } drop`,
		}, []string{`"eth0" drop`, "10.88.0.1 ", "10.88.0.3", "10.88.8.0"}},
	} {
		got := p.rules(b, c.cut)
		if !strings.HasPrefix(got, "add table ip ebb-cut\ndelete table ip ebb-cut\n") {
			t.Errorf("%s: an earlier cut stays:\n%s", name, got)
		}
		for _, want := range c.has {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, got)
			}
		}
		for _, not := range c.none {
			if strings.Contains(got, not) {
				t.Errorf("%s: %q is in\n%s", name, not, got)
			}
		}
	}
}
