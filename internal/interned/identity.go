package interned

import (
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Identity is the metadata of what is kept of an object in place of it. An informer asks for no
// other.
type Identity struct{ Namespace, Name, Version string }

// IdentityOf returns who an object is.
func IdentityOf(o metav1.Object) Identity {
	return Identity{unique.Make(o.GetNamespace()).Value(), o.GetName(), o.GetResourceVersion()}
}

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (i *Identity) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: i.Namespace, Name: i.Name, ResourceVersion: i.Version}
}

// Part returns s as a part of name if name begins with it, so that both take memory once.
func Part(name, s string) string {
	if strings.HasPrefix(name, s) {
		return name[:len(s)]
	}
	return unique.Make(s).Value()
}
