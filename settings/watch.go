package settings

import (
	"context"
	"fmt"
	"log/slog"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Watch reads the ConfigMaps of namespace into store. It returns after the first reading, or when
// ctx ends. Afterwards every change reaches the store within the delay of one watch event, until
// ctx ends. An invalid ConfigMap is logged and keeps its last valid content, or its defaults if
// there was none. So does one that is deleted: whoever replaces a ConfigMap by deleting it first
// must not take every host of the cluster away meanwhile.
func Watch(ctx context.Context, client kubernetes.Interface, namespace string, store *Store, log *slog.Logger) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	if err := informer.SetTransform(trim); err != nil {
		return fmt.Errorf("watch ConfigMaps of %s: %w", namespace, err)
	}
	// One slot: a burst of changes is one reading of everything.
	dirty := make(chan struct{}, 1)
	touch := func(o any) {
		if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = tombstone.Obj
		}
		if m, ok := o.(metav1.Object); ok && Known(m.GetName()) {
			select {
			case dirty <- struct{}{}:
			default:
			}
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: touch, UpdateFunc: func(_, o any) { touch(o) }, DeleteFunc: touch,
	})
	if err != nil {
		return fmt.Errorf("watch ConfigMaps of %s: %w", namespace, err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		factory.Shutdown()
		return fmt.Errorf("read ConfigMaps of %s: %w", namespace, context.Cause(ctx))
	}
	good := map[string]map[string]string{}
	read := func() {
		given := map[string]map[string]string{}
		for _, o := range informer.GetStore().List() {
			if m := o.(*corev1.ConfigMap); Known(m.Name) {
				given[m.Name] = m.Data
			}
		}
		publish(store, log, good, given)
	}
	read()
	go func() {
		defer factory.Shutdown()
		for {
			select {
			case <-ctx.Done():
				return
			case <-dirty:
				read()
			}
		}
	}()
	return nil
}

// trim keeps other ConfigMaps of the namespace, such as root certificates, without their content.
func trim(o any) (any, error) {
	if m, ok := o.(*corev1.ConfigMap); ok {
		m.ManagedFields = nil
		if !Known(m.Name) {
			m.Data, m.BinaryData = nil, nil
		}
	}
	return o, nil
}

// publish copies what is valid in given to good, and sets the store to what good says.
func publish(store *Store, log *slog.Logger, good, given map[string]map[string]string) {
	for name, data := range given {
		if known, ok := good[name]; ok && maps.Equal(known, data) {
			continue
		}
		if err := ParseOne(name, data); err != nil {
			log.Error("ignoring an invalid ConfigMap: its last valid content stays in force", "configmap", name, "error", err)
			continue
		}
		for _, warning := range Warnings(name, data) {
			log.Warn(warning)
		}
		good[name] = maps.Clone(data)
	}
	for name := range good {
		if _, ok := given[name]; !ok {
			log.Warn("a ConfigMap was deleted: its last valid content stays in force until a restart", "configmap", name)
		}
	}
	snapshot, err := Parse(good)
	if err != nil { // cannot be: each map was accepted, and no rule spans two maps
		log.Error("the ConfigMaps cannot be parsed together", "error", err)
		return
	}
	store.Set(snapshot)
}
