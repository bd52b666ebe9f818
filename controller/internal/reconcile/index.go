package reconcile

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Index finds the objects of an informer by a value, within a namespace. It reads only what it
// returns. A lister with a selector reads all objects of the namespace, and there can be many
// thousands.
//
// What is found under its own name, as many children are under their owner's, is not in the index:
// its key finds it. An entry takes a quarter of a kilobyte.
type Index[T metav1.Object] struct {
	name    string
	indexer cache.Indexer
	values  func(T) []string
}

// IndexBy returns the index with this name of an informer that has not started. values says under
// what an object is found. Reconcilers that name the same index share it.
func IndexBy[T metav1.Object](informer cache.SharedIndexInformer, name string, values func(T) []string) Index[T] {
	if _, there := informer.GetIndexer().GetIndexers()[name]; !there {
		err := informer.AddIndexers(cache.Indexers{name: func(object any) (keys []string, _ error) {
			if o, ok := object.(T); ok {
				for _, value := range values(o) {
					if value != o.GetName() {
						keys = append(keys, o.GetNamespace()+"/"+value)
					}
				}
			}
			return keys, nil
		}})
		if err != nil {
			panic(fmt.Sprintf("index by %s: %v", name, err)) // only a started informer refuses
		}
	}
	return Index[T]{name, informer.GetIndexer(), values}
}

// IndexByLabel indexes objects by the value of a label.
func IndexByLabel[T metav1.Object](informer cache.SharedIndexInformer, label string) Index[T] {
	return IndexBy(informer, label, func(object T) []string {
		if value := object.GetLabels()[label]; value != "" {
			return []string{value}
		}
		return nil
	})
}

// Of returns the objects of a namespace with this value. They must not be changed.
func (x Index[T]) Of(namespace, value string) []T {
	found, _ := x.indexer.ByIndex(x.name, namespace+"/"+value) // fails only if there is no such index
	out := make([]T, 0, len(found)+1)
	for _, object := range found {
		out = append(out, object.(T))
	}
	if object, exists, _ := x.indexer.GetByKey(cache.NewObjectName(namespace, value).String()); exists {
		if o, ok := object.(T); ok && slices.Contains(x.values(o), value) {
			out = append(out, o)
		}
	}
	return out
}

// WithoutNamespaces drops the index by namespace of informers that have not started. Nobody lists
// their objects in one, and there are many.
func WithoutNamespaces(all ...cache.SharedIndexInformer) {
	for _, informer := range all {
		delete(informer.GetIndexer().GetIndexers(), cache.NamespaceIndex)
	}
}
