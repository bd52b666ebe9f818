package install

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestOverlayNamesEachComponentOnce(t *testing.T) {
	text, err := Overlay(map[string]string{
		"dev.local/ebb/activator":      "dev.local/ebb/activator:111",
		"dev.local/ebb/queue-proxy":    "dev.local/ebb/queue-proxy:222",
		"dev.local/ebb/shim":           "dev.local/ebb/shim:444",
		"dev.local/ebb-test/autoscale": "dev.local/ebb-test/autoscale:333",
	}, true, false, []string{"../../config/edge"}, "../../config")
	if err != nil {
		t.Fatal(err)
	}
	var overlay struct {
		Resources, Components []string

		Images  []struct{ Name, NewName, NewTag string }
		Patches []struct{ Patch string }
	}
	if err := yaml.Unmarshal(text, &overlay); err != nil {
		t.Fatal(err)
	}
	if len(overlay.Resources) != 1 || len(overlay.Components) != 1 || overlay.Components[0] != "../../config/edge" {
		t.Errorf("resources %v, components %v", overlay.Resources, overlay.Components)
	}
	if len(overlay.Images) != 3 || overlay.Images[0].Name != "ko://ebb.dev/ebb/activator" || overlay.Images[0].NewTag != "111" {
		t.Errorf("images: %+v", overlay.Images)
	}
	if len(overlay.Patches) != 3 || !strings.Contains(overlay.Patches[0].Patch, "queue-sidecar-image: dev.local/ebb/queue-proxy:222\n  shim-image: dev.local/ebb/shim:444") ||
		!strings.Contains(overlay.Patches[1].Patch, "ebb.test: \"\"") || !strings.Contains(overlay.Patches[2].Patch, "request-metrics-protocol: prometheus") {
		t.Errorf("patches: %+v", overlay.Patches)
	}
}

// The node agent of each of several nodes looks below the node's own group, and knows the node's
// name before it is told to.
func TestNodeAgentsFindThePodsOfTheirNode(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		text, err := Overlay(nil, false, grouped, nil, "node-agent.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var overlay struct {
			Patches []struct {
				Target struct{ Kind, Name string }
				Patch  string
			}
		}
		if err := yaml.Unmarshal(text, &overlay); err != nil {
			t.Fatal(err)
		}
		envs := map[string][]string{}
		for _, p := range overlay.Patches {
			if p.Target.Kind != "DaemonSet" || p.Target.Name != "node-agent" {
				continue
			}
			var operations []struct {
				Op, Path string
				Value    struct{ Name, Value string }
			}
			if err := yaml.Unmarshal([]byte(p.Patch), &operations); err != nil {
				t.Fatal(err)
			}
			for _, o := range operations {
				if o.Op == "add" {
					envs[o.Path] = append(envs[o.Path], o.Value.Name+"="+o.Value.Value)
				}
			}
		}
		got, _ := json.Marshal(envs)
		want := "{}"
		if grouped {
			want = `{"/spec/template/spec/containers/0/env/-":["EBB_CGROUP_ROOT=/$(EBB_NODE_NAME)"],` +
				`"/spec/template/spec/containers/1/env/-":["EBB_NODE_NAME=","EBB_CGROUP_ROOT=/$(EBB_NODE_NAME)"]}`
		}
		if string(got) != want {
			t.Errorf("grouped %v: got %s, want %s", grouped, got, want)
		}
	}
	// The patch counts on the order of the containers, and on the agent's variable.
	text, err := os.ReadFile("../../../../config/core/node-agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var set struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Name string
							Env  []struct{ Name string }
						}
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &set); err != nil || set.Kind != "DaemonSet" {
			continue
		}
		c := set.Spec.Template.Spec.Containers
		if len(c) != 2 || c[0].Name != "agent" || c[1].Name != "guard" || len(c[1].Env) == 0 {
			t.Fatalf("the containers are %+v", c)
		}
		if !strings.Contains(document[:strings.Index(document, "name: guard")], "name: EBB_NODE_NAME") {
			t.Error("the agent is not told the name of its node")
		}
	}
}

