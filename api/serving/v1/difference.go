package v1

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxDifferences is how many changed fields a message lists.
const maxDifferences = 20

// difference shows what changed between two objects, for people: the paths of a manifest with the
// old and the new value, in order.
func difference(old, current any) string {
	before, after := leaves(old), leaves(current)
	paths := maps.Clone(before)
	maps.Copy(paths, after)
	var out strings.Builder
	count := 0
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		was, had := before[path]
		is, has := after[path]
		if had && has && was == is {
			continue
		}
		if count++; count > maxDifferences {
			continue
		}
		if had {
			fmt.Fprintf(&out, "-%s: %s\n", path, was)
		}
		if has {
			fmt.Fprintf(&out, "+%s: %s\n", path, is)
		}
	}
	if count > maxDifferences {
		fmt.Fprintf(&out, "and %d more\n", count-maxDifferences)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// leaves returns the values of an object's JSON that are no objects or lists, by path.
func leaves(object any) map[string]string {
	found := map[string]string{}
	text, err := json.Marshal(object)
	if err != nil {
		return found
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return found
	}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for key, child := range v {
				walk(strings.TrimPrefix(path+"."+key, "."), child)
			}
		case []any:
			for i, child := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), child)
			}
		default:
			leaf, _ := json.Marshal(v)
			found[path] = string(leaf)
		}
	}
	walk("", tree)
	return found
}
