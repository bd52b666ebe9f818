package reconcile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Self maps an object to its own key.
func Self(object any) []Key {
	m, ok := object.(metav1.Object)
	if !ok {
		return nil
	}
	return []Key{{Namespace: m.GetNamespace(), Name: m.GetName()}}
}

// ControllerOf maps a child to the key of its controlling owner, if that is of the given kind.
func ControllerOf(kind string) func(object any) []Key {
	return func(object any) []Key {
		m, ok := object.(metav1.Object)
		if !ok {
			return nil
		}
		owner := metav1.GetControllerOfNoCopy(m)
		if owner == nil || owner.Kind != kind {
			return nil
		}
		return []Key{{Namespace: m.GetNamespace(), Name: owner.Name}}
	}
}

// Label maps an object to the object in its namespace that the given label names.
func Label(label string) func(object any) []Key {
	return func(object any) []Key {
		m, ok := object.(metav1.Object)
		if !ok {
			return nil
		}
		if name := m.GetLabels()[label]; name != "" {
			return []Key{{Namespace: m.GetNamespace(), Name: name}}
		}
		return nil
	}
}

// AllOf lists the keys of everything an informer holds.
func AllOf(informer cache.SharedIndexInformer) func() []Key {
	return func() []Key {
		objects := informer.GetStore().List()
		keys := make([]Key, 0, len(objects))
		for _, object := range objects {
			keys = append(keys, Self(object)...)
		}
		return keys
	}
}

func sameVersion(before, after any) bool {
	b, ok := before.(metav1.Object)
	if !ok {
		return false
	}
	a, ok := after.(metav1.Object)
	return ok && a.GetResourceVersion() != "" && a.GetResourceVersion() == b.GetResourceVersion()
}
