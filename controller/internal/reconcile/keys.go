package reconcile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Self returns the key of an object itself.
func Self(object any) []Key {
	m, ok := object.(metav1.Object)
	if !ok {
		return nil
	}
	return []Key{{Namespace: m.GetNamespace(), Name: m.GetName()}}
}

// ControllerOf returns the key of an object's controller, if that is of the given kind.
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

// Label returns the key of the object in the same namespace whose name is in the given label.
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

// AllOf returns the keys of all objects of an informer.
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
