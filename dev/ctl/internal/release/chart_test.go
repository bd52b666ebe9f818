package release

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/place"
)

const (
	config   = "../../../../config"
	registry = "registry.example.com/ebb"
)

// once renders for all tests.
var once = sync.OnceValues(func() (Manifests, error) {
	scratch, err := os.MkdirTemp("", "ebb-release-")
	if err != nil {
		return Manifests{}, err
	}
	defer os.RemoveAll(scratch)
	return render(scratch)
})

// render takes each folder of the checkout for a component, with a made-up digest.
func render(scratch string) (Manifests, error) {
	entries, err := os.ReadDir(filepath.Dir(config))
	if err != nil {
		return Manifests{}, err
	}
	images := map[string]string{}
	for _, e := range entries {
		images[e.Name()] = registry + "/" + e.Name() + ":v0.1.0@sha256:" + strings.Repeat("0", 64)
	}
	images["cmd/ebb"] = registry + "/cmd/ebb:v0.1.0@sha256:" + strings.Repeat("0", 64)
	return Render(config, scratch, "v0.1.0", images)
}

func rendered(t *testing.T) Manifests {
	t.Helper()
	m, err := once()
	if err != nil {
		t.Fatal(err)
	}
	m.Apart = maps.Clone(m.Apart)
	return m
}

// helmProgram builds Helm as the dev cluster's programs are built.
func helmProgram(t *testing.T) string {
	t.Helper()
	programs, _, err := build.Module{Dir: "../../../helm"}.Programs(t.Context(), place.Of("", os.Getenv).Cache, filepath.Join(t.TempDir(), "log"), nil, "helm")
	if err != nil {
		t.Fatal(err)
	}
	return programs["helm"]
}

