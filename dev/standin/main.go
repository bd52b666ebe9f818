// Command standin stands in for one of Knative's ingress plugins, which no Go module proxy has. It
// makes HTTPRoutes of the kind Ingress (networking.internal.knative.dev), on the Gateways
// ebb-external and ebb-local.
//
// Owns: those HTTPRoutes, its finalizer on Ingresses, the status of Ingresses. Reads: Ingresses of
// its class. Writes: what it owns. Never: terminates TLS; reports an Ingress Ready that a gateway
// has not accepted.
package main

import (
	"context"
	"log"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

var (
	ingresses  = schema.GroupVersionResource{Group: "networking.internal.knative.dev", Version: "v1alpha1", Resource: "ingresses"}
	httpRoutes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
)

// ownLabel is on the HTTPRoutes that this program makes, and names their Ingress.
const ownLabel = "standin.ebb.dev/ingress"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(ctx, client); err != nil {
		log.Fatal(err)
	}
}

// run reconciles Ingresses, by namespace/name, until ctx ends.
func run(ctx context.Context, client dynamic.Interface) error {
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 10*time.Minute)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, 5*time.Second))
	c := &controller{client: client, ingresses: factory.ForResource(ingresses).Lister(), routes: factory.ForResource(httpRoutes).Lister(),
		written: map[string]int64{}}
	watch := func(resource schema.GroupVersionResource, key func(*unstructured.Unstructured) string) error {
		add := func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if name := key(object.(*unstructured.Unstructured)); name != "" {
				queue.Add(name)
			}
		}
		_, err := factory.ForResource(resource).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: add, UpdateFunc: func(_, after any) { add(after) }, DeleteFunc: add})
		return err
	}
	if err := watch(ingresses, func(o *unstructured.Unstructured) string { return o.GetNamespace() + "/" + o.GetName() }); err != nil {
		return err
	}
	if err := watch(httpRoutes, func(o *unstructured.Unstructured) string {
		if name := o.GetLabels()[ownLabel]; name != "" {
			return o.GetNamespace() + "/" + name
		}
		return ""
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go func() {
		<-ctx.Done()
		queue.ShutDown()
	}()
	for {
		key, ended := queue.Get()
		if ended {
			return nil
		}
		if err := c.reconcile(ctx, key); err != nil {
			log.Printf("%s: %v", key, err)
			queue.AddRateLimited(key)
		} else {
			queue.Forget(key)
		}
		queue.Done(key)
	}
}
