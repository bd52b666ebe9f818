package release

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/yaml"
)

// values are what the chart lets users choose, found in the manifests.
type values struct {
	replicas   []string                     // Deployments and StatefulSets
	autoscaled map[string]bool              // those with an HPA
	resources  map[string]any               // by container
	env        map[string]map[string]string // by container
	configMaps map[string]bool
	apart      []string
}

func newValues(m Manifests) *values {
	v := &values{autoscaled: map[string]bool{}, resources: map[string]any{}, env: map[string]map[string]string{}, configMaps: map[string]bool{}}
	v.apart = slices.Sorted(maps.Keys(m.Apart))
	all := slices.Clone(m.Default)
	for _, folder := range v.apart {
		all = append(all, m.Apart[folder]...)
	}
	for _, o := range all {
		switch o.Kind() {
		case "HorizontalPodAutoscaler":
			v.autoscaled[Object(o["spec"].(map[string]any)).text("scaleTargetRef", "name")] = true
		case "ConfigMap":
			if data, _ := o["data"].(map[string]any); data["_example"] != nil {
				v.configMaps[o.Name()] = true
			}
		case "Deployment", "DaemonSet", "StatefulSet":
			if o.Kind() != "DaemonSet" && !slices.Contains(v.replicas, o.Name()) {
				v.replicas = append(v.replicas, o.Name())
			}
			v.containers(o)
		}
	}
	slices.Sort(v.replicas)
	return v
}

func (v *values) containers(o Object) {
	pod := o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	for _, one := range pod["containers"].([]any) {
		container := one.(map[string]any)
		key := containerKey(o.Name(), Object(container).text("name"))
		v.resources[key] = container["resources"]
		if v.resources[key] == nil {
			v.resources[key] = map[string]any{}
		}
		env, _ := container["env"].([]any)
		for _, e := range env {
			variable := e.(map[string]any)
			value, literal := variable["value"].(string)
			if !literal {
				continue
			}
			if v.env[key] == nil {
				v.env[key] = map[string]string{}
			}
			v.env[key][Object(variable).text("name")] = value
		}
	}
}

// value is one key of values.yaml: what it says, what it means and what it may be.
type value struct {
	key, comment string
	standard     any
	schema       map[string]any
}

type object = map[string]any

func texts(of map[string]any) object {
	return object{"type": "object", "additionalProperties": of}
}

func exactly(properties object) object {
	return object{"type": "object", "additionalProperties": false, "properties": properties}
}

// list is values.yaml from top to bottom.
func (v *values) list(registry string) []value {
	boolean := object{"type": "boolean"}
	count := object{"type": []string{"integer", "null"}, "minimum": 1, "maximum": 100}
	quantity := object{"type": []string{"string", "number", "null"}, "pattern": `^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$`}
	anything := texts(object{"type": []string{"string", "number", "boolean"}})
	replicas, resources, env, settings := object{}, object{}, object{}, object{}
	for _, name := range v.replicas {
		replicas[name] = count
	}
	for key := range v.resources {
		resources[key] = exactly(object{"requests": texts(quantity), "limits": texts(quantity)})
	}
	for key, variables := range v.env {
		allowed := object{}
		for name := range variables {
			allowed[name] = object{"type": []string{"string", "number"}}
		}
		env[key] = exactly(allowed)
	}
	for name := range v.configMaps {
		settings[name] = anything
	}
	carrier := object{"type": "array", "items": object{"type": "object", "additionalProperties": false, "required": []string{"gateway"}, "properties": object{
		"class": object{"type": "string"}, "gateway": object{"type": "string", "pattern": "^[^/]+/[^/]+$"}, "service": object{"type": "string", "pattern": "^[^/]+/[^/]+$"},
		"http-listener-name": object{"type": "string"}, "supported-features": object{"type": "array", "items": object{"type": "string"}},
	}}}
	list := []value{
		{"domain", "Domain of the services: <service>.<namespace>.<domain>. Without one they are reachable inside the cluster only.", "",
			object{"type": "string", "pattern": `^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`, "maxLength": 200}},
		{"registry", "Where the images are: <registry>/activator and so on.", registry, object{"type": "string", "minLength": 1, "pattern": "^[^ ]*[^ /]$"}},
		{"imagePullSecrets", "Secrets of the namespace knative-serving for that registry. Example: [{name: registry}].", []any{},
			object{"type": "array", "items": exactly(object{"name": object{"type": "string"}})}},
		{"gateways", "The Gateways that carry services. create: false leaves out the two of the chart; then external and local name yours,\nas the keys external-gateways and local-gateways of the ConfigMap config-gateway do. So they must with a class other than istio\nand envoy-gateway.",
			object{"create": true, "class": "istio", "external": []any{}, "local": []any{}},
			exactly(object{"create": boolean, "class": object{"type": "string", "minLength": 1}, "external": carrier, "local": carrier})},
		{"highAvailability", "Three replicas of each component on different nodes, for clusters with three nodes or more.", false, boolean},
		{"replicas", "Replicas of each component, the least of those that have a HorizontalPodAutoscaler. Example: {activator: 2}.", object{}, exactly(replicas)},
		{"standby", `Whether pods that nobody needs sleep: "off" or "auto". Empty: as in settings.`, "", object{"enum": []string{"", "off", "auto"}}},
		{"settings", "Settings by ConfigMap; docs/settings.md lists them. Example: {config-autoscaler: {stable-window: 30s}}.", object{}, exactly(settings)},
		{"resources", "Requests and limits of each container.", v.resources, exactly(resources)},
		{"env", "Environment of the components. GOMEMLIMIT must stay below the memory limit above.", v.env, exactly(env)},
		{"crds", "The kinds. keep: helm uninstall leaves them, and with them all services.", object{"install": true, "keep": true},
			exactly(object{"install": boolean, "keep": boolean})},
	}
	for _, folder := range v.apart {
		list = append(list, value{folder, fmt.Sprintf("Whether to install the objects of ebb-%s.yaml as well.", folder), false, boolean})
	}
	return list
}

// files are values.yaml and values.schema.json.
func (v *values) files(registry string) (text, schema []byte, err error) {
	var out bytes.Buffer
	properties := object{"global": object{"type": "object"}}
	for _, one := range v.list(registry) {
		for line := range bytes.Lines([]byte(one.comment)) {
			fmt.Fprintf(&out, "# %s\n", bytes.TrimSpace(line))
		}
		text, err := yaml.Marshal(object{one.key: one.standard})
		if err != nil {
			return nil, nil, err
		}
		fmt.Fprintf(&out, "%s\n", text)
		properties[one.key] = one.schema
	}
	whole := exactly(properties)
	whole["$schema"] = "http://json-schema.org/draft-07/schema#"
	if schema, err = json.MarshalIndent(whole, "", "  "); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), append(schema, '\n'), nil
}
