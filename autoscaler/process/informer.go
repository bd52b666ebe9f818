package process

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/informers/externalversions"
	listers "ebb.dev/ebb/api/client/listers/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/internal/interned"
)

// autoscalers is the informer on PodAutoscalers.
type autoscalers struct {
	factory  externalversions.SharedInformerFactory
	informer cache.SharedIndexInformer
	lister   listers.PodAutoscalerLister
}

func newAutoscalers(client versioned.Interface) (*autoscalers, error) {
	factory := externalversions.NewSharedInformerFactory(client, 0)
	all := factory.Autoscaling().V1alpha1().PodAutoscalers()
	if err := all.Informer().SetTransform(trim); err != nil {
		return nil, fmt.Errorf("strip PodAutoscalers: %w", err)
	}
	return &autoscalers{factory, all.Informer(), all.Lister()}, nil
}

// trim drops what is not read: whose the object is, and how the last decision came about. What is
// written to it are patches of what is known here.
func trim(o any) (any, error) {
	if pa, ok := o.(*v1alpha1.PodAutoscaler); ok {
		pa.ManagedFields, pa.OwnerReferences, pa.Status.Decision = nil, nil, nil
		kept := make(map[string]string, 2)
		for _, key := range []string{names.ServiceLabel, names.ConfigurationLabel} {
			if value, there := pa.Labels[key]; there {
				kept[key] = value
			}
		}
		pa.Labels = kept
		interned.Object(pa)
	}
	return o, nil
}

// get returns nil when there is none.
func (a *autoscalers) get(namespace, name string) *v1alpha1.PodAutoscaler {
	pa, err := a.lister.PodAutoscalers(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pa
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
		if pa, ok := o.(*v1alpha1.PodAutoscaler); ok {
			changed(loop.Key{Namespace: pa.Namespace, Name: pa.Name})
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: notice, DeleteFunc: notice, UpdateFunc: func(before, after any) {
		a, b := before.(*v1alpha1.PodAutoscaler), after.(*v1alpha1.PodAutoscaler)
		if a.UID == b.UID && a.Generation == b.Generation && maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Labels, b.Labels) {
			return
		}
		notice(after)
	}}
}
