package watch

import (
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// identity is the metadata of what is kept of an object. An informer asks for no other.
type identity struct {
	metav1.Object
	namespace, name, version string
}

func identityOf(o metav1.Object) identity {
	return identity{&blank, unique.Make(o.GetNamespace()).Value(), o.GetName(), o.GetResourceVersion()}
}

func (i *identity) GetNamespace() string       { return i.namespace }
func (i *identity) GetName() string            { return i.name }
func (i *identity) GetResourceVersion() string { return i.version }

// blank stands for the metadata that is not kept. It is never written to, because objects in a
// cache are read only.
var blank metav1.ObjectMeta
