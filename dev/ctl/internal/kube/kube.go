// Package kube has the configuration of each Kubernetes program, for the
// control plane and the nodes on one machine.
//
// Owns: the flags and files of etcd, containerd and Kubernetes. Reads: nothing
// but its templates. Writes: configuration files. Never: starts a program.
package kube

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"embed"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/network"
	"ebb.dev/ebb/dev/ctl/internal/pki"
	"ebb.dev/ebb/dev/ctl/internal/place"
	"ebb.dev/ebb/dev/ctl/internal/process"
)

// NodeName is the name of the only node, and what those of several begin with.
const NodeName = "ebb-dev"

// Version is the release of k8s.io/kubernetes that dev/go.mod requires.
const Version = "v1.37.2"

// KeptFree is how many percent of its disk the kubelet keeps free. When there is less, it deletes
// images and evicts pods.
const KeptFree = 1

// LDFlags tell the programs their version; without them clients see v0.0.0.
func LDFlags(version string) string {
	minor := strings.Split(version, ".")[1]
	return "-X k8s.io/component-base/version.gitVersion=" + version +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=" + minor +
		" -X k8s.io/client-go/pkg/version.gitVersion=" + version +
		" -X k8s.io/client-go/pkg/version.gitMajor=1 -X k8s.io/client-go/pkg/version.gitMinor=" + minor
}

// Programs are the names that the binary of dev/kube is linked under.
var Programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "sandboxes"}

//go:embed *.yaml *.toml
var files embed.FS

// Cluster is what the configuration depends on.
type Cluster struct {
	place.Places
	Plan  network.Plan
	Pause string // reference of the pause image
}

// Certificates of the cluster.
func (c Cluster) Certificates() (pki.Folder, []pki.Leaf) {
	leaves := []pki.Leaf{
		{Name: "etcd", Common: "etcd", Hosts: []string{"127.0.0.1"}},
		{Name: "etcd-client", Common: "kube-apiserver"},
		{Name: "kube-apiserver", Common: "kube-apiserver", Hosts: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			"localhost", "127.0.0.1", c.Plan.Machine().String(), c.Plan.API().String(),
		}},
		{Name: "front-proxy", Common: "front-proxy-client"},
		{Name: "kubelet-client", Common: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}},
		{Name: "admin", Common: "admin", Groups: []string{"system:masters"}},
		{Name: "kube-controller-manager", Common: "system:kube-controller-manager"},
		{Name: "kube-scheduler", Common: "system:kube-scheduler"},
		{Name: "kube-proxy", Common: "system:kube-proxy"},
	}
	for _, n := range c.Nodes() {
		leaves = append(leaves,
			pki.Leaf{Name: n.called("kubelet-server"), Common: n.Hostname(), Hosts: []string{n.Hostname(), n.Address.String()}},
			pki.Leaf{Name: n.called("kubelet"), Common: "system:node:" + n.Hostname(), Groups: []string{"system:nodes"}})
	}
	return pki.Folder{Dir: c.In("pki"), Now: time.Now}, leaves
}

// Ports that each program listens on. Those of nodes with a network namespace are free there.
func (c Cluster) Ports() map[string][]netip.AddrPort {
	local := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	ports := map[string][]netip.AddrPort{
		"etcd":                    {local(23790), local(23800)},
		"kube-apiserver":          {netip.AddrPortFrom(c.Plan.Machine(), 6443)},
		"kube-controller-manager": {local(10257)},
		"kube-scheduler":          {local(10259)},
		"kube-proxy":              {local(10249), local(10256)},
	}
	if c.Plan.Nodes < 2 {
		ports["kubelet"] = []netip.AddrPort{netip.AddrPortFrom(c.Plan.Machine(), 10250), local(10248)}
	}
	return ports
}