func TestSplitPutsKindsAndNamespacesFirst(t *testing.T) {
	first, rest, err := split([]byte("kind: ConfigMap\nmetadata: {name: a}\n---\nkind: CustomResourceDefinition\n---\nkind: Namespace\n---\nkind: Deployment\n"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(first), "kind:") != 2 || !strings.Contains(string(first), "Namespace") || !strings.Contains(string(rest), "Deployment") {
		t.Errorf("first:\n%s\nrest:\n%s", first, rest)
	}
	if _, _, err := split([]byte("a: [")); err == nil {
		t.Error("broken YAML is passed on")
	}
}

func TestTemplatesAreCompleteYAML(t *testing.T) {
	dns, err := render("dns.yaml", map[string]any{"Image": "dev.local/dev/dns:1", "Address": netip.MustParseAddr("10.89.0.10")})
	if err != nil {
		t.Fatal(err)
	}
	istio, err := render("istio.yaml", map[string]any{"Pilot": "p", "Proxy": "x"})
	if err != nil {
		t.Fatal(err)
	}
	envoyGateway, err := render("envoygateway.yaml", map[string]any{"Gateway": "g", "Proxy": "x"})
	if err != nil {
		t.Fatal(err)
	}
	certManager, err := CertManagerManifests("dev.local/dev/certmanager:1")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := MetricsManifests("dev.local/dev/metrics:1")
	if err != nil {
		t.Fatal(err)
	}
	documents := append(strings.Split(string(dns)+"\n---\n"+string(metrics), "\n---\n"), strings.Split(string(certManager), "\n---\n")...)
	for _, doc := range append(documents, string(istio), string(envoyGateway)) {
		var v map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &v); err != nil {
			t.Errorf("%v in:\n%s", err, doc)
		}
	}
	if _, err := render("dns.yaml", map[string]any{}); err == nil {
		t.Error("a missing value is left out silently")
	}
}

func TestCountChanged(t *testing.T) {
	if n := countChanged("a serverside-applied\nb unchanged\n\nc created\n"); n != 2 {
		t.Errorf("got %d", n)
	}
}

const settledJSON = `{"items": [
 {"kind": "Deployment", "metadata": {"name": "activator", "generation": 2}, "spec": {"replicas": 1},
  "status": {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}},
 {"kind": "Deployment", "metadata": {"name": "outside-istio", "generation": 1}, "spec": {"replicas": 1},
  "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}},
 {"kind": "DaemonSet", "metadata": {"name": "node-agent", "generation": 4},
  "status": {"observedGeneration": 4, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1}},
 {"kind": "Gateway", "metadata": {"name": "outside", "generation": 3},
  "status": {"addresses": [{"value": "10.88.3.200"}], "conditions": [{"type": "Programmed", "status": "True", "observedGeneration": 3}]}}]}`

func TestSettledIsOnlyWhatServesItsNewestTemplate(t *testing.T) {
	judge := func(text string, components ...string) ([]string, bool) {
		var all objects
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatal(err)
		}
		return all.settled(components)
	}
	if gateways, settled := judge(settledJSON, "deployment/activator", "daemonset/node-agent"); !settled || len(gateways) != 1 || gateways[0] != "outside at 10.88.3.200" {
		t.Errorf("all is well: %v, %v", gateways, settled)
	}
	if _, settled := judge(settledJSON, "deployment/activator", "deployment/webhook"); settled {
		t.Error("a Deployment that is not there counts as settled")
	}
	for what, change := range map[string][2]string{
		"a template that nobody has seen":  {`"observedGeneration": 2`, `"observedGeneration": 1`},
		"an old pod beside the new one":    {`"replicas": 1, "updatedReplicas": 1`, `"replicas": 2, "updatedReplicas": 1`},
		"a pod that is not available":      {`"availableReplicas": 1`, `"availableReplicas": 0`},
		"a node with an old agent":         {`"updatedNumberScheduled": 1`, `"updatedNumberScheduled": 0`},
		"an agent that is not available":   {`"numberAvailable": 1`, `"numberAvailable": 0`},
		"a Gateway without a program":      {`"status": "True"`, `"status": "False"`},
		"a Gateway of an older generation": {`"observedGeneration": 3`, `"observedGeneration": 2`},
		"no Gateway":                       {`"kind": "Gateway"`, `"kind": "Other"`},
	} {
		if _, settled := judge(strings.Replace(settledJSON, change[0], change[1], 1), "deployment/activator", "daemonset/node-agent"); settled {
			t.Errorf("%s counts as settled", what)
		}
	}
	if _, settled := judge(strings.ReplaceAll(settledJSON, `"observedGeneration": 1`, `"observedGeneration": 0`), "deployment/activator"); settled {
		t.Error("a Gateway whose Deployment is not there yet counts as settled")
	}
}

