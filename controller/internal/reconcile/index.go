package reconcile

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Index finds the objects of an informer by a value, within a namespace. It reads only what it
// returns. A lister with a selector reads all objects of the namespace, and there can be many
// thousands.
type Index[T metav1.Object] struct {
	name    string
	indexer cache.Indexer
}

// IndexBy returns the index with this name of an informer that has not started. values says under
// what an object is found. Reconcilers that name the same index share it.
func IndexBy[T metav1.Object](informer cache.SharedIndexInformer, name string, values func(T) []string) Index[T] {
	if _, there := informer.GetIndexer().GetIndexers()[name]; !there {
		err := informer.AddIndexers(cache.Indexers{name: func(object any) (keys []string, _ error) {
			if o, ok := object.(T); ok {
				for _, value := range values(o) {
					keys = append(keys, o.GetNamespace()+"/"+value)
				}
			}
			return keys, nil
		}})
		if err != nil {
			panic(fmt.Sprintf("index by %s: %v", name, err)) // only a started informer refuses
		}
	}
	return Index[T]{name, informer.GetIndexer()}
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
	out := make([]T, 0, len(found))
	for _, object := range found {
		out = append(out, object.(T))
	}
	return out
}
