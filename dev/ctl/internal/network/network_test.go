package network

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ebb.dev/ebb/dev/ctl/internal/place"
)

func TestChooseAvoidsWhatTheMachineUses(t *testing.T) {
	p := netip.MustParsePrefix
	for name, c := range map[string]struct {
		used []netip.Prefix
		want string
	}{
		"nothing used":                  {nil, "10.88.0.0/22"},
		"the default route is no use":   {[]netip.Prefix{p("0.0.0.0/0")}, "10.88.0.0/22"},
		"pods' range used":              {[]netip.Prefix{p("10.88.2.0/24")}, "10.123.0.0/22"},
		"services' range used":          {[]netip.Prefix{p("10.89.255.1/32")}, "10.123.0.0/22"},
		"a wide route over two of them": {[]netip.Prefix{p("10.64.0.0/10")}, "10.177.0.0/22"},
		"elsewhere":                     {[]netip.Prefix{p("192.168.0.0/16"), p("172.17.0.0/16")}, "10.88.0.0/22"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Choose(Candidates(1), c.used)
			if err != nil || got.Pods.String() != c.want {
				t.Errorf("got %v, %v; want %s", got.Pods, err, c.want)
			}
		})
	}
	if _, err := Choose(Candidates(1), []netip.Prefix{p("10.0.0.0/8")}); err == nil || !strings.Contains(err.Error(), "ip route") {
		t.Errorf("all taken: got %v", err)
	}
}

func TestSettingsOfTheMachineAreKeptAndPutBack(t *testing.T) {
	root, before := t.TempDir(), filepath.Join(t.TempDir(), "before.json")
	at := func(key string) string {
		text, err := os.ReadFile(filepath.Join(root, key))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for key, value := range map[string]string{"forward": "0\n", "module": "0\n"} {
		if err := os.WriteFile(filepath.Join(root, key), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time finds what the first has set
		if err := set(root, before, map[string]string{"forward": "1", "module": "1"}); err != nil {
			t.Fatal(err)
		}
	}
	if at("forward") != "1" || at("module") != "1" {
		t.Errorf("they are %q and %q, want 1", at("forward"), at("module"))
	}
	for range 2 { // the second time finds nothing to put back
		if err := restore(root, before); err != nil {
			t.Fatal(err)
		}
		if at("forward") != "0" || at("module") != "0" {
			t.Errorf("they are %q and %q, want what they were", at("forward"), at("module"))
		}
	}
	if err := os.WriteFile(before, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := restore(root, before); err == nil || !strings.Contains(err.Error(), before) {
		t.Errorf("a broken file: %v", err)
	}
}

func TestPlansKeepTheirRangesApart(t *testing.T) {
	for _, count := range []int{1, 2, 3, MaxNodes} {
		for _, p := range Candidates(count) {
			nodes := p.Each()
			if len(nodes) != count {
				t.Fatalf("%v: %d nodes, want %d", p, len(nodes), count)
			}
			if p.Pods.Overlaps(p.Services) {
				t.Errorf("%v: pods and Services overlap", p)
			}
			taken := map[netip.Addr]string{p.Machine(): "the machine"}
			for _, b := range p.Balancers() {
				taken[b] = "a load balancer"
			}
			for i, n := range nodes {
				if who := taken[n.Address]; who != "" && count > 1 {
					t.Errorf("%v: node %s has the address of %s", p, n.Name, who)
				}
				taken[n.Address] = "node " + n.Name
				first, last := n.PodRange()
				for _, a := range []netip.Addr{n.Address, n.Gateway(), first, last} {
					if !p.Pods.Contains(a) {
						t.Errorf("%v: %s of node %s is outside", p, a, n.Name)
					}
				}
				if !n.Pods.Contains(n.Gateway()) || !n.Gateway().Less(first) || !first.Less(last) || !n.Pods.Contains(last) {
					t.Errorf("%v: node %s has pods %s-%s behind %s", p, n.Name, first, last, n.Gateway())
				}
				for _, other := range nodes[:i] {
					if n.Pods.Overlaps(other.Pods) || n.Name == other.Name {
						t.Errorf("%v: nodes %s and %s overlap", p, other.Name, n.Name)
					}
				}
				for a, who := range taken {
					if !a.Less(first) && !last.Less(a) {
						t.Errorf("%v: %s, %s, is among the pods of node %s", p, a, who, n.Name)
					}
				}
			}
			if !p.Services.Contains(p.API()) || !p.Services.Contains(p.DNS()) || p.API() == p.DNS() {
				t.Errorf("%v: API %s, DNS %s", p, p.API(), p.DNS())
			}
		}
	}
	one := Candidates(1)[0].Each()[0]
	if first, last := one.PodRange(); first.String() != "10.88.0.10" || last.String() != "10.88.3.199" || one.Address.String() != "10.88.0.1" || one.Gateway() != one.Address {
		t.Errorf("the only node %s has pods %s-%s behind %s", one.Address, first, last, one.Gateway())
	}
	last := Candidates(MaxNodes)[0].Each()[MaxNodes-1]
	if last.Name != "h" || last.Address.String() != "10.88.0.9" || last.Pods.String() != "10.88.32.0/22" {
		t.Errorf("the last of %d is %+v", MaxNodes, last)
	}
	if MaxNodes != len(place.NodeNames) {
		t.Errorf("%d nodes have addresses and %d have names", MaxNodes, len(place.NodeNames))
	}
}

func TestRoutesOfTheMachine(t *testing.T) {
	got, err := parseRoutes([]byte(`[{"dst":"default","dev":"eth0"},{"dst":"172.17.0.0/16","dev":"docker0"},
		{"dst":"10.1.2.3","dev":"tun0"},{"dst":"10.88.0.0/22","dev":"ebb0"}]`))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].String() != "172.17.0.0/16" || got[1].String() != "10.1.2.3/32" {
		t.Errorf("got %v; the own bridge and the default route do not count", got)
	}
}

func TestCNIConfigurationNamesTheRange(t *testing.T) {
	text, err := Candidates(1)[0].Each()[0].CNI("/data")
	if err != nil {
		t.Fatal(err)
	}
	var conf struct {
		Plugins []struct {
			Type, Bridge string
			IPAM         struct {
				DataDir string
				Ranges  [][]struct{ Subnet, RangeStart, RangeEnd, Gateway string }
			}
		}
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		t.Fatal(err)
	}
	r := conf.Plugins[0].IPAM.Ranges[0][0]
	if conf.Plugins[0].Bridge != Bridge || conf.Plugins[0].IPAM.DataDir != "/data" || r.Subnet != "10.88.0.0/22" || r.Gateway != "10.88.0.1" {
		t.Errorf("got %s", text)
	}
}
