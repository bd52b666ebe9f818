package release

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Chart is a Helm chart: its files by name.
type Chart map[string][]byte

// byHand are the files of the chart that do not follow from config/. Without "all:", those whose
// names begin with an underscore would be left out.
//
//go:embed all:chart
var byHand embed.FS

// placeholder is the version in chart/Chart.yaml.
const placeholder = "0.0.0"

// MakeChart makes the chart of a version, such as v0.1.0, whose images are below a registry. With
// its default values it renders m.Default.
func MakeChart(m Manifests, version, registry string) (Chart, error) {
	c := charting{registry: registry, values: newValues(m)}
	chart, err := written(version)
	if err != nil {
		return nil, err
	}
	ha := map[string]Object{}
	for _, o := range m.HA {
		ha[o.ID()] = o
	}
	for _, o := range m.Default {
		if err := c.add(chart, o, ha[o.ID()]); err != nil {
			return nil, err
		}
		delete(ha, o.ID())
	}
	for _, id := range slices.Sorted(maps.Keys(ha)) {
		if err := c.add(chart, nil, ha[id]); err != nil {
			return nil, err
		}
	}
	if err := c.addEnvoyGateway(chart, m); err != nil {
		return nil, err
	}
	for _, folder := range slices.Sorted(maps.Keys(m.Apart)) {
		for _, o := range m.Apart[folder] {
			text, err := c.template(o)
			if err != nil {
				return nil, err
			}
			chart.append("templates/"+folder+".yaml", guard(fmt.Sprintf("index .Values %q", folder), text))
		}
	}
	if chart["values.yaml"], chart["values.schema.json"], err = c.values.files(registry); err != nil {
		return nil, err
	}
	return chart, nil
}

// written are the files of the chart that are written by hand, for a version.
func written(version string) (Chart, error) {
	chart := Chart{}
	err := fs.WalkDir(byHand, "chart", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		chart[strings.TrimPrefix(path, "chart/")], err = byHand.ReadFile(path)
		return err
	})
	chart["Chart.yaml"] = bytes.ReplaceAll(chart["Chart.yaml"], []byte(placeholder), []byte(strings.TrimPrefix(version, "v")))
	return chart, err
}

type charting struct {
	registry string
	values   *values
}

func (chart Chart) append(name, text string) {
	chart[name] = append(append(chart[name], "---\n"...), text...)
}

func guard(condition, text string) string {
	return "{{- if " + condition + " }}\n" + text + "{{- end }}\n"
}

// add puts an object into the chart, in the form that config/ has and in that of config/ha. Either
// may be missing.
func (c charting) add(chart Chart, normal, ha Object) error {
	some := normal
	if some == nil {
		some = ha
	}
	var texts [2]string
	for i, o := range []Object{normal, ha} {
		if o == nil {
			continue
		}
		text, err := c.template(o)
		if err != nil {
			return err
		}
		texts[i] = text
	}
	text := texts[0]
	switch {
	case normal == nil:
		text = guard(".Values.highAvailability", texts[1])
	case texts[0] != texts[1]:
		text = "{{- if .Values.highAvailability }}\n" + texts[1] + "{{- else }}\n" + texts[0] + "{{- end }}\n"
	}
	file := "templates/core.yaml"
	switch some.Kind() {
	case "Namespace":
		return nil // Helm's --create-namespace
	case "CustomResourceDefinition":
		file, text = "templates/crds.yaml", guard(".Values.crds.install", text)
	case "Gateway":
		file, text = "templates/gateways.yaml", guard(`and .Values.gateways.create (ne .Values.gateways.class "envoy-gateway")`, text)
	}
	chart.append(file, text)
	return nil
}

// addEnvoyGateway adds what config/envoy-gateway changes.
func (c charting) addEnvoyGateway(chart Chart, m Manifests) error {
	shipped := map[string]bool{}
	for _, o := range m.Default {
		shipped[o.ID()] = true
	}
	for _, o := range m.EnvoyGateway {
		if o.Kind() == "ConfigMap" && o.Name() == "config-gateway" {
			data := clone(o)["data"].(map[string]any)
			delete(data, "_example")
			text, err := yaml.Marshal(data)
			if err != nil {
				return err
			}
			chart["templates/_helpers.tpl"] = fmt.Appendf(chart["templates/_helpers.tpl"], "{{- define \"ebb.envoyGateway\" }}\n%s{{ end -}}\n", text)
		}
		if shipped[o.ID()] && o.Kind() != "Gateway" {
			continue
		}
		text, err := c.template(o)
		if err != nil {
			return err
		}
		chart.append("templates/gateways.yaml", guard(`and .Values.gateways.create (eq .Values.gateways.class "envoy-gateway")`, text))
	}
	return nil
}

// hole marks a place of an object that a template fills.
type hole struct {
	// whole replaces the line of the hole, with the key and the indentation of that line; inline
	// replaces the hole itself.
	whole  func(indent, key string) string
	inline string
}

