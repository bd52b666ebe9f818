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
	"sigs.k8s.io/yaml"
)

func cluster(t *testing.T) Cluster {
	t.Helper()
	p := place.Of(t.TempDir(), func(string) string { return "" })
	if err := os.MkdirAll(p.In("conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Cluster{Places: p, Plan: network.Candidates()[0], Pause: "dev.local/dev/pause:abc"}
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
	before := c.Kubelet().Salt
	c.Plan = network.Candidates()[1]
	if err := c.Write(); err != nil {
		t.Fatal(err)
	}
	if c.Kubelet().Salt == before {
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