// What runs here is what users get, but for how pods are found. promtool is Debian's, as Prometheus
// is.
func TestPrometheusTakesTheConfigurationOfUsers(t *testing.T) {
	manifests, err := PrometheusManifests("../../../../config/monitoring/prometheus", "prometheus:1", "targets:1")
	if err != nil {
		t.Fatal(err)
	}
	var files struct{ Data map[string]string }
	for _, doc := range strings.Split(string(manifests), "\n---\n") {
		var v map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &v); err != nil {
			t.Fatalf("%v in:\n%s", err, doc)
		}
		if v["kind"] == "ConfigMap" {
			if err := yaml.Unmarshal([]byte(doc), &files); err != nil {
				t.Fatal(err)
			}
		}
	}
	folder := t.TempDir()
	for name, text := range files.Data {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	config := files.Data["prometheus.yml"]
	if strings.Contains(config, "kubernetes_sd") || strings.Count(config, "http_sd_configs") != 4 || len(files.Data) != 3 {
		t.Errorf("%d files; the configuration is\n%s", len(files.Data), config)
	}
	promtool, err := exec.LookPath("promtool")
	if ci, _ := strconv.ParseBool(os.Getenv("CI")); err != nil && ci {
		t.Fatal("promtool is not installed (make tools installs it)")
	} else if err != nil {
		t.Skip("promtool is not installed (make tools installs it)")
	}
	if out, err := exec.Command(promtool, "check", "config", filepath.Join(folder, "prometheus.yml")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestKnativesManifestsGetImagesSettingsAndRoom(t *testing.T) {
	folder := t.TempDir()
	manifest := `kind: Deployment
metadata: {name: activator}
spec: {template: {spec: {containers: [{image: "ko://knative.dev/serving/cmd/activator", resources: {requests: {cpu: 300m}, limits: {cpu: 1000m}}}]}}}
---
# only a comment
---
kind: ConfigMap
metadata: {name: config-domain}
data: {_example: "# text"}
---
kind: ConfigMap
metadata: {name: config-deployment}
data: {_example: "# text"}
`
	if err := os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	refs := map[string]string{"dev.local/knative/activator": "dev.local/knative/activator:1"}
	made, err := KnativeManifests(refs, "dev.local/dev/standin:2", false, folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"image: dev.local/knative/activator:1", "image: dev.local/dev/standin:2", "cpu: 1000m", "cpu: 20m", `ebb.test: ""`, "queue-sidecar-cpu-request: 5m"} {
		if !strings.Contains(string(made), want) {
			t.Errorf("%q is missing:\n%s", want, made)
		}
	}
	if strings.Contains(string(made), "300m") {
		t.Errorf("a request is as large as before:\n%s", made)
	}
	shipped, err := KnativeManifests(refs, "dev.local/dev/standin:2", true, folder)
	if text := string(shipped); err != nil || !strings.Contains(text, "cpu: 300m") || !strings.Contains(text, `ebb.test: ""`) || strings.Contains(text, "cpu-request") {
		t.Errorf("as shipped, with %v:\n%s", err, text)
	}
	if _, err := KnativeManifests(nil, "", false, folder); err == nil || !strings.Contains(err.Error(), "cmd/activator") {
		t.Errorf("an image is missing: %v", err)
	}
}
