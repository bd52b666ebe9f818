// Package release turns config/ into what users install: manifests, a Helm chart and the files that
// go with them.
//
// Owns: the form of a release's files; chart/ has what is written by hand of the Helm chart. Reads:
// config/, samples/, binaries. Writes: the folder of the release. Never: has an object of Ebb of
// its own; what it changes in config/ is names of images, the version, and what the chart's values
// say.
package release

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Source is the prefix of images in config/, which names the package that an image is built from.
const Source = "ko://ebb.dev/ebb/"

// Object is one object of the manifests.
type Object map[string]any

func (o Object) text(path ...string) string {
	var at any = map[string]any(o)
	for _, p := range path {
		m, _ := at.(map[string]any)
		at = m[p]
	}
	s, _ := at.(string)
	return s
}

// Kind, Name and Namespace are those of the object.
func (o Object) Kind() string      { return o.text("kind") }
func (o Object) Name() string      { return o.text("metadata", "name") }
func (o Object) Namespace() string { return o.text("metadata", "namespace") }

// ID tells objects apart.
func (o Object) ID() string {
	return o.text("apiVersion") + " " + o.Kind() + " " + o.Namespace() + "/" + o.Name()
}

// Manifests are the objects of a release. Apart are those of the folders below config/ that
// config/kustomization.yaml does not name, by folder: not everybody wants or can have them.
type Manifests struct {
	Default, HA, Edge, EnvoyGateway []Object
	Apart                           map[string][]Object
}

// Render reads config/ as `kubectl kustomize` does, with the version as a label and the images'
// names filled in. scratch is a folder for overlays.
func Render(config, scratch, version string, images map[string]string) (Manifests, error) {
	render := func(name string, resources, components []string) ([]Object, error) {
		text, err := kustomize(filepath.Join(scratch, name), config, version, resources, components)
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", config, err)
		}
		for component, ref := range images {
			// A name may begin another's.
			for _, end := range []string{"\n", "\"", "'"} {
				text = bytes.ReplaceAll(text, []byte(Source+component+end), []byte(ref+end))
			}
		}
		if _, rest, found := bytes.Cut(text, []byte(Source)); found {
			name, _, _ := bytes.Cut(rest, []byte("\n"))
			return nil, fmt.Errorf("config/ names the image %s%s, which is not one of the components", Source, name)
		}
		return Parse(text)
	}
	var m Manifests
	var err error
	if m.Default, err = render("default", []string{"."}, nil); err != nil {
		return m, err
	}
	if m.HA, err = render("ha", []string{"."}, []string{"ha"}); err != nil {
		return m, err
	}
	if m.Edge, err = render("edge", []string{"."}, []string{"edge"}); err != nil {
		return m, err
	}
	if m.EnvoyGateway, err = render("envoy-gateway", []string{"."}, []string{"envoy-gateway"}); err != nil {
		return m, err
	}
	folders, err := apart(config)
	if err != nil {
		return m, err
	}
	m.Apart = map[string][]Object{}
	for _, folder := range folders {
		name := strings.ReplaceAll(folder, string(filepath.Separator), "-")
		if m.Apart[name], err = render("apart-"+name, []string{folder}, nil); err != nil {
			return m, err
		}
	}
	return m, nil
}

type kustomization struct {
	Kind      string   `json:"kind"`
	Resources []string `json:"resources"`
}

func readKustomization(folder string) (k kustomization, err error) {
	text, err := os.ReadFile(filepath.Join(folder, "kustomization.yaml"))
	if err != nil {
		return k, err
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		return k, fmt.Errorf("%s/kustomization.yaml: %w", folder, err)
	}
	return k, nil
}

// apart finds the folders below config/ with a kustomization that the one above does not name.
func apart(folder string) (folders []string, err error) {
	above, err := readKustomization(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() || slices.Contains(above.Resources, e.Name()) {
			continue
		}
		k, err := readKustomization(filepath.Join(folder, e.Name()))
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err
		case k.Kind == "Component":
			continue
		default:
			folders = append(folders, e.Name())
		}
		below, err := apart(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, b := range below {
			folders = append(folders, filepath.Join(e.Name(), b))
		}
	}
	return folders, nil
}

func kustomize(overlay, config, version string, resources, components []string) ([]byte, error) {
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		return nil, err
	}
	overlay, err := filepath.EvalSymlinks(overlay)
	if err != nil {
		return nil, err
	}
	if config, err = filepath.Abs(config); err != nil {
		return nil, err
	}
	relative, err := filepath.Rel(overlay, config)
	if err != nil {
		return nil, err
	}
	below := func(names []string) (paths []string) {
		for _, n := range names {
			paths = append(paths, filepath.Join(relative, n))
		}
		return paths
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": below(resources), "components": below(components),
		"labels": []any{map[string]any{"pairs": map[string]string{"app.kubernetes.io/version": version}}},
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), text, 0o644); err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // namespaces and definitions first, webhooks last
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), overlay)
	if err != nil {
		return nil, err
	}
	return objects.AsYaml()
}

// Parse reads the objects of a file with several YAML documents.
func Parse(text []byte) (objects []Object, err error) {
	for _, document := range strings.Split("\n"+string(text), "\n---") {
		var o Object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return nil, fmt.Errorf("read the manifests: %w", err)
		}
		if len(o) > 0 {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// isCRD says whether the object belongs into ebb-crds.yaml.
func isCRD(o Object) bool { return o.Kind() == "CustomResourceDefinition" }

// Split divides objects into the definitions and the rest.
func Split(objects []Object) (definitions, rest []Object) {
	for _, o := range objects {
		if isCRD(o) {
			definitions = append(definitions, o)
		} else {
			rest = append(rest, o)
		}
	}
	return definitions, rest
}

// YAML writes objects as `kubectl apply -f` reads them.
func YAML(heading string, objects []Object) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# %s\n", heading)
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}
