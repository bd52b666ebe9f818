package interned

import (
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Identity is the metadata of what is kept of an object in place of it. An informer asks for no
// other.
type Identity struct {
	metav1.Object
	Namespace, Name, Version string
}

// IdentityOf returns who an object is.
func IdentityOf(o metav1.Object) Identity {
	return Identity{&blank, unique.Make(o.GetNamespace()).Value(), o.GetName(), o.GetResourceVersion()}
}

// GetNamespace implements metav1.Object.
func (i *Identity) GetNamespace() string { return i.Namespace }

// GetName implements metav1.Object.
func (i *Identity) GetName() string { return i.Name }

// GetResourceVersion implements metav1.Object.
func (i *Identity) GetResourceVersion() string { return i.Version }

// blank stands for the metadata that is not kept. It is never written to, because objects in a
// cache are read only.
var blank metav1.ObjectMeta
