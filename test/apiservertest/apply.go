package apiservertest

import (
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// mapLists are the lists that are merged by the name of their items. All others are replaced as a
// whole.
var mapLists = map[string]bool{"listeners": true}

// apply is a server-side apply with force: what the manager applied before and leaves out now goes,
// the rest is merged. Nothing else of the rules of managed fields is kept, in particular no
// conflicts.
func (h *handler) apply(t target, query url.Values, body []byte) (any, error) {
	manager := query.Get("fieldManager")
	part, err := decode(body)
	if err != nil {
		return nil, err
	}
	if manager == "" {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "PatchOptions"}, "", field.ErrorList{
			field.Required(field.NewPath("fieldManager"), "is required for apply patch")})
	}
	if query.Get("force") != "true" {
		return nil, notServed("an apply without force")
	}
	verb := "patch"
	if h.store.Get(t.resource, t.key.Namespace, t.key.Name) == nil {
		verb = "create"
	}
	of := fmt.Sprint(t.resource, t.key, manager)
	return h.write(verb, t, func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		after := map[string]any{}
		if before != nil {
			after = before.Object
		}
		if last, ok := h.store.applied[of]; ok {
			takeAway(after, last, part.Object)
		}
		h.store.applied[of] = runtime.DeepCopyJSON(part.Object)
		return &unstructured.Unstructured{Object: merge("", after, runtime.DeepCopyJSON(part.Object)).(map[string]any)}, nil
	})
}

// takeAway removes from have what is in last and not in next.
func takeAway(have, last, next map[string]any) {
	for key, was := range last {
		is, still := next[key]
		switch was := was.(type) {
		case map[string]any:
			inner, ok := have[key].(map[string]any)
			if !ok {
				continue
			}
			nextInner, _ := is.(map[string]any)
			takeAway(inner, was, nextInner)
			if len(inner) == 0 && !still {
				delete(have, key)
			}
		case []any:
			list, ok := have[key].([]any)
			if !ok || !mapLists[key] {
				if !still {
					delete(have, key)
				}
				continue
			}
			nextList, _ := is.([]any)
			var kept []any
			for _, item := range list {
				if find(was, nameOf(item)) >= 0 && find(nextList, nameOf(item)) < 0 {
					continue
				}
				kept = append(kept, item)
			}
			have[key] = kept
		default:
			if !still {
				delete(have, key)
			}
		}
	}
}

func merge(key string, have, part any) any {
	switch part := part.(type) {
	case map[string]any:
		into, ok := have.(map[string]any)
		if !ok {
			return part
		}
		for key, value := range part {
			into[key] = merge(key, into[key], value)
		}
		return into
	case []any:
		list, ok := have.([]any)
		if !ok || !mapLists[key] {
			return part
		}
		for _, item := range part {
			if i := find(list, nameOf(item)); i >= 0 {
				list[i] = merge("", list[i], item)
			} else {
				list = append(list, item)
			}
		}
		return list
	}
	return part
}

func nameOf(item any) string {
	fields, _ := item.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}

func find(list []any, name string) int {
	for i, item := range list {
		if nameOf(item) == name {
			return i
		}
	}
	return -1
}
