package settings

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/configmap"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/test/golden"
)

const shippedDir = "../config/core/configmaps"

// pathOf is where a ConfigMap is shipped. That of the courier is installed with it.
func pathOf(name string) string {
	if name == CourierName {
		return "../config/courier/config-courier.yaml"
	}
	return filepath.Join(shippedDir, name+".yaml")
}

// components are the label values by which the ConfigMap webhook selects the maps it checks.
var components = map[string]string{
	AutoscalerName: "autoscaler", DefaultsName: "controller", DeploymentName: "controller", DomainName: "controller",
	FeaturesName: "controller", GCName: "controller", NetworkName: "networking", ObservabilityName: "observability",
	TracingName: "tracing", LoggingName: "logging", LeaderElectionName: "controller", CertManagerName: "net-certmanager",
	GatewayName: "networking", CourierName: "networking",
}

func wrap(text, prefix string) string {
	var out strings.Builder
	line := prefix
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > 100 {
			out.WriteString(strings.TrimRight(line, " ") + "\n")
			line = prefix
		}
		line += " " + word
	}
	out.WriteString(line + "\n")
	return out.String()
}

func indent(text, prefix string) string {
	return prefix + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+prefix) + "\n"
}

// example is the documentation that the shipped ConfigMap carries; read as YAML it is a ConfigMap's
// data with every default spelled out.
func example(name string) string {
	var b strings.Builder
	b.WriteString("# Documentation. Nothing below has any effect: to set a key, put it next to _example.\n")
	for _, k := range keysOf(name) {
		b.WriteString("\n" + wrap(k.effect, "#"))
		b.WriteString(wrap("Legal: "+k.legal+".", "#"))
		switch {
		case strings.ContainsAny(k.name, "<>") && name == DomainName:
			b.WriteString("# example.com: |\n#   selector:\n#     app: shop\n")
		case k.Default == "":
			fmt.Fprintf(&b, "# %s: \"\"\n", k.name)
		case strings.Contains(k.Default, "\n") || strings.Contains(k.Default, `"`):
			fmt.Fprintf(&b, "%s: |\n%s", k.name, indent(k.Default, "  "))
		default:
			fmt.Fprintf(&b, "%s: %q\n", k.name, k.Default)
		}
	}
	return b.String()
}

func keysOf(name string) []key {
	for _, one := range sections(&Snapshot{}) {
		if one.name == name {
			return one.keys
		}
	}
	return nil
}

func shipped(name string) []byte {
	var b bytes.Buffer
	b.WriteString("# Made from settings/keys.go by `go test ./settings -update`.\napiVersion: v1\nkind: ConfigMap\nmetadata:\n")
	fmt.Fprintf(&b, "  name: %s\n  namespace: knative-serving\n", name)
	fmt.Fprintf(&b, "  labels:\n    app.kubernetes.io/name: knative-serving\n    app.kubernetes.io/component: %s\n", components[name])
	if name == TracingName {
		b.WriteString("data: {}\n")
		return b.Bytes()
	}
	text := example(name)
	fmt.Fprintf(&b, "  annotations:\n    knative.dev/example-checksum: %q\n", configmap.Checksum(text))
	b.WriteString("data:\n")
	if name == CourierName {
		b.WriteString("  enabled: \"true\"\n")
	}
	if name == DeploymentName {
		b.WriteString("  # Replaced by the addresses of the built images when Ebb is installed.\n" +
			"  queue-sidecar-image: ko://ebb.dev/ebb/queue-proxy\n" +
			"  shim-image: ko://ebb.dev/ebb/shim\n")
	}
	b.WriteString("  _example: |\n" + indent(text, "    "))
	return []byte(strings.ReplaceAll(b.String(), "    \n", "\n"))
}

func TestShippedConfigMapsAreMadeFromTheKeys(t *testing.T) {
	for _, name := range configMaps {
		golden.File(t, pathOf(name), string(shipped(name)))
	}
	files, err := filepath.Glob(filepath.Join(shippedDir, "config-*.yaml"))
	if err != nil || len(files) != len(configMaps)-1 {
		t.Errorf("%s holds %d ConfigMaps, want %d (%v)", shippedDir, len(files), len(configMaps)-1, err)
	}
}

func readShipped(t *testing.T) map[string]corev1.ConfigMap {
	t.Helper()
	maps := map[string]corev1.ConfigMap{}
	for _, name := range configMaps {
		raw, err := os.ReadFile(pathOf(name))
		if err != nil {
			t.Fatal(err)
		}
		var m corev1.ConfigMap
		if err := yaml.UnmarshalStrict(raw, &m); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		maps[name] = m
	}
	return maps
}