// Write writes every configuration file.
func (c Cluster) Write() error {
	if err := c.render("audit.yaml", c.In("conf", "audit.yaml"), nil); err != nil {
		return err
	}
	for user, target := range map[string]string{"admin": c.Kubeconfig(), "kube-controller-manager": "", "kube-scheduler": "", "kube-proxy": ""} {
		if err := c.access(user, cmp.Or(target, c.In("conf", user+".kubeconfig"))); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes() {
		if err := n.write(); err != nil {
			return err
		}
	}
	if c.Plan.Nodes < 2 {
		return nil
	}
	return c.render("proxy.yaml", c.In("conf", "proxy.yaml"), c.Nodes()[0].proxyValues(c.Plan.Machine(), localhost))
}

// access writes a kubeconfig with the certificate of a leaf.
func (c Cluster) access(leaf, target string) error {
	return c.render("kubeconfig.yaml", target, map[string]any{"Server": c.Server(), "PKI": c.In("pki"), "User": leaf})
}

func (c Cluster) render(name, target string, values any) error {
	text, err := Render(name, values)
	if err != nil {
		return err
	}
	return replace(target, text, 0o600)
}

// replace writes a file unless it has that content already: kube-proxy exits whenever its
// configuration is written, even if nothing changes.
func replace(path string, text []byte, mode os.FileMode) error {
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, text) {
		return nil
	}
	return os.WriteFile(path, text, mode)
}

// Render fills one of the embedded templates. A missing value is an error.
func Render(name string, values any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(files, name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, values); err != nil {
		return nil, fmt.Errorf("fill in %s: %w", name, err)
	}
	return out.Bytes(), nil
}

