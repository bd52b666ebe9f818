package install

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// PrometheusManifests returns the manifests of Prometheus, which scrapes and evaluates as the files
// in folder say, config/monitoring/prometheus.
func PrometheusManifests(folder, image, targets string) ([]byte, error) {
	names, err := filepath.Glob(filepath.Join(folder, "rules*.yml"))
	if err != nil {
		return nil, err
	}
	config, err := prometheusConfig(filepath.Join(folder, "prometheus.yml"), names)
	if err != nil {
		return nil, err
	}
	files := map[string]string{"prometheus.yml": string(config)}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files[filepath.Base(name)] = string(text)
	}
	data, err := json.Marshal(files)
	if err != nil {
		return nil, err
	}
	return render("prometheus.yaml", map[string]any{"Prometheus": image, "Targets": targets,
		"Files": string(data), "Digest": fmt.Sprintf("%x", sha256.Sum256(data))[:12]})
}

// prometheusConfig is the configuration that users get, with three changes: pods are found by the
// program of dev/targets, because Debian's Prometheus cannot, every file of rules counts, and tests
// need not wait for a quarter of a minute.
func prometheusConfig(file string, rules []string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var config struct {
		Global        map[string]any   `json:"global"`
		RuleFiles     []string         `json:"rule_files"`
		ScrapeConfigs []map[string]any `json:"scrape_configs"`
	}
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	config.Global = map[string]any{"scrape_interval": "5s", "evaluation_interval": "5s"}
	config.RuleFiles = nil
	for _, name := range rules {
		config.RuleFiles = append(config.RuleFiles, filepath.Base(name))
	}
	for _, job := range config.ScrapeConfigs {
		discovery, err := json.Marshal(job["kubernetes_sd_configs"])
		if err != nil {
			return nil, err
		}
		var found []struct {
			Role       string
			Namespaces struct{ Names []string }
			Selectors  []struct{ Role, Label string }
		}
		if err := json.Unmarshal(discovery, &found); err != nil || len(found) != 1 || found[0].Role != "pod" {
			return nil, fmt.Errorf("%s: job %v: not one discovery of pods: %s", file, job["job_name"], discovery)
		}
		ask := url.Values{}
		for _, namespace := range found[0].Namespaces.Names {
			ask.Set("namespace", namespace)
		}
		for _, selector := range found[0].Selectors {
			ask.Set("label", selector.Label)
		}
		delete(job, "kubernetes_sd_configs")
		job["http_sd_configs"] = []any{map[string]any{"url": "http://127.0.0.1:9091/?" + ask.Encode(), "refresh_interval": "5s"}}
	}
	return yaml.Marshal(config)
}
