package install

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// knativeSource is the prefix of images in Knative's manifests.
const knativeSource = "ko://knative.dev/serving/cmd/"

// settings are values in ConfigMaps, by name and key.
type settings map[string]map[string]any

// knativeSettings are what a person would set after Knative's installation.
var knativeSettings = settings{
	"config-domain": {Domain: ""},
	"config-network": {"ingress-class": "standin.ingress.networking.knative.dev",
		"autocreate-cluster-domain-claims": "true"},
}

// knativeRoom are settings with which twenty Services fit this node. The CPU requests of Knative's
// programs are lowered, too.
var knativeRoom = settings{
	"config-autoscaler": {"scale-to-zero-grace-period": "6s"},
	"config-deployment": {"queue-sidecar-cpu-request": "5m"},
}

// KnativeManifests reads the manifests in folders of Knative's modules and adds the program that
// stands in for an ingress plugin. Shipped leaves CPU requests and grace period as they are.
func KnativeManifests(refs map[string]string, standin string, shipped bool, folders ...string) ([]byte, error) {
	var out bytes.Buffer
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, doc := range bytes.Split(text, []byte("\n---\n")) {
				object := map[string]any{}
				if err := yaml.Unmarshal(doc, &object); err != nil {
					return fmt.Errorf("read %s: %w", path, err)
				}
				if len(object) == 0 {
					continue
				}
				adapt(object, refs, shipped)
				made, err := yaml.Marshal(object)
				if err != nil {
					return err
				}
				out.Write(append(made, "\n---\n"...))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	plugin, err := render("standin.yaml", map[string]any{"Image": standin})
	if err != nil {
		return nil, err
	}
	out.Write(plugin)
	if i := bytes.Index(out.Bytes(), []byte(knativeSource)); i >= 0 {
		return nil, fmt.Errorf("there is no image for %.60s", out.Bytes()[i:])
	}
	return out.Bytes(), nil
}

// adapt puts images and settings into an object, and low requests unless it stays as shipped.
func adapt(object map[string]any, refs map[string]string, shipped bool) {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if data, ok := object["data"].(map[string]any); ok && object["kind"] == "ConfigMap" {
		maps.Copy(data, knativeSettings[name])
		if !shipped {
			maps.Copy(data, knativeRoom[name])
		}
	}
	replace(object, func(key string, value string) string {
		if program, is := strings.CutPrefix(value, knativeSource); is {
			if ref := refs["dev.local/knative/"+program]; ref != "" {
				return ref
			}
		}
		if key == "cpu" && !shipped && object["kind"] == "Deployment" && slices.Contains([]string{"300m", "100m", "50m", "30m"}, value) {
			return "20m"
		}
		return value
	})
}

// replace changes all texts below a value.
func replace(value any, with func(key, value string) string) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if text, is := inner.(string); is {
				v[key] = with(key, text)
			} else {
				replace(inner, with)
			}
		}
	case []any:
		for _, inner := range v {
			replace(inner, with)
		}
	}
}
