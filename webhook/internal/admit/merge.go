package admit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// merge carries the difference between before and after over to original, which before was decoded
// from. What defaults do not change stays as the user wrote it: 1000m, an empty list, a field of a
// newer Kubernetes in the open parts of the schema. So a stored object has all that was applied,
// and GitOps tools see no drift.
func merge(original, before, after []byte) ([]byte, error) {
	if bytes.Equal(before, after) {
		return original, nil
	}
	var trees [3]any
	for i, text := range [][]byte{original, before, after} {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&trees[i]); err != nil {
			return nil, fmt.Errorf("apply defaults: %w", err)
		}
	}
	return json.Marshal(carry(trees[0], trees[1], trees[2]))
}

// carry does the work of merge for one value. Elements of lists of one length belong together;
// defaults neither add nor move any.
func carry(original, before, after any) any {
	if reflect.DeepEqual(before, after) {
		return original
	}
	switch b := before.(type) {
	case map[string]any:
		o, isMap := original.(map[string]any)
		a, stays := after.(map[string]any)
		if isMap && stays {
			carryFields(o, b, a)
			return o
		}
	case []any:
		o, isList := original.([]any)
		a, stays := after.([]any)
		if isList && stays && len(o) == len(b) && len(b) == len(a) {
			for i := range o {
				o[i] = carry(o[i], b[i], a[i])
			}
			return o
		}
	}
	return after
}

func carryFields(original, before, after map[string]any) {
	for key := range before {
		if _, stays := after[key]; !stays {
			delete(original, key)
		}
	}
	for key, value := range after {
		if was, known := before[key]; !known {
			original[key] = value
		} else if !reflect.DeepEqual(was, value) {
			original[key] = carry(original[key], was, value)
		}
	}
}
