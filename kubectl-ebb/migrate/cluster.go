package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"ebb.dev/ebb/api/names"
)

// Object is any object of the API.
type Object = *unstructured.Unstructured

// appliedAnnotation is on an object of Ebb's manifests, with the hash of what was applied.
const appliedAnnotation = "ebb.dev/migration-applied"

// manager is the field manager of a move.
const manager = "ebb-migrate"

// Cluster is the API server, for objects of any kind.
type Cluster struct {
	dynamic.Interface
	Kube   kubernetes.Interface
	mapper meta.ResettableRESTMapper
}

// Connect returns a Cluster.
func Connect(config *rest.Config) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 100, 200
	config.WarningHandler = rest.NoWarnings{} // about kinds that Knative still uses
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{Interface: client, Kube: kube, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kube.Discovery()))}, nil
}

// of returns the client for the kind and namespace of an object.
func (c *Cluster) of(o Object) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) { // the kind may be new
		c.mapper.Reset()
		mapping, err = c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nameOf(o), err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
	}
	return c.Resource(mapping.Resource), nil
}

// get returns an object as it is now, nil if there is none.
func (c *Cluster) get(ctx context.Context, o Object) (Object, error) {
	api, err := c.of(o)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	have, err := api.Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return have, err
}

// list returns the objects of a resource in all namespaces. A kind that does not exist has none.
func (c *Cluster) list(ctx context.Context, resource schema.GroupVersionResource, selector string) ([]Object, error) {
	return c.listIn(ctx, resource, "", selector)
}

func (c *Cluster) listIn(ctx context.Context, resource schema.GroupVersionResource, namespace, selector string) ([]Object, error) {
	options := metav1.ListOptions{LabelSelector: selector, Limit: 500}
	var all []Object
	for {
		page, err := c.Resource(resource).Namespace(namespace).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		for i := range page.Items {
			all = append(all, &page.Items[i])
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// put makes an object what want says. What the API server or a controller has chosen stays: the
// addresses of a Service, the owners, and labels and annotations that want does not have.
func (c *Cluster) put(ctx context.Context, want Object) error {
	api, err := c.of(want)
	if err != nil {
		return err
	}
	for range 5 {
		have, err := api.Get(ctx, want.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			if _, err = api.Create(ctx, want, metav1.CreateOptions{FieldManager: manager}); err == nil {
				return nil
			}
			if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("create %s: %w", nameOf(want), err)
		}
		hash := want.GetAnnotations()[appliedAnnotation]
		if hash != "" && have.GetAnnotations()[appliedAnnotation] == hash {
			return nil
		}
		_, err = api.Update(ctx, over(have, want), metav1.UpdateOptions{FieldManager: manager})
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("update %s: %w", nameOf(want), err)
		}
		return nil
	}
	return fmt.Errorf("update %s: somebody else writes it all the time", nameOf(want))
}

// kept are fields that stay as they are if an object does not set them.
var kept = map[string][][]string{
	"Service": {{"spec", "clusterIP"}, {"spec", "clusterIPs"}, {"spec", "ipFamilies"}, {"spec", "ipFamilyPolicy"}, {"spec", "healthCheckNodePort"}},
	// The aggregated rules.
	"ClusterRole":              {{"rules"}},
	"Secret":                   {{"data"}},
	"APIService":               {{"spec", "caBundle"}},
	"Deployment":               {{"spec", "replicas"}},
	"CustomResourceDefinition": {{"spec", "conversion"}},
}

// over returns want in the place of have.
func over(have, want Object) Object {
	next := want.DeepCopy()
	next.SetResourceVersion(have.GetResourceVersion())
	next.SetUID(have.GetUID())
	next.SetOwnerReferences(have.GetOwnerReferences())
	next.SetFinalizers(have.GetFinalizers())
	annotations := maps.Clone(have.GetAnnotations())
	delete(annotations, appliedAnnotation)
	next.SetLabels(merged(have.GetLabels(), want.GetLabels()))
	next.SetAnnotations(merged(annotations, want.GetAnnotations()))
	for _, path := range kept[want.GetKind()] {
		value, found, _ := unstructured.NestedFieldCopy(have.Object, path...)
		_, given, _ := unstructured.NestedFieldNoCopy(want.Object, path...)
		if found && !given {
			_ = unstructured.SetNestedField(next.Object, value, path...) // its parents are maps, as in have
		}
	}
	if status, found := have.Object["status"]; found {
		next.Object["status"] = status
	}
	return next
}

func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, b)
	return out
}

// marked returns an object of Ebb's manifests with the hash of its content.
func marked(o Object) (Object, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	o = o.DeepCopy()
	o.SetAnnotations(merged(o.GetAnnotations(), map[string]string{appliedAnnotation: hex.EncodeToString(sum[:8])}))
	return o, nil
}

