// Package kube has the configuration of each Kubernetes program for one node
// on one machine.
//
// Owns: the flags and files of etcd, containerd and Kubernetes. Reads: nothing
// but its templates. Writes: configuration files. Never: starts a program.
package kube

import (
	"bytes"
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

// NodeName is the name of the one node.
const NodeName = "ebb-dev"

// Version is the release of k8s.io/kubernetes that dev/go.mod requires.
const Version = "v1.37.2"

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
	node := c.Plan.Node().String()
	return pki.Folder{Dir: c.In("pki"), Now: time.Now}, []pki.Leaf{
		{Name: "etcd", Common: "etcd", Hosts: []string{"127.0.0.1"}},
		{Name: "etcd-client", Common: "kube-apiserver"},
		{Name: "kube-apiserver", Common: "kube-apiserver", Hosts: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			"localhost", "127.0.0.1", node, c.Plan.API().String(),
		}},
		{Name: "front-proxy", Common: "front-proxy-client"},
		{Name: "kubelet-client", Common: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}},
		{Name: "kubelet-server", Common: NodeName, Hosts: []string{NodeName, node}},
		{Name: "admin", Common: "admin", Groups: []string{"system:masters"}},
		{Name: "kube-controller-manager", Common: "system:kube-controller-manager"},
		{Name: "kube-scheduler", Common: "system:kube-scheduler"},
		{Name: "kube-proxy", Common: "system:kube-proxy"},
		{Name: "kubelet", Common: "system:node:" + NodeName, Groups: []string{"system:nodes"}},
	}
}

// Ports that each program listens on.
func (c Cluster) Ports() map[string][]netip.AddrPort {
	local := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	return map[string][]netip.AddrPort{
		"etcd":                    {local(23790), local(23800)},
		"kube-apiserver":          {netip.AddrPortFrom(c.Plan.Node(), 6443)},
		"kube-controller-manager": {local(10257)},
		"kube-scheduler":          {local(10259)},
		"kube-proxy":              {local(10249), local(10256)},
		"kubelet":                 {netip.AddrPortFrom(c.Plan.Node(), 10250), local(10248)},
	}
}

// Write writes every configuration file.
func (c Cluster) Write() error {
	values := map[string]any{
		"Node": c.Plan.Node(), "DNS": c.Plan.DNS(), "Pods": c.Plan.Pods,
		"PKI": c.In("pki"), "Conf": c.In("conf"), "Dev": c.Dev, "Run": c.Run, "Socket": c.Socket(), "Pause": c.Pause,
	}
	for _, name := range []string{"kubelet.yaml", "proxy.yaml", "containerd.toml", "audit.yaml"} {
		if err := c.render(name, c.In("conf", name), values); err != nil {
			return err
		}
	}
	for _, user := range []string{"admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"} {
		values["User"] = user
		target := c.In("conf", user+".kubeconfig")
		if user == "admin" {
			target = c.Kubeconfig()
		}
		if err := c.render("kubeconfig.yaml", target, values); err != nil {
			return err
		}
	}
	// A pod's resolv.conf lists the cluster's DNS. Other names are not resolved.
	if err := replace(c.In("conf", "resolv.conf"), []byte("nameserver "+c.Plan.DNS().String()+"\n"), 0o644); err != nil {
		return err
	}
	cni, err := c.Plan.CNI(c.In("cni"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.In("conf", "cni"), 0o755); err != nil {
		return err
	}
	return replace(c.In("conf", "cni", "10-ebb.conflist"), cni, 0o644)
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

// Containerd is the cluster's container runtime, separate from the machine's own.
func (c Cluster) Containerd() process.Program {
	return process.Program{
		Name: "containerd", Path: "/usr/bin/containerd", Args: []string{"--config", c.In("conf", "containerd.toml")},
		Log: c.Log("containerd"), Salt: c.salt("containerd.toml"),
		Ready: func(context.Context) error { _, err := os.Stat(c.Socket()); return err },
	}
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
		"--bind-address="+c.Plan.Node().String(), "--advertise-address="+c.Plan.Node().String(), "--secure-port=6443",
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
	p.Salt = c.salt("audit.yaml")
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

// Scheduler places the pods on the one node.
func (c Cluster) Scheduler() process.Program {
	config := c.In("conf", "kube-scheduler.kubeconfig")
	return c.program("kube-scheduler", c.https("https://127.0.0.1:10259/healthz", "admin"),
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--kube-api-qps=200", "--kube-api-burst=400", "-v=1")
}

// Kubelet runs the pods.
func (c Cluster) Kubelet() process.Program {
	f, _ := c.Certificates()
	p := c.program("kubelet", httpOK("http://127.0.0.1:10248/healthz"),
		"--config="+c.In("conf", "kubelet.yaml"), "--kubeconfig="+c.In("conf", "kubelet.kubeconfig"),
		"--root-dir="+c.In("kubelet"), "--cert-dir="+c.In("kubelet", "pki"),
		"--tls-cert-file="+f.Cert("kubelet-server"), "--tls-private-key-file="+f.Key("kubelet-server"),
		"--hostname-override="+NodeName, "--node-ip="+c.Plan.Node().String())
	p.Salt = c.salt("kubelet.yaml")
	return p
}

// Proxy makes Services reachable.
func (c Cluster) Proxy() process.Program {
	p := c.program("kube-proxy", httpOK("http://127.0.0.1:10256/livez"), "--config="+c.In("conf", "proxy.yaml"))
	p.Salt = c.salt("proxy.yaml")
	return p
}

func (c Cluster) program(name string, ready func(context.Context) error, args ...string) process.Program {
	return process.Program{Name: name, Path: c.Bin(name), Args: args, Log: c.Log(name), Ready: ready}
}

func (c Cluster) salt(file string) string {
	text, err := os.ReadFile(c.In("conf", file))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (c Cluster) url(path string) string { return "https://" + c.Plan.Node().String() + ":6443" + path }

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
