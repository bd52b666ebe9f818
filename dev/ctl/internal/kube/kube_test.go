package kube

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/network"
	"ebb.dev/ebb/dev/ctl/internal/place"
	"ebb.dev/ebb/dev/ctl/internal/preflight"
	"sigs.k8s.io/yaml"
)

func cluster(t *testing.T) Cluster {
	t.Helper()
	p := place.Of(t.TempDir(), func(string) string { return "" })
	if err := os.MkdirAll(p.In("conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Cluster{Places: p, Plan: network.Candidates(1)[0], Pause: "dev.local/dev/pause:abc"}
}

func TestWrittenConfigurationSaysWhatTheClusterIs(t *testing.T) {
	c := cluster(t)
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	field := func(file, path string) any {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := yaml.UnmarshalStrict(text, &value); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for key := range strings.SplitSeq(path, ".") {
			switch v := value.(type) {
			case map[string]any:
				value = v[key]
			case []any:
				value = v[0].(map[string]any)[key]
			}
		}
		text, _ = json.Marshal(value)
		return string(text)
	}
	for _, check := range [][3]string{
		{c.In("conf", "kubelet.yaml"), "clusterDNS", `["10.89.0.10"]`},
		{c.In("conf", "kubelet.yaml"), "address", `"10.88.0.1"`},
		{c.In("conf", "kubelet.yaml"), "containerRuntimeEndpoint", `"unix:///run/ebb-dev/containerd.sock"`},
		{c.In("conf", "kubelet.yaml"), "failCgroupV1", `false`},
		{c.In("conf", "proxy.yaml"), "clusterCIDR", `"10.88.0.0/22"`},
		{c.In("conf", "proxy.yaml"), "mode", `"nftables"`},
		{c.In("conf", "audit.yaml"), "omitStages", `["RequestReceived","ResponseStarted"]`},
		{c.Kubeconfig(), "clusters.cluster.server", `"https://10.88.0.1:6443"`},
		{c.Kubeconfig(), "users.name", `"admin"`},
		{c.In("conf", "kubelet.kubeconfig"), "users.name", `"kubelet"`},
		{c.In("conf", "cni", "10-ebb.conflist"), "name", `"ebb0"`},
	} {
		if got := field(check[0], check[1]); got != check[2] {
			t.Errorf("%s: %s is %s, want %s", filepath.Base(check[0]), check[1], got, check[2])
		}
	}
	toml, err := os.ReadFile(c.In("conf", "containerd.toml"))
	if err != nil || !strings.Contains(string(toml), `sandbox_image = "dev.local/dev/pause:abc"`) {
		t.Errorf("containerd's configuration: %v\n%s", err, toml)
	}
	for _, secret := range []string{c.Kubeconfig(), c.In("conf", "kubelet.kubeconfig")} {
		if info, err := os.Stat(secret); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is readable by others: %v %v", secret, info.Mode(), err)
		}
	}
}

func TestATemplateWithoutItsValueIsAnError(t *testing.T) {
	if _, err := Render("kubelet.yaml", map[string]any{"Node": "x"}); err == nil {
		t.Error("a missing value is left out silently")
	}
}

func TestProgramsRestartWhenTheirFilesChange(t *testing.T) {
	c := cluster(t)
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	before := c.Nodes()[0].Kubelet().Salt
	c.Plan = network.Candidates(1)[1]
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	if c.Nodes()[0].Kubelet().Salt == before {
		t.Error("the kubelet would keep its old configuration")
	}
}

// kube-proxy ends whenever its file is written, be it with the same content.
func TestWhatHasNotChangedIsNotWritten(t *testing.T) {
	c := cluster(t)
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	file := c.In("conf", "proxy.yaml")
	old := time.Unix(1_000_000_000, 0)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("%s was written again: %v", file, err)
	}
}