// helm puts the chart into a folder and returns what runs Helm with it.
func helm(t *testing.T, m Manifests) func(args ...string) (string, error) {
	t.Helper()
	program, dir := helmProgram(t), t.TempDir()
	chart, err := MakeChart(m, "v0.1.0", registry)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range chart {
		file := filepath.Join(dir, "ebb", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(args ...string) (string, error) {
		cmd := exec.CommandContext(context.Background(), program, append([]string{args[0], "ebb", filepath.Join(dir, "ebb"), "--namespace", "knative-serving"}, args[1:]...)...)
		if args[0] == "lint" {
			cmd.Args = slices.Delete(cmd.Args, 2, 3)
		}
		cmd.Env = []string{"HOME=" + dir, "PATH=/usr/bin:/bin"}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// same compares objects after a round through YAML, without those that Helm makes by itself.
func same(t *testing.T, what string, got string, want []Object) {
	t.Helper()
	have := map[string]Object{}
	objects, err := Parse([]byte(got))
	if err != nil {
		t.Fatalf("%s: %v in\n%s", what, err, got)
	}
	for _, o := range objects {
		if have[o.ID()] != nil {
			t.Errorf("%s: %s is there twice", what, o.ID())
		}
		have[o.ID()] = o
	}
	for _, o := range want {
		if o.Kind() == "Namespace" {
			continue
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var again Object
		if err := yaml.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(have[o.ID()], again) {
			rendered, _ := yaml.Marshal(have[o.ID()])
			t.Errorf("%s: %s is\n%s\nwant\n%s", what, o.ID(), rendered, text)
		}
		delete(have, o.ID())
	}
	for id := range have {
		t.Errorf("%s: %s is in the chart only", what, id)
	}
}

func TestTheChartRendersWhatTheManifestsSay(t *testing.T) {
	m := rendered(t)
	run := helm(t, m)
	for what, row := range map[string]struct {
		args []string
		want []Object
	}{
		"ebb.yaml":               {nil, m.Default},
		"ebb-ha.yaml":            {[]string{"--set", "highAvailability=true"}, m.HA},
		"ebb-envoy-gateway.yaml": {[]string{"--set", "gateways.class=envoy-gateway"}, m.EnvoyGateway},
	} {
		got, err := run(append([]string{"template", "--set", "crds.keep=false"}, row.args...)...)
		if err != nil {
			t.Fatalf("%s: %v: %s", what, err, got)
		}
		same(t, what, got, row.want)
	}
	if said, err := run("lint", "--strict"); err != nil {
		t.Errorf("lint: %v: %s", err, said)
	}
}

func TestValuesReachTheObjectsTheyName(t *testing.T) {
	m := rendered(t)
	run := helm(t, m)
	got, err := run("template", "--set", "domain=apps.example.org,standby=auto,registry=registry.example.org/mirror,replicas.autoscaler=2,replicas.activator=4",
		"--set", "resources.activator.limits.memory=2Gi,env.activator.GOMEMLIMIT=1800MiB,imagePullSecrets[0].name=pull,gateways.create=false",
		"--set", "gateways.external[0].gateway=infra/public,gateways.local[0].gateway=infra/private,settings.config-autoscaler.stable-window=30s",
		"--set-json", `settings.config-gc={"max-non-active-revisions":2000000}`, "--set-json", `env.activator={"EBB_HOLD_BYTES":1073741824}`)
	if err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	objects, err := Parse([]byte(got))
	if err != nil {
		t.Fatal(err)
	}
	find := func(kind, name string) Object {
		t.Helper()
		i := slices.IndexFunc(objects, func(o Object) bool { return o.Kind() == kind && o.Name() == name })
		if i < 0 {
			t.Fatalf("there is no %s %s", kind, name)
		}
		return objects[i]
	}
	for _, row := range []struct{ name, key, want string }{
		{"config-domain", "apps.example.org", ""},
		{"config-autoscaler", "standby", "auto"},
		{"config-autoscaler", "stable-window", "30s"},
		{"config-gc", "max-non-active-revisions", "2000000"},
		{"config-deployment", "queue-sidecar-image", "registry.example.org/mirror/queue-proxy:v0.1.0@sha256:" + strings.Repeat("0", 64)},
		{"config-gateway", "external-gateways", "- gateway: infra/public"},
		{"config-gateway", "local-gateways", "- gateway: infra/private"},
	} {
		data, _ := find("ConfigMap", row.name)["data"].(map[string]any)
		if value, set := data[row.key]; !set || value != row.want {
			t.Errorf("%s in %s is %v, want %q", row.key, row.name, value, row.want)
		}
		if _, example := data["_example"]; !example {
			t.Errorf("%s has lost its example", row.name)
		}
	}
	if n := find("Deployment", "autoscaler")["spec"].(map[string]any)["replicas"]; n != float64(2) && n != int64(2) {
		t.Errorf("the autoscaler has %v replicas", n)
	}
	if n := find("HorizontalPodAutoscaler", "activator")["spec"].(map[string]any)["minReplicas"]; n != float64(4) && n != int64(4) {
		t.Errorf("the activator has at least %v replicas", n)
	}
	activator, err := yaml.Marshal(find("Deployment", "activator"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"memory: 2Gi", "memory: 60Mi", "value: 1800MiB", `value: "1073741824"`, "registry.example.org/mirror/activator:", "imagePullSecrets:\n      - name: pull"} {
		if !strings.Contains(string(activator), want) {
			t.Errorf("the activator's Deployment lacks %q:\n%s", want, activator)
		}
	}
	if slices.ContainsFunc(objects, func(o Object) bool { return o.Kind() == "Gateway" }) {
		t.Error("gateways.create=false leaves Gateways in")
	}
	for _, o := range objects {
		if isCRD(o) && Object(o).text("metadata", "annotations", "helm.sh/resource-policy") != "keep" {
			t.Errorf("helm uninstall would delete %s", o.Name())
		}
	}
}

// A folder that is installed apart may bring a component, and text that looks like a template.
func TestAFolderApartIsAValueOfItsOwn(t *testing.T) {
	m := rendered(t)
	more, err := Parse([]byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: extra, namespace: knative-serving}
spec:
  template:
    spec:
      containers:
      - {name: extra, image: registry.example.com/ebb/extra:v0.1.0, env: [{name: SIZE, value: "1"}], resources: {limits: {memory: 1Gi}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: charts, namespace: knative-serving}
data: {chart.json: 'legend {{pod}} }} {{'}
`))
	if err != nil {
		t.Fatal(err)
	}
	m.Apart["extra-things"] = more
	run := helm(t, m)
	got, err := run("template", "--set", "crds.keep=false")
	if err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	same(t, "switched off", got, m.Default)
	if got, err = run("template", "--set", "crds.keep=false,extra-things=true"); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	same(t, "switched on", got, slices.Concat(m.Default, more))
	got, err = run("template", "--set", "extra-things=true,replicas.extra=2,env.extra.SIZE=7,resources.extra.limits.memory=2Gi")
	if err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	for _, want := range []string{"replicas: 2", `value: "7"`, "memory: 2Gi"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q", want)
		}
	}
}

func TestFoldersThatNobodyNamesAreFound(t *testing.T) {
	root := t.TempDir()
	for folder, text := range map[string]string{".": "resources: [core]", "core": "resources: [x.yaml]", "ha": "kind: Component", "extra": "resources: [y.yaml]",
		"extra/more": "resources: [z.yaml]", "extra/part": "", "group/one": "resources: [z.yaml]"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(root, folder, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := apart(root); err != nil || !slices.Equal(got, []string{"extra", "extra/more", "group/one"}) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestTheSchemaRefusesWrongValues(t *testing.T) {
	run := helm(t, rendered(t))
	for set, want := range map[string]string{
		"domian=example.com":                        "domian",
		"domain=Not A Domain":                       "domain",
		"replicas.activator=0":                      "replicas/activator",
		"replicas.nobody=2":                         "nobody",
		"resources.activator.limits.memory=lots":    "memory",
		"resources.activator.limit.memory=1Gi":      "limit",
		"standby=maybe":                             "standby",
		"settings.config-nothing.key=1":             "config-nothing",
		"env.activator.PATH=/bin":                   "PATH",
		"gateways.external[0].gateway=no-namespace": "gateway",
		"gateways.class=cilium":                     "set gateways.external and gateways.local",
		"registry=registry.example.com/ebb/":        "registry",
	} {
		if said, err := run("template", "--set", set); err == nil || !strings.Contains(said, want) {
			t.Errorf("--set %s: %v, %s", set, err, said[:min(len(said), 400)])
		}
	}
	if said, err := run("template", "--namespace", "default"); err == nil || !strings.Contains(said, "knative-serving") {
		t.Errorf("in another namespace: %v, %s", err, said[:min(len(said), 400)])
	}
}
