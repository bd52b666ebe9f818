package reference

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

const templatePath = "spec.template.spec"

// kinds lists the fields of the kinds, with what the API server checks.
func kinds(root string) (string, error) {
	admitted, err := admittedDefaults()
	if err != nil {
		return "", err
	}
	b := page("Kinds", "The fields of the Serving API that Ebb knows, from the definitions that it installs. The API server drops every other\n"+
		"field. The webhook fills in defaults, and checks what a definition cannot say: see [Refusals](refusals.md). Some fields\n"+
		"of a pod are off until a [feature flag](../settings.md#config-features) allows them. `[]` is an entry of a list.")
	for _, name := range []string{"services", "configurations", "revisions", "routes", "domainmappings", "clusterdomainclaims"} {
		found, err := filepath.Glob(filepath.Join(root, "config/crd", name+".*.yaml"))
		if err != nil || len(found) != 1 {
			return "", fmt.Errorf("%d definitions of %s: %w", len(found), name, err)
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			return "", err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return "", fmt.Errorf("%s: %w", found[0], err)
		}
		version := crd.Spec.Versions[len(crd.Spec.Versions)-1]
		schema := version.Schema.OpenAPIV3Schema
		fmt.Fprintf(b, "\n## %s\n\n`apiVersion: %s/%s`. %s\n", crd.Spec.Names.Kind, crd.Spec.Group, version.Name, schema.Description)
		var rows [][]string
		rows = fields(rows, "", *schema, crd.Spec.Names.Kind, admitted)
		for _, rule := range schema.XValidations {
			rows = append(rows, []string{code("metadata.name"), "string", "", strings.TrimPrefix(rule.Message, "metadata.name "), ""})
		}
		spec := slices.DeleteFunc(slices.Clone(rows), func(row []string) bool { return strings.HasPrefix(row[0], "`status") })
		status := slices.DeleteFunc(rows, func(row []string) bool { return !strings.HasPrefix(row[0], "`status") })
		table(b, []string{"Field", "Type", "Default", "Bounds", "Meaning"}, spec)
		if len(status) > 0 {
			b.WriteString("\nThe status, which Ebb writes:\n")
			for i := range status {
				status[i] = []string{status[i][0], status[i][1], status[i][4]}
			}
			table(b, []string{"Field", "Type", "Meaning"}, status)
		}
	}
	return b.String(), nil
}

// fields are the rows of a schema's fields.
func fields(rows [][]string, path string, schema apiextensionsv1.JSONSchemaProps, kind string, admitted map[string]string) [][]string {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		field := schema.Properties[name]
		if at == "apiVersion" || at == "kind" || at == "metadata" || at == "spec" || at == "status" {
			if at == "spec" || at == "status" {
				rows = fields(rows, at, field, kind, admitted)
			}
			continue
		}
		kindOf, inside := field.Type, field
		if field.XIntOrString {
			kindOf = "integer or string"
		}
		bounds := boundsOf(field)
		if field.Items != nil && field.Items.Schema != nil {
			inside = *field.Items.Schema
			kindOf = "list of " + inside.Type
		}
		if slices.Contains(schema.Required, name) {
			bounds = join("required", bounds)
		}
		if at == templatePath && kind != "Revision" {
			rows = append(rows, []string{code(at), kindOf, "", bounds, "As the spec of a [Revision](#revision)."})
			continue
		}
		rows = append(rows, []string{code(at), kindOf, defaultOf(field, admitted[kind+" "+at]), bounds, field.Description})
		if field.Items != nil {
			at += "[]"
			if more := boundsOf(inside); more != "" && len(inside.Properties) == 0 {
				rows = append(rows, []string{code(at), inside.Type, "", more, inside.Description})
			}
			for _, rule := range inside.XValidations {
				rows = append(rows, []string{code(at), "", "", rule.Message, ""})
			}
		}
		rows = fields(rows, at, inside, kind, admitted)
	}
	return rows
}

func boundsOf(s apiextensionsv1.JSONSchemaProps) string {
	var all []string
	add := func(format string, value any) { all = append(all, fmt.Sprintf(format, value)) }
	if s.Minimum != nil {
		add("at least %v", *s.Minimum)
	}
	if s.Maximum != nil {
		add("at most %v", *s.Maximum)
	}
	if s.MinLength != nil {
		add("at least %d characters", *s.MinLength)
	}
	if s.MaxLength != nil {
		add("at most %d characters", *s.MaxLength)
	}
	if s.MinItems != nil {
		add("at least %d entries", *s.MinItems)
	}
	if s.MaxItems != nil {
		add("at most %d entries", *s.MaxItems)
	}
	if s.Pattern != "" {
		add("must match `%s`", s.Pattern)
	}
	if len(s.Enum) > 0 {
		values := make([]string, len(s.Enum))
		for i, e := range s.Enum {
			values[i] = string(e.Raw)
		}
		add("one of %s", strings.Join(values, ", "))
	}
	for _, rule := range s.XValidations {
		all = append(all, rule.Message)
	}
	return strings.Join(all, "; ")
}

// defaultOf is the default of the definition, or what admission sets.
func defaultOf(s apiextensionsv1.JSONSchemaProps, admitted string) string {
	if s.Default != nil {
		return code(string(s.Default.Raw))
	}
	return code(admitted)
}

// admittedDefaults are what admission sets with the shipped settings, by kind and path: the
// difference that it makes to an object with nothing but an image, or a target of traffic.
func admittedDefaults() (map[string]string, error) {
	config := settings.Default().Rules()
	revision := servingv1.Revision{}
	revision.Spec.Containers = []corev1.Container{{Image: "example"}}
	before := revision.DeepCopy()
	revision.SetDefaults(rules.Request[servingv1.Revision]{Config: config, Operation: rules.Create})
	route := servingv1.Route{}
	route.Spec.Traffic = []servingv1.TrafficTarget{{}}
	routeBefore := route.DeepCopy()
	route.SetDefaults(rules.Request[servingv1.Route]{Config: config, Operation: rules.Create})
	service := servingv1.Service{}
	serviceBefore := service.DeepCopy()
	service.SetDefaults(rules.Request[servingv1.Service]{Config: config, Operation: rules.Create})

	found := map[string]string{}
	for kind, pair := range map[string][2]any{"Revision": {before.Spec, revision.Spec}, "Route": {routeBefore.Spec, route.Spec},
		"Service": {serviceBefore.Spec, service.Spec}} {
		var plain [2]any
		for i, object := range pair {
			text, err := json.Marshal(object)
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(text, &plain[i]); err != nil {
				return nil, err
			}
		}
		if err := differences(plain[0], plain[1], kind+" spec", found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func differences(before, after any, path string, into map[string]string) error {
	switch after := after.(type) {
	case map[string]any:
		if before, ok := before.(map[string]any); ok {
			for name, value := range after {
				if err := differences(before[name], value, path+"."+name, into); err != nil {
					return err
				}
			}
			return nil
		}
	case []any:
		if before, ok := before.([]any); ok && len(before) == len(after) {
			for i := range after {
				if err := differences(before[i], after[i], path+"[]", into); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if !reflect.DeepEqual(before, after) {
		text, err := json.Marshal(after)
		if err != nil {
			return err
		}
		into[path] = string(text)
	}
	return nil
}
