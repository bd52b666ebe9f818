package kube

import (
	"context"
	"net/netip"
	"os"

	"ebb.dev/ebb/dev/ctl/internal/groups"
	"ebb.dev/ebb/dev/ctl/internal/network"
	"ebb.dev/ebb/dev/ctl/internal/place"
	"ebb.dev/ebb/dev/ctl/internal/process"
)

// Node is one node of the cluster. The only one of a cluster is the machine: it has the cluster's
// folders, no network namespace, and no control group but those that the kubelet makes.
type Node struct {
	network.Node
	Own     place.Places
	cluster Cluster
}

// Nodes returns the nodes of the cluster.
func (c Cluster) Nodes() []Node {
	var nodes []Node
	for _, n := range c.Plan.Each() {
		nodes = append(nodes, Node{Node: n, Own: c.Places.Node(n.Name), cluster: c})
	}
	return nodes
}

// called is the name of a node's program, certificate or log.
func (n Node) called(what string) string {
	if n.Name == "" {
		return what
	}
	return what + "-" + n.Name
}

// Hostname is the name of the node in the cluster.
func (n Node) Hostname() string { return n.called(NodeName) }

// Zone is the node's zone: a, b or c. The only node has none.
func (n Node) Zone() string {
	if n.Name == "" {
		return ""
	}
	return string("abc"[(n.Name[0]-'a')%3])
}

// Namespace is the file that the node's network namespace is mounted on.
func (n Node) Namespace() string { return n.Own.Run + "/net" }

// Groups are the control groups of the node's processes.
func (n Node) Groups() groups.Node { return GroupsOf(n.Name) }

// GroupsOf returns the control groups of the node with a name.
func GroupsOf(name string) groups.Node {
	return groups.Node{Mount: "/sys/fs/cgroup", Name: NodeName + "-" + name}
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// health is the address at which the machine asks the node's programs how they are.
func (n Node) health() netip.Addr {
	if n.Name == "" {
		return localhost
	}
	return n.Address
}

func (n Node) write() error {
	c := n.cluster
	if err := os.MkdirAll(n.Own.In("conf", "cni"), 0o755); err != nil {
		return err
	}
	logs, root := "/var/log/pods", "/"
	if n.Name != "" {
		// A kubelet removes the logs of pods that it does not know.
		logs, root = n.Own.In("pod-logs"), "/"+n.Hostname()
	}
	kubelet := map[string]any{
		"Node": n.Address, "Health": n.health(), "DNS": c.Plan.DNS(), "PKI": c.In("pki"), "Conf": n.Own.In("conf"),
		"Socket": n.Own.Socket(), "Logs": logs, "Groups": root, "KeptFree": KeptFree,
	}
	containerd := map[string]any{"Dev": n.Own.Dev, "Run": n.Own.Run, "Socket": n.Own.Socket(), "Conf": n.Own.In("conf"), "Pause": c.Pause}
	for name, values := range map[string]map[string]any{"kubelet.yaml": kubelet, "containerd.toml": containerd, "proxy.yaml": n.proxyValues(n.Address, n.health())} {
		if err := c.render(name, n.Own.In("conf", name), values); err != nil {
			return err
		}
	}
	if err := c.access(n.called("kubelet"), n.Own.In("conf", "kubelet.kubeconfig")); err != nil {
		return err
	}
	// A pod's resolv.conf lists the cluster's DNS. Other names are not resolved.
	if err := replace(n.Own.In("conf", "resolv.conf"), []byte("nameserver "+c.Plan.DNS().String()+"\n"), 0o644); err != nil {
		return err
	}
	cni, err := n.CNI(n.Own.In("cni"))
	if err != nil {
		return err
	}
	return replace(n.Own.In("conf", "cni", "10-ebb.conflist"), cni, 0o644)
}

// proxyValues fill in the configuration of a kube-proxy that takes this node's place.
func (n Node) proxyValues(address, health netip.Addr) map[string]any {
	return map[string]any{"Name": n.Hostname(), "Node": address, "Health": health, "Pods": n.cluster.Plan.Pods, "Conf": n.cluster.In("conf")}
}

// enter is a command that goes into the node's control groups and network namespace.
func (n Node) enter() []string {
	if n.Name == "" {
		return nil
	}
	const join = `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"`
	enter := append([]string{"sh", "-c", join, "sh"}, n.Groups().Programs()...)
	return append(append(enter, "--"), network.Inside(n.Namespace())...)
}

// Containerd is the node's container runtime, separate from the machine's own.
func (n Node) Containerd() process.Program {
	name := n.called("containerd")
	config := n.Own.In("conf", "containerd.toml")
	return process.Program{
		Name: name, Path: "/usr/bin/containerd", Args: []string{"--config", config}, Enter: n.enter(),
		Log: n.cluster.Log(name), Salt: salt(config), Clear: n.Own.Socket(),
		Ready: func(context.Context) error { _, err := os.Stat(n.Own.Socket()); return err },
	}
}

// Kubelet runs the pods.
func (n Node) Kubelet() process.Program {
	c := n.cluster
	f, _ := c.Certificates()
	config := n.Own.In("conf", "kubelet.yaml")
	args := []string{
		"--config=" + config, "--kubeconfig=" + n.Own.In("conf", "kubelet.kubeconfig"),
		"--root-dir=" + n.Own.In("kubelet"), "--cert-dir=" + n.Own.In("kubelet", "pki"),
		"--tls-cert-file=" + f.Cert(n.called("kubelet-server")), "--tls-private-key-file=" + f.Key(n.called("kubelet-server")),
		"--hostname-override=" + n.Hostname(), "--node-ip=" + n.Address.String(),
	}
	if zone := n.Zone(); zone != "" {
		args = append(args, "--node-labels=topology.kubernetes.io/zone="+zone)
	}
	p := c.program("kubelet", httpOK("http://"+n.health().String()+":10248/healthz"), args...)
	p.Name, p.Log, p.Salt, p.Enter = n.called("kubelet"), c.Log(n.called("kubelet")), salt(config), n.enter()
	return p
}

// Proxy makes Services reachable for what runs on the node.
func (n Node) Proxy() process.Program {
	p := n.cluster.proxy(n.called("kube-proxy"), n.Own.In("conf", "proxy.yaml"), n.health())
	p.Enter = n.enter()
	return p
}

// Programs are the node's own, in the order in which they start.
func (n Node) Programs() []process.Program {
	return []process.Program{n.Containerd(), n.Kubelet(), n.Proxy()}
}
