package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// Optional is a third-party kind that a cluster may not have. Its objects are watched while its
// CustomResourceDefinition exists. The definition is watched too, so a kind that is installed or
// removed is noticed at once.
type Optional struct {
	resource schema.GroupVersionResource
	selector string
	client   dynamic.Interface

	// Set before Run and not changed after.
	handlers []cache.ResourceEventHandler
	changed  []func()
	indexers cache.Indexers
	late     bool

	mu       sync.Mutex
	informer cache.SharedIndexInformer // nil while the kind is not there
	owned    Index[*unstructured.Unstructured]
	labelled Index[*unstructured.Unstructured]
	stop     context.CancelFunc
}

// definitions are the kinds that a cluster has.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// presenceWithin is the time in which all keys are reconciled after a kind was installed or
// removed.
const presenceWithin = 5 * time.Second

// Optional returns a kind, and caches its objects that match the label selector. The same arguments
// return the same Optional.
func (mgr *Manager) Optional(resource schema.GroupVersionResource, labelSelector string) *Optional {
	mgr.mu.Lock()
	defer mgr.mu.Unlock()
	for _, o := range mgr.optional {
		if o.resource == resource && o.selector == labelSelector {
			return o
		}
	}
	o := &Optional{resource: resource, selector: labelSelector, client: mgr.Dynamic}
	mgr.optional = append(mgr.optional, o)
	return o
}

// WatchOptional is Watch for an optional kind. When the kind is installed or removed, all keys are
// reconciled.
func (c *Controller) WatchOptional(o *Optional, toKeys func(object any) []Key) {
	c.HandleOptional(o, c.handler(toKeys, c.Enqueue, always))
}

// HandleOptional is WatchOptional with a handler of events.
func (c *Controller) HandleOptional(o *Optional, handler cache.ResourceEventHandler) {
	o.handlers = append(o.handlers, handler)
	o.changed = append(o.changed, func() { c.EnqueueAll(presenceWithin) })
}

// Index adds an index to the cache.
func (o *Optional) Index(name string, keys cache.IndexFunc) {
	if o.indexers == nil {
		o.indexers = cache.Indexers{}
	}
	o.indexers[name] = keys
}

// Late lets reconcilers start before the objects are known. So a cluster that does not let us read
// them has all but what depends on them. All keys are reconciled when they are known.
func (o *Optional) Late() { o.late = true }

// By returns the objects for which an index has a value. They must not be changed.
func (o *Optional) By(index, value string) (out []*unstructured.Unstructured) {
	informer := o.store()
	if informer == nil {
		return nil
	}
	found, _ := informer.GetIndexer().ByIndex(index, value) // fails only if there is no such index
	for _, object := range found {
		out = append(out, object.(*unstructured.Unstructured))
	}
	return out
}

// Present reports whether the cluster has the kind.
func (o *Optional) Present() bool { return o.store() != nil }

// Synced reports whether the cache has all objects that were there when the watch began.
func (o *Optional) Synced() bool {
	informer := o.store()
	return informer != nil && informer.HasSynced()
}

// Unknown reports whether the cluster has the kind, and nobody has listed its objects yet.
func (o *Optional) Unknown() bool { return o.Present() && !o.Synced() }

func (o *Optional) store() cache.SharedIndexInformer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.informer
}

// Get returns an object from the cache. It must not be changed.
func (o *Optional) Get(namespace, name string) (*unstructured.Unstructured, bool) {
	informer := o.store()
	if informer == nil {
		return nil, false
	}
	object, ok, err := informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil, false
	}
	u, ok := object.(*unstructured.Unstructured)
	return u, ok
}

