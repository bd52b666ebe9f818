package settings

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Watcher keeps a Store equal to the ConfigMaps of the system namespace.
type Watcher struct {
	store    *Store
	log      *slog.Logger
	done     chan struct{}
	rejected atomic.Int64
}

// Watch reads the ConfigMaps of namespace into store and returns once the first reading is in it,
// or when ctx ends. Afterwards every change is in the store within the delay of one watch event,
// until ctx ends. A ConfigMap that is at fault keeps its last good content (its defaults, if there
// was none), is logged, and counts as rejected.
func Watch(ctx context.Context, client kubernetes.Interface, namespace string, store *Store, log *slog.Logger) (*Watcher, error) {
	w := &Watcher{store: store, log: log, done: make(chan struct{})}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	// Foreign ConfigMaps of the namespace (root certificates, mostly) are kept without their
	// content.
	err := informer.SetTransform(func(o any) (any, error) {
		if m, ok := o.(*corev1.ConfigMap); ok {
			m.ManagedFields = nil
			if !Known(m.Name) {
				m.Data, m.BinaryData = nil, nil
			}
		}
		return o, nil
	})
	if err != nil {
		return nil, fmt.Errorf("watch ConfigMaps of %s: %w", namespace, err)
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
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: touch, UpdateFunc: func(_, o any) { touch(o) }, DeleteFunc: touch,
	})
	if err != nil {
		return nil, fmt.Errorf("watch ConfigMaps of %s: %w", namespace, err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		factory.Shutdown()
		return nil, fmt.Errorf("read ConfigMaps of %s: %w", namespace, context.Cause(ctx))
	}
	good := map[string]map[string]string{}
	read := func() {
		given := map[string]map[string]string{}
		for _, o := range informer.GetStore().List() {
			if m := o.(*corev1.ConfigMap); Known(m.Name) {
				given[m.Name] = m.Data
			}
		}
		w.publish(good, given)
	}
	read()
	go func() {
		defer close(w.done)
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
	return w, nil
}

// publish takes over of given what is right, keeps good for the rest, and sets the store when
// anything changed.
func (w *Watcher) publish(good, given map[string]map[string]string) {
	for name, data := range given {
		if known, ok := good[name]; ok && maps.Equal(known, data) {
			continue
		}
		if err := ParseOne(name, data); err != nil {
			w.rejected.Add(1)
			w.log.Error("a ConfigMap is at fault; its last good content stays in force", "configmap", name, "error", err)
			continue
		}
		for _, warning := range Warnings(name, data) {
			w.log.Warn(warning)
		}
		good[name] = maps.Clone(data)
	}
	for name := range good {
		if _, ok := given[name]; !ok {
			w.log.Warn("a ConfigMap is gone; its defaults are in force", "configmap", name)
			delete(good, name)
		}
	}
	snapshot, err := Parse(good)
	if err != nil { // each map was accepted on its own, and no rule spans two maps
		w.rejected.Add(1)
		w.log.Error("the ConfigMaps cannot be read together", "error", err)
		return
	}
	w.store.Set(snapshot)
}

// Rejected counts how often a faulty ConfigMap was met.
func (w *Watcher) Rejected() int64 { return w.rejected.Load() }

// Done is closed when the watch has ended.
func (w *Watcher) Done() <-chan struct{} { return w.done }