// Etcd stores the cluster's objects. It does not wait for the disk: after a power failure the
// cluster is made anew.
func (c Cluster) Etcd() process.Program {
	folder, _ := c.Certificates()
	return c.program("etcd", c.https("https://127.0.0.1:23790/health", "etcd-client"),
		"--name=ebb-dev", "--data-dir="+c.In("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=https://127.0.0.1:23790", "--advertise-client-urls=https://127.0.0.1:23790",
		"--listen-peer-urls=http://127.0.0.1:23800", "--initial-advertise-peer-urls=http://127.0.0.1:23800",
		"--initial-cluster=ebb-dev=http://127.0.0.1:23800",
		"--cert-file="+folder.Cert("etcd"), "--key-file="+folder.Key("etcd"),
		"--client-cert-auth", "--trusted-ca-file="+folder.Cert("ca"),
		"--auto-compaction-retention=10m", "--quota-backend-bytes=2147483648")
}

// APIServer listens only on the bridge.
func (c Cluster) APIServer() process.Program {
	f, _ := c.Certificates()
	p := c.program("kube-apiserver", c.https(c.url("/readyz"), "admin"),
		"--etcd-servers=https://127.0.0.1:23790", "--etcd-cafile="+f.Cert("ca"),
		"--etcd-certfile="+f.Cert("etcd-client"), "--etcd-keyfile="+f.Key("etcd-client"),
		"--bind-address="+c.Plan.Machine().String(), "--advertise-address="+c.Plan.Machine().String(), "--secure-port=6443",
		"--tls-cert-file="+f.Cert("kube-apiserver"), "--tls-private-key-file="+f.Key("kube-apiserver"),
		"--client-ca-file="+f.Cert("ca"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		// For the metrics server, which serves an aggregated API.
		"--requestheader-client-ca-file="+f.Cert("ca"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+f.Cert("front-proxy"), "--proxy-client-key-file="+f.Key("front-proxy"),
		"--kubelet-client-certificate="+f.Cert("kubelet-client"), "--kubelet-client-key="+f.Key("kubelet-client"),
		"--kubelet-certificate-authority="+f.Cert("ca"), "--kubelet-preferred-address-types=InternalIP",
		"--service-cluster-ip-range="+c.Plan.Services.String(), "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+filepath.Join(f.Dir, "service-account.pub"), "--service-account-signing-key-file="+f.Key("service-account"),
		"--allow-privileged=true", "--max-requests-inflight=1000", "--max-mutating-requests-inflight=500", "--event-ttl=30m", "-v=1",
		"--audit-policy-file="+c.In("conf", "audit.yaml"), "--audit-log-path="+c.Log("audit"), "--audit-log-mode=batch",
		"--audit-log-maxsize=200", "--audit-log-maxbackup=1")
	p.Salt = salt(c.In("conf", "audit.yaml"))
	// A garbage collection takes half a second of CPU, and usually falls into a burst of new pods.
	p.Env = []string{"GOGC=200"}
	return p
}

// ControllerManager runs Kubernetes' own controllers.
func (c Cluster) ControllerManager() process.Program {
	f, _ := c.Certificates()
	config := "--kubeconfig=" + c.In("conf", "kube-controller-manager.kubeconfig")
	return c.program("kube-controller-manager", c.https("https://127.0.0.1:10257/healthz", "admin"),
		config, "--leader-elect=false", "--use-service-account-credentials", "--horizontal-pod-autoscaler-sync-period=5s", "--bind-address=127.0.0.1",
		"--service-account-private-key-file="+f.Key("service-account"), "--root-ca-file="+f.Cert("ca"),
		"--cluster-signing-cert-file="+f.Cert("ca"), "--cluster-signing-key-file="+f.Key("ca"),
		"--authentication-kubeconfig="+c.In("conf", "kube-controller-manager.kubeconfig"),
		"--authorization-kubeconfig="+c.In("conf", "kube-controller-manager.kubeconfig"),
		"--kube-api-qps=300", "--kube-api-burst=600", "-v=1")
}

// Scheduler places the pods on the nodes.
func (c Cluster) Scheduler() process.Program {
	config := c.In("conf", "kube-scheduler.kubeconfig")
	return c.program("kube-scheduler", c.https("https://127.0.0.1:10259/healthz", "admin"),
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--kube-api-qps=200", "--kube-api-burst=400", "-v=1")
}

// Proxy makes Services reachable from the machine. It is the one of the only node, or of none.
func (c Cluster) Proxy() process.Program {
	return c.proxy("kube-proxy", c.In("conf", "proxy.yaml"), localhost)
}

func (c Cluster) proxy(name, config string, health netip.Addr) process.Program {
	p := c.program("kube-proxy", httpOK("http://"+health.String()+":10256/livez"), "--config="+config)
	p.Name, p.Log, p.Salt = name, c.Log(name), salt(config)
	return p
}

// Programs are all of them.
func (c Cluster) Programs() []process.Program {
	all := []process.Program{c.Etcd(), c.APIServer(), c.ControllerManager(), c.Scheduler(), c.Proxy()}
	for _, n := range c.Nodes() {
		all = append(all, n.Containerd(), n.Kubelet())
		if n.Name != "" {
			all = append(all, n.Proxy())
		}
	}
	return all
}

func (c Cluster) program(name string, ready func(context.Context) error, args ...string) process.Program {
	return process.Program{Name: name, Path: c.Bin(name), Args: args, Log: c.Log(name), Ready: ready}
}

func salt(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (c Cluster) url(path string) string {
	return "https://" + c.Plan.Machine().String() + ":6443" + path
}

// https asks a server of the cluster, with one of its client certificates. The controller manager
// and the scheduler have self-signed certificates, which are not verified.
func (c Cluster) https(url, leaf string) func(context.Context) error {
	return func(ctx context.Context) error {
		client, err := c.Client(leaf)
		if err != nil {
			return err
		}
		defer client.CloseIdleConnections()
		if url != c.url("/readyz") {
			client.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true
		}
		return ask(ctx, client, url)
	}
}

// Client returns a client of the API server that has the certificate of one of the leaves.
func (c Cluster) Client(leaf string) (*http.Client, error) {
	f, _ := c.Certificates()
	pair, err := tls.LoadX509KeyPair(f.Cert(leaf), f.Key(leaf))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(f.Cert("ca"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}}}, nil
}

// Server is the API server's address.
func (c Cluster) Server() string { return c.url("") }

func httpOK(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		return ask(ctx, client, url)
	}
}

func ask(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(res.Body, 500))
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s: %s", url, res.Status, bytes.TrimSpace(body))
	}
	return nil
}