// Owned returns the objects in the owner's namespace, or for a Namespace in it, that the owner
// controls and that have all of these labels, by name. They must not be changed.
func (o *Optional) Owned(owner metav1.Object, mine labels.Set) []*unstructured.Unstructured {
	o.mu.Lock()
	index, there := o.owned, o.informer != nil
	o.mu.Unlock()
	if !there {
		return nil
	}
	selector := mine.AsSelector()
	list := slices.DeleteFunc(index.Of(cmp.Or(owner.GetNamespace(), owner.GetName()), string(owner.GetUID())),
		func(object *unstructured.Unstructured) bool { return !selector.Matches(labels.Set(object.GetLabels())) })
	slices.SortFunc(list, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	return list
}

// Labelled returns the objects in a namespace that have a label, whatever its value. They must not
// be changed.
func (o *Optional) Labelled(namespace, label string) []*unstructured.Unstructured {
	o.mu.Lock()
	index, there := o.labelled, o.informer != nil
	o.mu.Unlock()
	if !there {
		return nil
	}
	return index.Of(namespace, label)
}

// All returns all objects from the cache, of which there may be thousands. They must not be
// changed.
func (o *Optional) All() (out []*unstructured.Unstructured) {
	informer := o.store()
	if informer == nil {
		return nil
	}
	for _, object := range informer.GetStore().List() {
		if u, ok := object.(*unstructured.Unstructured); ok {
			out = append(out, u)
		}
	}
	return out
}

// run watches the kind's definition until ctx ends. It returns when it knows whether the kind is
// there.
func (o *Optional) run(ctx context.Context) error {
	definition := o.resource.Resource + "." + o.resource.Group
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(o.client, 0, metav1.NamespaceAll, func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, definition).String()
	})
	informer := factory.ForResource(definitions).Informer()
	_ = informer.SetTransform(func(object any) (any, error) {
		if u, ok := object.(*unstructured.Unstructured); ok {
			delete(u.Object, "spec") // the schema is by far the largest part
			delete(u.Object, "status")
			u.SetManagedFields(nil)
		}
		return object, nil
	})
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { o.begin(ctx) },
		DeleteFunc: func(any) { o.end() },
	})
	if err != nil {
		return fmt.Errorf("watch for the kind %s: %w", definition, err)
	}
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("find out whether the cluster has the kind %s: %w", definition, context.Cause(ctx))
	}
	if informer := o.store(); informer != nil && !o.late {
		cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	}
	return nil
}

func (o *Optional) begin(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.informer != nil {
		return
	}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(o.client, 0, metav1.NamespaceAll, func(l *metav1.ListOptions) {
		l.LabelSelector = o.selector
	})
	informer := factory.ForResource(o.resource).Informer()
	_ = informer.SetTransform(Trim)
	o.owned = IndexBy(informer, "owner", func(object *unstructured.Unstructured) []string {
		if owner := metav1.GetControllerOf(object); owner != nil {
			return []string{string(owner.UID)}
		}
		return nil
	})
	o.labelled = IndexBy(informer, "label", func(object *unstructured.Unstructured) []string {
		return slices.Collect(maps.Keys(object.GetLabels()))
	})
	if err := informer.AddIndexers(o.indexers); err != nil {
		panic(fmt.Sprintf("index %s: %v", o.resource.Resource, err)) // only a name that is taken is refused
	}
	for _, h := range o.handlers {
		if _, err := informer.AddEventHandler(h); err != nil {
			panic(fmt.Sprintf("watch %s: %v", o.resource.Resource, err)) // only a stopped informer refuses
		}
	}
	inner, stop := context.WithCancel(ctx)
	o.informer, o.stop = informer, stop
	go informer.Run(inner.Done())
	if !o.late {
		o.tell()
		return
	}
	go func() {
		if cache.WaitForCacheSync(inner.Done(), informer.HasSynced) {
			o.tell()
		}
	}()
}

func (o *Optional) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.informer == nil {
		return
	}
	o.stop()
	o.informer = nil
	o.tell()
}

func (o *Optional) tell() {
	for _, changed := range o.changed {
		changed()
	}
}

// Client returns a client for the objects in a namespace.
func (o *Optional) Client(namespace string) OptionalClient {
	return OptionalClient{o.client.Resource(o.resource).Namespace(namespace)}
}

// OptionalClient has the methods of a generated typed client.
type OptionalClient struct{ dynamic dynamic.ResourceInterface }

func (c OptionalClient) Get(ctx context.Context, name string, options metav1.GetOptions) (*unstructured.Unstructured, error) {
	return c.dynamic.Get(ctx, name, options)
}

func (c OptionalClient) Create(ctx context.Context, object *unstructured.Unstructured, options metav1.CreateOptions) (*unstructured.Unstructured, error) {
	return c.dynamic.Create(ctx, object, options)
}

func (c OptionalClient) Update(ctx context.Context, object *unstructured.Unstructured, options metav1.UpdateOptions) (*unstructured.Unstructured, error) {
	return c.dynamic.Update(ctx, object, options)
}

func (c OptionalClient) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return c.dynamic.Delete(ctx, name, options)
}