func TestShippedConfigMapsParseToTheDefaults(t *testing.T) {
	data := map[string]map[string]string{}
	for name, m := range readShipped(t) {
		if m.Name != name || m.Namespace != "knative-serving" {
			t.Errorf("%s is called %s/%s", name, m.Namespace, m.Name)
		}
		if err := VerifyExample(name, m.Annotations, m.Data); err != nil {
			t.Error(err)
		}
		data[name] = m.Data
	}
	got, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Deployment.QueueSidecarImage = "ko://ebb.dev/ebb/queue-proxy"
	want.Deployment.ShimImage = "ko://ebb.dev/ebb/shim"
	want.Courier.Enabled = true // where it is installed
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("shipped ConfigMaps differ from Default (-want +got):\n%s", d)
	}
}

// The _example of each map, taken as the map's data, must say exactly what saying nothing means.
func TestExamplesSpellOutTheDefaults(t *testing.T) {
	data := map[string]map[string]string{DeploymentName: {"queue-sidecar-image": "x"}}
	for name, m := range readShipped(t) {
		if m.Data[ExampleKey] == "" {
			continue
		}
		spelled := map[string]string{}
		if err := yaml.UnmarshalStrict([]byte(m.Data[ExampleKey]), &spelled); err != nil {
			t.Fatalf("_example of %s: %v", name, err)
		}
		if name == DeploymentName {
			spelled["queue-sidecar-image"] = "x"
		}
		data[name] = spelled
	}
	got, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Deployment.QueueSidecarImage = "x"
	want.Logging.Raw = `{"level": "info"}`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the examples differ from Default (-want +got):\n%s", d)
	}
}

func TestSettingsPageListsEveryKey(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Settings\n\n<!-- Made from settings/keys.go by `go test ./settings -update`. -->\n\n" +
		"Ebb is configured by ConfigMaps in the namespace `knative-serving`. Ebb reads every key live: a change takes effect as\n" +
		"soon as it is stored, without a restart, unless its row says that a component restarts. The webhook rejects an invalid\n" +
		"value with its key and the reason. If one gets past it, the last valid content of that ConfigMap stays in force and the\n" +
		"error is logged. So does that of a ConfigMap that is deleted, until a component restarts. An absent key has its default. An\n" +
		"older spelling of a key is used only if the key itself is absent.\n\n" +
		"Settings that change pods take effect later: the keys of queue-proxy (`queue-sidecar-*`, its request log, metrics and\n" +
		"traces), `autodetect-http2`, the default affinity and the like apply to new revisions, and to a running revision after\n" +
		"it next scales to zero. No setting restarts a running pod, except system-internal-tls when it is switched on.\n")
	cell := func(s string) string {
		return strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(s), "|", "\\|"), "\n", "<br>")
	}
	code := func(s string) string {
		if s == "" {
			return "unset"
		}
		return "`" + strings.Join(strings.Split(strings.TrimSpace(s), "\n"), "`<br>`") + "`"
	}
	for _, one := range sections(&Snapshot{}) {
		if len(one.keys) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| Key | Default | Legal values | Effect |\n|---|---|---|---|\n", one.name)
		for _, k := range one.keys {
			name := code(k.name)
			for _, l := range k.legacy {
				name += " (older: " + code(l) + ")"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, code(k.Default), cell(k.legal), cell(k.effect))
		}
	}
	b.WriteString("\n`config-tracing` may exist and has no effect.\n")
	golden.File(t, "../docs/settings.md", b.String())
}

func TestEveryKeyIsListedOnce(t *testing.T) {
	for _, one := range sections(&Snapshot{}) {
		seen := map[string]bool{}
		for _, k := range one.keys {
			for _, name := range append([]string{k.name}, k.legacy...) {
				if seen[name] {
					t.Errorf("%s %s is listed twice", one.name, name)
				}
				seen[name] = true
			}
			if k.effect == "" || k.legal == "" || (k.set == nil) == (k.each == nil) {
				t.Errorf("%s %s lacks a description or a parser", one.name, k.name)
			}
		}
	}
}

var legal = regexp.MustCompile(`^[-._a-zA-Z0-9]+$`)

func TestKeysAreLegalConfigMapKeys(t *testing.T) {
	for _, name := range configMaps {
		for _, k := range keysOf(name) {
			for _, n := range append([]string{strings.NewReplacer("<", "", ">", "").Replace(k.name)}, k.legacy...) {
				if !legal.MatchString(n) {
					t.Errorf("%q cannot be a key of a ConfigMap", n)
				}
			}
		}
	}
}
