// Command monitoring writes the rules and dashboards of config/monitoring.
//
// Owns: the recording rules, the alerts and the dashboards, as they are written here once. Reads:
// nothing. Writes: the rules as a file for Prometheus and as objects for its operator, and the
// dashboards as Grafana imports them. Never: runs in a cluster.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

const generated = "# Made by `go run ./monitoring`.\n"

func main() {
	out := flag.String("out", "config/monitoring", "folder to write to")
	flag.Parse()
	if err := write(*out); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

func write(out string) error {
	all, err := files()
	if err != nil {
		return err
	}
	for name, text := range all {
		file := filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files are the contents of all files by their names.
func files() (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, set := range []struct {
		name, folder, file string
		groups             []group
	}{
		{"ebb", ".", "rules", groups},
		{"ebb-knative-1.18-names", "knative-1.18", "rules-knative-1.18", oldNames},
	} {
		spec := map[string]any{"groups": set.groups}
		plain, err := yaml.Marshal(spec)
		if err != nil {
			return nil, fmt.Errorf("write rules %s: %w", set.name, err)
		}
		object, err := yaml.Marshal(map[string]any{
			"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
			"metadata": map[string]any{"name": set.name, "namespace": "knative-serving"}, "spec": spec,
		})
		if err != nil {
			return nil, fmt.Errorf("write rules %s: %w", set.name, err)
		}
		all[filepath.Join("prometheus", set.file+".yml")] = append([]byte(generated), plain...)
		all[filepath.Join(set.folder, "rules.yaml")] = append([]byte(generated), object...)
	}
	for _, d := range dashboards {
		text, err := d.render()
		if err != nil {
			return nil, fmt.Errorf("write dashboard %s: %w", d.file, err)
		}
		all[filepath.Join("dashboards", d.file+".json")] = text
	}
	return all, nil
}