// template writes an object with places for values.
func (c charting) template(o Object) (string, error) {
	o = clone(o)
	var holes []hole
	dig := func(h hole) string {
		holes = append(holes, h)
		return fmt.Sprintf("EBB-HOLE-%d-", len(holes)-1)
	}
	switch o.Kind() {
	case "Deployment", "DaemonSet", "StatefulSet":
		c.workload(o, dig)
	case "HorizontalPodAutoscaler":
		spec := o["spec"].(map[string]any)
		target := Object(spec).text("scaleTargetRef", "name")
		least := fmt.Sprintf("(index .Values.replicas %q | default %v | int)", target, spec["minReplicas"])
		spec["maxReplicas"] = dig(hole{inline: fmt.Sprintf("{{ max %v %s }}", spec["maxReplicas"], least)})
		spec["minReplicas"] = dig(hole{inline: "{{ " + least + " }}"})
	case "Gateway":
		o["spec"].(map[string]any)["gatewayClassName"] = dig(hole{inline: "{{ .Values.gateways.class }}"})
	case "ConfigMap":
		if c.values.configMaps[o.Name()] {
			c.settings(o, dig)
		}
	case "CustomResourceDefinition":
		c.keep(o["metadata"].(map[string]any), dig)
	}
	text, err := yaml.Marshal(o)
	if err != nil {
		return "", err
	}
	escaped := strings.NewReplacer("{{", `{{ "{{" }}`, "}}", `{{ "}}" }}`).Replace(string(text))
	escaped = strings.ReplaceAll(escaped, c.registry+"/", "{{ .Values.registry }}/")
	return fill(escaped, holes), nil
}

var holeLine = regexp.MustCompile(`(?m)^( *)(- )?([^\s:]+): EBB-HOLE-(\d+)-$`)

func fill(text string, holes []hole) string {
	return holeLine.ReplaceAllStringFunc(text, func(line string) string {
		part := holeLine.FindStringSubmatch(line)
		var n int
		_, _ = fmt.Sscan(part[4], &n)
		if holes[n].whole == nil {
			return part[1] + part[2] + part[3] + ": " + holes[n].inline
		}
		return holes[n].whole(part[1], part[3])
	})
}

// keep lets a definition survive `helm uninstall`.
func (c charting) keep(metadata map[string]any, dig func(hole) string) {
	const policy = "helm.sh/resource-policy"
	if annotations, _ := metadata["annotations"].(map[string]any); len(annotations) > 0 {
		annotations[policy] = dig(hole{whole: func(indent, key string) string {
			return guarded(".Values.crds.keep", indent, key+": keep")
		}})
		return
	}
	metadata["annotations"] = dig(hole{whole: func(indent, key string) string {
		return guarded(".Values.crds.keep", indent, key+":\n"+indent+"  "+policy+": keep")
	}})
}

func guarded(condition, indent, text string) string {
	return indent + "{{- if " + condition + " }}\n" + indent + text + "\n" + indent + "{{- end }}"
}

// workload puts places for replicas, resources, environment and pull secrets into a Deployment,
// DaemonSet or StatefulSet.
func (c charting) workload(o Object, dig func(hole) string) {
	name := o.Name()
	spec := o["spec"].(map[string]any)
	if o.Kind() != "DaemonSet" && !c.values.autoscaled[name] {
		replicas, set := spec["replicas"]
		spec["replicas"] = dig(hole{whole: func(indent, key string) string {
			if set {
				return fmt.Sprintf("%s%s: {{ index .Values.replicas %q | default %v | int }}", indent, key, name, replicas)
			}
			return fmt.Sprintf("%s{{- with index .Values.replicas %q }}\n%s%s: {{ int . }}\n%s{{- end }}", indent, name, indent, key, indent)
		}})
	}
	pod := spec["template"].(map[string]any)["spec"].(map[string]any)
	pod["imagePullSecrets"] = dig(hole{whole: func(indent, key string) string {
		return fmt.Sprintf("%s{{- with .Values.imagePullSecrets }}\n%s%s:\n%s{{- toYaml . | nindent %d }}\n%s{{- end }}", indent, indent, key, indent, len(indent), indent)
	}})
	for _, one := range pod["containers"].([]any) {
		container := one.(map[string]any)
		key := containerKey(name, Object(container).text("name"))
		container["resources"] = dig(hole{whole: func(indent, field string) string {
			return fmt.Sprintf("%s%s:\n%s  {{- toYaml (index .Values.resources %q) | nindent %d }}", indent, field, indent, key, len(indent)+2)
		}})
		env, _ := container["env"].([]any)
		for _, e := range env {
			variable := e.(map[string]any)
			if _, literal := variable["value"].(string); literal {
				variable["value"] = dig(hole{inline: fmt.Sprintf(`{{ include "ebb.text" (index .Values.env %q %q) | quote }}`, key, Object(variable).text("name"))})
			}
		}
	}
}

// settings puts a place for settings into a ConfigMap, beside its example.
func (c charting) settings(o Object, dig func(hole) string) {
	data, _ := o["data"].(map[string]any)
	if data == nil {
		data = map[string]any{}
		o["data"] = data
	}
	shipped := "(dict"
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if key == "_example" {
			continue
		}
		value := fmt.Sprintf("%q", data[key])
		if path, ours := strings.CutPrefix(fmt.Sprint(data[key]), c.registry+"/"); ours {
			value = fmt.Sprintf(`(printf "%%s/%s" .Values.registry)`, path)
		}
		shipped += fmt.Sprintf(" %q %s", key, value)
		delete(data, key)
	}
	shipped += ")"
	data["zz"] = dig(hole{whole: func(indent, _ string) string {
		return fmt.Sprintf("%s{{- include \"ebb.settings\" (list . %q %s) | nindent %d }}", indent, o.Name(), shipped, len(indent))
	}})
}

// containerKey is the name of a container in the chart's values.
func containerKey(workload, container string) string {
	if workload == container {
		return workload
	}
	return workload + "-" + container
}

func clone(o Object) Object {
	var deep func(any) any
	deep = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			copied := map[string]any{}
			for k, one := range v {
				copied[k] = deep(one)
			}
			return copied
		case []any:
			copied := make([]any, len(v))
			for i, one := range v {
				copied[i] = deep(one)
			}
			return copied
		}
		return v
	}
	return deep(map[string]any(o)).(map[string]any)
}