// remove deletes objects that are there, and what they own.
func (c *Cluster) remove(ctx context.Context, objects ...Object) error {
	for _, o := range objects {
		if err := c.delete(ctx, o, metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	return nil
}

// orphan deletes an object, if it is there, but not what it owns.
func (c *Cluster) orphan(ctx context.Context, o Object) error {
	return c.delete(ctx, o, metav1.DeletePropagationOrphan)
}

func (c *Cluster) delete(ctx context.Context, o Object, how metav1.DeletionPropagation) error {
	api, err := c.of(o)
	if meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := api.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &how}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", nameOf(o), err)
	}
	return nil
}

// patch merges a change into an object that may be gone.
func (c *Cluster) patch(ctx context.Context, o Object, change map[string]any) error {
	api, err := c.of(o)
	if err != nil {
		return err
	}
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = api.Patch(ctx, o.GetName(), types.MergePatchType, text, metav1.PatchOptions{FieldManager: manager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch %s: %w", nameOf(o), err)
	}
	return nil
}

// release takes the finalizers off an object whose controller is gone, and deletes it.
func (c *Cluster) release(ctx context.Context, o Object) error {
	if len(o.GetFinalizers()) > 0 {
		if err := c.patch(ctx, o, map[string]any{"metadata": map[string]any{"finalizers": nil}}); err != nil {
			return err
		}
	}
	return c.remove(ctx, o)
}

// nameOf is an object in a message.
func nameOf(o Object) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + " " + o.GetName()
	}
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// id tells an object from others.
func id(o Object) string {
	kind := o.GroupVersionKind().GroupKind()
	return kind.String() + " " + o.GetNamespace() + "/" + o.GetName()
}

// controllerOf returns the owner that controls an object, with an empty UID if there is none.
func controllerOf(o Object) metav1.OwnerReference {
	if ref := metav1.GetControllerOf(o); ref != nil {
		return *ref
	}
	return metav1.OwnerReference{}
}

// clean returns an object without what the API server has added.
func clean(o Object) Object {
	o = o.DeepCopy()
	for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "selfLink", "ownerReferences"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
	delete(o.Object, "status")
	return o
}

// conditionOf returns the status of a condition of an object, "" if it does not have it or tells it
// of an older generation.
func conditionOf(o Object, kind string) string {
	if seen, found, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); found && seen < o.GetGeneration() {
		return ""
	}
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, entry := range list {
		if c, ok := entry.(map[string]any); ok && c["type"] == kind {
			status, _ := c["status"].(string)
			return status
		}
	}
	return ""
}

// pause is between the first two looks at the cluster. It grows to maxPause. Tests change it.
var pause = 200 * time.Millisecond

const maxPause = 2 * time.Second

// until waits until missing returns nothing that is missing.
func until(ctx context.Context, limit time.Duration, missing func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last, wait := "", pause
	for {
		what, err := missing(ctx)
		switch {
		case err != nil && ctx.Err() == nil && !passing(err):
			return err
		case err == nil && what == "":
			return nil
		case err == nil:
			last = what
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("after %s: %s", limit, last), context.Cause(ctx))
		case <-time.After(wait):
			wait = min(wait*5/4, maxPause)
		}
	}
}

// passing reports whether an error of the API server goes away by itself.
func passing(err error) bool {
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// available waits for Deployments of the system namespace.
func (c *Cluster) available(ctx context.Context, deployments ...string) error {
	return until(ctx, 5*time.Minute, func(ctx context.Context) (string, error) {
		for _, name := range deployments {
			d, err := c.Kube.AppsV1().Deployments(names.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "Deployment " + name, err
			}
			if s := d.Status; s.ObservedGeneration < d.Generation || s.AvailableReplicas < 1 || s.UpdatedReplicas < s.Replicas {
				return fmt.Sprintf("the Deployment %s is not available: kubectl -n %s describe pods -l app=%[1]s", name, names.SystemNamespace), nil
			}
		}
		return "", nil
	})
}

// noPods waits until no pod of the system namespace matches a selector, ending ones included.
func (c *Cluster) noPods(ctx context.Context, selector string) error {
	return until(ctx, 3*time.Minute, func(ctx context.Context) (string, error) {
		pods, err := c.listIn(ctx, podResource, names.SystemNamespace, selector)
		if err != nil || len(pods) == 0 {
			return "", err
		}
		return "the pod " + pods[0].GetName() + " does not end", nil
	})
}

// each runs work for all items, some at a time, and joins what failed.
func each[T any](items []T, work func(T) error) error {
	errs := make([]error, len(items))
	slots, done := make(chan struct{}, 8), make(chan struct{})
	for i, item := range items {
		go func() {
			slots <- struct{}{}
			errs[i] = work(item)
			<-slots
			done <- struct{}{}
		}()
	}
	for range items {
		<-done
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) > 3 {
		errs = append(errs[:3], fmt.Errorf("and %d more", len(errs)-3))
	}
	return errors.Join(errs...)
}
