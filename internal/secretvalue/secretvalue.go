// Package secretvalue follows the content of one Secret.
//
// Owns: an informer on that Secret alone. Reads: it. Never: holds another Secret's content.
package secretvalue

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Value is the content as it is now.
type Value struct {
	current atomic.Pointer[map[string][]byte]
}

// Load returns the content, nil while there is none. It is not to be changed.
func (v *Value) Load() map[string][]byte {
	if p := v.current.Load(); p != nil {
		return *p
	}
	return nil
}

// Watch follows the Secret until ctx ends. It returns at once: the value is nil until
// it was read.
func Watch(ctx context.Context, client kubernetes.Interface, namespace, name string) (*Value, error) {
	v := &Value{}
	set := func(o any) {
		if secret, ok := o.(*corev1.Secret); ok && secret.Name == name {
			content := secret.Data
			v.current.Store(&content)
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		}))
	informer := factory.Core().V1().Secrets().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, o any) { set(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if secret, ok := o.(*corev1.Secret); ok && secret.Name == name {
				v.current.Store(nil)
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watch Secret %s/%s: %w", namespace, name, err)
	}
	factory.Start(ctx.Done())
	return v, nil
}
