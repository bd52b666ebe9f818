package process

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/informers/externalversions"
	informers "ebb.dev/ebb/api/client/informers/externalversions/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/autoscaler/internal/loop"
)

// autoscalers is the informer on PodAutoscalers.
type autoscalers struct {
	factory  externalversions.SharedInformerFactory
	informer cache.SharedIndexInformer
}

func newAutoscalers(client versioned.Interface) (*autoscalers, error) {
	factory := externalversions.NewSharedInformerFactory(client, 0)
	// Nobody asks for those of a namespace, so there is no index of them.
	informer := factory.InformerFor(&v1alpha1.PodAutoscaler{}, func(client versioned.Interface, resync time.Duration) cache.SharedIndexInformer {
		return informers.NewPodAutoscalerInformer(client, metav1.NamespaceAll, resync, cache.Indexers{})
	})
	if err := informer.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("strip PodAutoscalers: %w", err)
	}
	return &autoscalers{factory, informer}, nil
}

func trim(o any) (any, error) {
	if pa, ok := o.(*v1alpha1.PodAutoscaler); ok {
		return keep(pa)
	}
	return o, nil
}

// get returns nil when there is none. The object is the caller's.
func (a *autoscalers) get(namespace, name string) *v1alpha1.PodAutoscaler {
	if k := a.kept(namespace, name); k != nil {
		return k.podAutoscaler()
	}
	return nil
}

func (a *autoscalers) kept(namespace, name string) *kept {
	o, _, _ := a.informer.GetStore().GetByKey(cache.NewObjectName(namespace, name).String()) // it is a map
	k, _ := o.(*kept)
	return k
}

// keys returns the names of all.
func (a *autoscalers) keys() []loop.Key {
	all := a.informer.GetStore().List()
	keys := make([]loop.Key, len(all))
	for i, o := range all {
		keys[i] = o.(*kept).key()
	}
	return keys
}

// start begins to watch and returns when all PodAutoscalers are known, or when ctx ends.
func (a *autoscalers) start(ctx context.Context, changed func(loop.Key)) error {
	if _, err := a.informer.AddEventHandler(autoscalerHandler(changed)); err != nil {
		return fmt.Errorf("watch PodAutoscalers: %w", err)
	}
	a.factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), a.informer.HasSynced)
	return nil
}

// autoscalerHandler reports changes of what the loop reads. The status is the loop's own write.
func autoscalerHandler(changed func(loop.Key)) cache.ResourceEventHandlerFuncs {
	notice := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if k, ok := o.(*kept); ok {
			changed(k.key())
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: notice, DeleteFunc: notice, UpdateFunc: func(before, after any) {
		a, b := before.(*kept), after.(*kept)
		if a.uid == b.uid && a.generation == b.generation && a.asks == b.asks && a.service == b.service && a.configuration == b.configuration {
			return
		}
		notice(after)
	}}
}