func TestSeveralNodesHaveNothingInCommonButTheControlPlane(t *testing.T) {
	c := cluster(t)
	c.Plan = network.Candidates(3)[0]
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for _, p := range c.Programs() {
		names[p.Name]++
	}
	if len(names) != 5+3*3 {
		t.Errorf("programs: %v", names)
	}
	var hosts, zones []string
	for _, n := range c.Nodes() {
		hosts, zones = append(hosts, n.Hostname()), append(zones, n.Zone())
		for file, wants := range map[string][]string{
			"kubelet.yaml": {
				"address: " + n.Address.String() + "\n", "healthzBindAddress: " + n.Address.String() + "\n", "cgroupRoot: /" + n.Hostname() + "\n",
				"containerRuntimeEndpoint: unix:///run/ebb-dev/" + n.Name + "/containerd.sock\n", "podLogsDir: " + n.Own.Dev + "/pod-logs\n",
				"resolvConf: " + n.Own.Dev + "/conf/resolv.conf\n",
			},
			"containerd.toml":     {`root = "` + n.Own.Dev + `/containerd"`, `state = "/run/ebb-dev/` + n.Name + `/containerd"`, `conf_dir = "` + n.Own.Dev + `/conf/cni"`},
			"proxy.yaml":          {"bindAddress: " + n.Address.String() + "\n", "hostnameOverride: " + n.Hostname() + "\n", "clusterCIDR: 10.88.0.0/18\n", "healthzBindAddress: " + n.Address.String() + ":10256\n"},
			"kubelet.kubeconfig":  {"server: https://10.88.0.1:6443\n", "/kubelet-" + n.Name + ".crt\n"},
			"cni/10-ebb.conflist": {n.Pods.String(), n.Own.Dev + "/cni"},
			"resolv.conf":         {"nameserver 10.89.0.10\n"},
		} {
			text, err := os.ReadFile(n.Own.In("conf", file))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range wants {
				if !strings.Contains(string(text), want) {
					t.Errorf("node %s: %q is not in %s:\n%s", n.Name, want, file, text)
				}
			}
		}
		for _, p := range n.Programs() {
			enter := strings.Join(p.Enter, " ")
			if !strings.HasSuffix(enter, "-- nsenter --net=/run/ebb-dev/"+n.Name+"/net") || !strings.HasSuffix(p.Name, "-"+n.Name) || p.Log != c.Log(p.Name) {
				t.Errorf("node %s: %s is started by %q and logs to %s", n.Name, p.Name, enter, p.Log)
			}
		}
		if args := strings.Join(n.Kubelet().Args, " "); !strings.Contains(args, "--node-labels=topology.kubernetes.io/zone="+n.Zone()) || !strings.Contains(args, "--hostname-override="+n.Hostname()) {
			t.Errorf("node %s: the kubelet has %s", n.Name, args)
		}
	}
	if strings.Join(hosts, " ") != "ebb-dev-a ebb-dev-b ebb-dev-c" || strings.Join(zones, "") != "abc" {
		t.Errorf("nodes %v in zones %v", hosts, zones)
	}
	_, leaves := c.Certificates()
	for _, l := range leaves {
		if l.Name == "kubelet-b" && l.Common != "system:node:ebb-dev-b" || l.Name == "kubelet-server-b" && strings.Join(l.Hosts, " ") != "ebb-dev-b 10.88.0.3" ||
			l.Name == "kubelet" || l.Name == "kubelet-server" {
			t.Errorf("certificate %+v", l)
		}
	}
	// The machine reaches Services by a kube-proxy of its own, in the place of one of the nodes.
	text, err := os.ReadFile(c.In("conf", "proxy.yaml"))
	if err != nil || !strings.Contains(string(text), "bindAddress: 10.88.0.1\n") || !strings.Contains(string(text), "hostnameOverride: ebb-dev-a\n") ||
		!strings.Contains(string(text), "healthzBindAddress: 127.0.0.1:10256\n") {
		t.Errorf("the machine's kube-proxy: %v\n%s", err, text)
	}
	if _, ok := c.Ports()["kubelet"]; ok {
		t.Error("the machine's ports are asked for a node that has its own")
	}
}

func TestTheOnlyNodeIsTheMachine(t *testing.T) {
	c := cluster(t)
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	nodes := c.Nodes()
	if len(nodes) != 1 || nodes[0].Hostname() != "ebb-dev" || nodes[0].Zone() != "" || nodes[0].Own != c.Places {
		t.Errorf("nodes: %+v", nodes)
	}
	for _, p := range nodes[0].Programs() {
		if len(p.Enter) > 0 {
			t.Errorf("%s is started by %q", p.Name, p.Enter)
		}
	}
	if args := strings.Join(nodes[0].Kubelet().Args, " "); strings.Contains(args, "--node-labels") {
		t.Errorf("the kubelet has %s", args)
	}
	if len(c.Programs()) != 7 {
		t.Errorf("%d programs, want 7", len(c.Programs()))
	}
}

// The longest path of a socket that the kubelet makes has to fit in 107 bytes.
func TestSocketsOfANodeFit(t *testing.T) {
	p := place.Places{Root: "/" + strings.Repeat("x", preflight.MaxRoot-1)}
	p.Dev = filepath.Join(p.Root, ".dev")
	if path := p.Node("a").In("kubelet", "pod-resources", "kubelet.sock"); len(path) > 107 {
		t.Errorf("%s has %d bytes", path, len(path))
	}
}
