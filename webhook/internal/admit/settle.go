package admit

import (
	"bytes"
	"encoding/json"
	"strings"
)

// quantities are the fields of a pod that the schema wants to be whole numbers or strings. * stands
// for each element of a list or entry of a map.
var quantities = []string{
	"containers.*.resources.limits.*",
	"containers.*.resources.requests.*",
	"volumes.*.projected.sources.*.downwardAPI.items.*.resourceFieldRef.divisor",
}

// settle returns an object as its schema takes it, where a Deployment takes the same as it is
// written, and the object itself if there is nothing to do:
//
//   - Fields of the spec that are null go. The API server drops them from what is created or
//     updated, but keeps those of a server-side apply, and the schema refuses them then.
//   - Quantities that are no whole numbers, as in `cpu: 0.5`, become strings of the same digits.
//
// The API server asks the schema after the mutating webhooks. No value is rewritten that the schema
// takes, and applying the same manifest again changes nothing.
func settle(object []byte) []byte {
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.UseNumber()
	var root map[string]any
	if decoder.Decode(&root) != nil {
		return object // the rules say what is wrong
	}
	spec, _ := root["spec"].(map[string]any)
	template, _ := spec["template"].(map[string]any)
	changed := dropNulls(spec)
	for _, path := range quantities {
		for _, pod := range []any{spec, template["spec"]} {
			changed = quote(pod, strings.Split(path, ".")) || changed
		}
	}
	if !changed {
		return object
	}
	settled, err := json.Marshal(root)
	if err != nil {
		return object
	}
	return settled
}

// dropNulls removes the fields that are null. The insides of metadata are open in the schema.
func dropNulls(value any) (changed bool) {
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			if inner == nil {
				delete(v, name)
				changed = true
			} else if name != "metadata" {
				changed = dropNulls(inner) || changed
			}
		}
	case []any:
		for _, inner := range v {
			changed = dropNulls(inner) || changed
		}
	}
	return changed
}

// quote makes strings of the fractions at a path.
func quote(value any, path []string) (changed bool) {
	if list, ok := value.([]any); ok && path[0] == "*" {
		for _, element := range list {
			changed = quote(element, path[1:]) || changed
		}
		return changed
	}
	object, _ := value.(map[string]any)
	for name, inner := range object {
		if path[0] != "*" && path[0] != name {
			continue
		}
		if len(path) > 1 {
			changed = quote(inner, path[1:]) || changed
		} else if number, ok := inner.(json.Number); ok && strings.ContainsAny(number.String(), ".eE") {
			object[name], changed = number.String(), true
		}
	}
	return changed
}
