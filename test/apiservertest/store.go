// Package apiservertest is a Kubernetes API server in memory, for tests of what talks to one: real
// clients, real informers and real conflicts, without etcd and without a cluster.
//
// It keeps any resource of any group. It does what a controller depends on: resource versions and
// conflicts, generations, uids, status and scale, selectors by label and name, watches, merge and
// JSON patches, applies with force, finalizers, owner references, preconditions of a delete. It
// validates names, labels and finalizers only, and does not convert, default or authorize; Admit is
// where a test does that. Namespaces need not exist, and an object that is gone takes what it owned
// with it at once. What it does not serve it refuses with 501.
//
// test/contract holds it to the real API server.
//
// Owns: the objects and the record of writes. Never: used outside of tests and benchmarks.
package apiservertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Write is one change that a client made.
type Write struct {
	// Verb is create, update, patch or delete; Resource is "deployments" or "services/status".
	Verb, Resource, Namespace, Name string
	// Object is the object after the write, nil after a delete. Before is what it was, nil for a
	// create.
	Object, Before map[string]any
}

func (w Write) String() string {
	if w.Namespace == "" {
		return fmt.Sprintf("%s %s %s", w.Verb, w.Resource, w.Name)
	}
	return fmt.Sprintf("%s %s %s/%s", w.Verb, w.Resource, w.Namespace, w.Name)
}

type event struct {
	version  int
	kind     string // ADDED, MODIFIED, DELETED
	resource schema.GroupResource
	object   *unstructured.Unstructured
	before   *unstructured.Unstructured
}

// Store holds the objects.
type Store struct {
	// Admit, if set, may change an object before it is written or refuse it with an API error.
	// subresource is "" or "status".
	Admit func(verb string, resource schema.GroupResource, subresource string, object *unstructured.Unstructured) error
	// Written, if set, is told of each write of a client.
	Written func(Write)
	// Now is the clock of creation and deletion times.
	Now func() time.Time

	mu      sync.Mutex
	objects map[schema.GroupResource]map[types.NamespacedName]*unstructured.Unstructured
	events  []event
	version int
	uids    int
	changed chan struct{}
	oldest  int           // watches from an older version are answered 410
	lost    chan struct{} // closed when the watches end
	writes  []Write
	applied map[string]map[string]any // what a field manager applied last, under mu
}

// oldestVersion is where resource versions begin. A watch from an older one is answered 410, as if
// the server had forgotten it.
const oldestVersion = 1000

// mutation makes the next object of the present one, which is nil for a create.
type mutation func(present *unstructured.Unstructured) (*unstructured.Unstructured, error)

func newStore() *Store {
	return &Store{Now: time.Now, version: oldestVersion, objects: map[schema.GroupResource]map[types.NamespacedName]*unstructured.Unstructured{},
		changed: make(chan struct{}), oldest: oldestVersion, lost: make(chan struct{}), applied: map[string]map[string]any{}}
}

// Interrupt ends all watches. If the server forgets what happened so far, clients have to list
// again, and are never told what came and went meanwhile.
func (s *Store) Interrupt(forget bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if forget {
		s.version++ // nobody has seen it
		s.oldest, s.events = s.version, nil
	}
	close(s.lost)
	s.lost = make(chan struct{})
}

// Writes returns what clients wrote since the last call, in order.
func (s *Store) Writes() []Write {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.writes
	s.writes = nil
	return out
}

// Versions returns the resource versions of the objects that a selector matches, by
// "namespace/name".
func (s *Store) Versions(resource schema.GroupResource, selector labels.Selector) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for key, object := range s.objects[resource] {
		if selector.Matches(labels.Set(object.GetLabels())) {
			out[strings.TrimPrefix(key.String(), "/")] = object.GetResourceVersion()
		}
	}
	return out
}

// Get returns a copy of an object, or nil.
func (s *Store) Get(resource schema.GroupResource, namespace, name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object := s.objects[resource][types.NamespacedName{Namespace: namespace, Name: name}]; object != nil {
		return object.DeepCopy()
	}
	return nil
}

// kindsOf lists the kinds of a group and version of which there is an object, as discovery does.
func (s *Store) kindsOf(group schema.GroupVersion) *metav1.APIResourceList {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: group.String()}
	for resource, objects := range s.objects {
		for key, object := range objects {
			if object.GetAPIVersion() == group.String() {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource.Resource, Kind: object.GetKind(),
					Namespaced: key.Namespace != ""})
				break
			}
		}
	}
	return list
}

// Names lists all objects of a namespace as "resource name", sorted.
func (s *Store) Names(namespace string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for resource, objects := range s.objects {
		for key := range objects {
			if key.Namespace == namespace {
				out = append(out, resource.Resource+" "+key.Name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Put creates or replaces an object, status and all, as an actor that the test does not count:
// nothing is recorded.
func (s *Store) Put(resource schema.GroupResource, object *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
	object = roundTrip(object)
	before := s.objects[resource][key]
	if before == nil {
		s.initialize(resource, object)
	} else {
		s.succeed(before, object)
	}
	s.commit(resource, key, before, object)
}

// Remove deletes an object and what it owns at once, whatever its finalizers, unrecorded.
func (s *Store) Remove(resource schema.GroupResource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(resource, types.NamespacedName{Namespace: namespace, Name: name})
}

func (s *Store) initialize(resource schema.GroupResource, object *unstructured.Unstructured) {
	s.uids++
	object.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", s.uids)))
	object.SetCreationTimestamp(metav1.NewTime(s.Now()))
	object.SetGeneration(0)
	if hasStatus(resource) {
		object.SetGeneration(1)
	}
}

// succeed gives an object the identity of the one it replaces, and a generation.
func (s *Store) succeed(before, object *unstructured.Unstructured) {
	object.SetUID(before.GetUID())
	object.SetCreationTimestamp(before.GetCreationTimestamp())
	object.SetDeletionTimestamp(before.GetDeletionTimestamp())
	object.SetGeneration(before.GetGeneration())
	if before.GetGeneration() > 0 && !equality.Semantic.DeepEqual(content(before), content(object)) {
		object.SetGeneration(before.GetGeneration() + 1)
	}
}

// content is what a generation counts: all but metadata and status.
func content(object *unstructured.Unstructured) map[string]any {
	c := maps.Clone(object.Object)
	delete(c, "metadata")
	delete(c, "status")
	return c
}

func (s *Store) commit(resource schema.GroupResource, key types.NamespacedName, before, object *unstructured.Unstructured) {
	s.version++
	kind := "DELETED"
	if object != nil {
		object.SetResourceVersion(strconv.Itoa(s.version))
		if s.objects[resource] == nil {
			s.objects[resource] = map[types.NamespacedName]*unstructured.Unstructured{}
		}
		s.objects[resource][key] = object
		kind = "MODIFIED"
		if before == nil {
			kind = "ADDED"
		}
	} else {
		delete(s.objects[resource], key)
		object = before.DeepCopy()
		object.SetResourceVersion(strconv.Itoa(s.version))
	}
	s.events = append(s.events, event{version: s.version, kind: kind, resource: resource, object: object, before: before})
	close(s.changed)
	s.changed = make(chan struct{})
}

// drop removes an object, then, like the garbage collector, what it owned.
func (s *Store) drop(resource schema.GroupResource, key types.NamespacedName) {
	object := s.objects[resource][key]
	if object == nil {
		return
	}
	s.commit(resource, key, object, nil)
	s.markDependents(object)
}

// markDependents deletes what an object owns.
func (s *Store) markDependents(object *unstructured.Unstructured) {
	for _, r := range slices.SortedFunc(maps.Keys(s.objects), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }) {
		for k, child := range s.objects[r] {
			if owns(object, child) {
				s.markDeleted(r, k)
			}
		}
	}
}

func owns(object, child *unstructured.Unstructured) bool {
	return slices.ContainsFunc(child.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == object.GetUID() })
}

func (s *Store) hasDependents(object *unstructured.Unstructured) bool {
	for _, objects := range s.objects {
		for _, child := range objects {
			if owns(object, child) {
				return true
			}
		}
	}
	return false
}

func (s *Store) markDeleted(resource schema.GroupResource, key types.NamespacedName) {
	object := s.objects[resource][key]
	if object == nil {
		return
	}
	if len(object.GetFinalizers()) == 0 {
		s.drop(resource, key)
		return
	}
	if object.GetDeletionTimestamp() != nil {
		return
	}
	next := object.DeepCopy()
	now := metav1.NewTime(s.Now())
	next.SetDeletionTimestamp(&now)
	if object.GetGeneration() > 0 {
		next.SetGeneration(object.GetGeneration() + 1)
	}
	s.commit(resource, key, object, next)
}

// write is a client's create, update or patch.
func (s *Store) write(verb string, t target, mutate mutation) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource, key := t.resource, t.key
	before := s.objects[resource][key]
	switch {
	case verb == "create" && before != nil:
		return nil, apierrors.NewAlreadyExists(resource, key.Name)
	case verb != "create" && before == nil:
		return nil, apierrors.NewNotFound(resource, key.Name)
	}
	var present *unstructured.Unstructured
	if before != nil {
		present = t.view(before.DeepCopy())
	}
	object, err := mutate(present)
	if err != nil {
		return nil, err
	}
	if err := s.mayWrite(verb, t, before, object); err != nil {
		return nil, err
	}
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)
	object.SetManagedFields(nil)
	if t.subresource == "scale" {
		replicas, some, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "replicas")
		if !some {
			replicas = int64(0)
		}
		object = before.DeepCopy()
		if err := unstructured.SetNestedField(object.Object, replicas, "spec", "replicas"); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	} else if t.subresource == "status" {
		status := object.Object["status"]
		object = before.DeepCopy()
		object.Object["status"] = status
	} else if before != nil && hasStatus(resource) {
		if status, had := before.Object["status"]; had {
			object.Object["status"] = status
		} else {
			delete(object.Object, "status")
		}
	}
	if err := validMetadata(resource, before, object); err != nil {
		return nil, err
	}
	if s.Admit != nil {
		if err := s.Admit(verb, resource, t.subresource, object); err != nil {
			return nil, err
		}
	}
	object = roundTrip(object)
	name := resource.Resource
	if t.subresource != "" {
		name += "/" + t.subresource
	}
	if before == nil {
		if hasStatus(resource) {
			delete(object.Object, "status")
		}
		s.initialize(resource, object)
	} else {
		s.succeed(before, object)
	}
	written := Write{Verb: verb, Resource: name, Namespace: key.Namespace, Name: key.Name, Object: object.DeepCopy().Object}
	if before != nil {
		written.Before = before.DeepCopy().Object
	}
	s.record(written)
	if before != nil {
		object.SetResourceVersion(before.GetResourceVersion())
		if equality.Semantic.DeepEqual(before.Object, object.Object) {
			return before.DeepCopy(), nil // a write that changes nothing makes no event, and is counted all the same
		}
	}
	if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 {
		s.drop(resource, key)
	} else {
		s.commit(resource, key, before, object)
	}
	return object.DeepCopy(), nil
}

func (s *Store) record(w Write) {
	s.writes = append(s.writes, w)
	if s.Written != nil {
		s.Written(w)
	}
}

// mayWrite judges what identifies the object that a client writes.
func (s *Store) mayWrite(verb string, t target, before, object *unstructured.Unstructured) error {
	version := object.GetResourceVersion()
	switch {
	case object.GetNamespace() != "" && object.GetNamespace() != t.key.Namespace, object.GetName() != "" && object.GetName() != t.key.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("%s/%s is not %s", object.GetNamespace(), object.GetName(), t.key))
	case before == nil && version != "":
		return apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	case before == nil:
		return nil
	case version == "" && verb == "update" && custom(t.resource):
		return apierrors.NewInvalid(schema.GroupKind{Group: t.resource.Group, Kind: object.GetKind()}, object.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), version, "must be specified for an update")})
	case version != "" && version != before.GetResourceVersion():
		return apierrors.NewConflict(t.resource, t.key.Name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	case object.GetUID() != "" && object.GetUID() != before.GetUID() && verb == "patch":
		return apierrors.NewInvalid(schema.GroupKind{Group: t.resource.Group, Kind: object.GetKind()}, object.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("metadata", "uid"), object.GetUID(), "field is immutable")})
	case object.GetUID() != "" && object.GetUID() != before.GetUID():
		return apierrors.NewConflict(t.resource, t.key.Name, fmt.Errorf("uid %s is not %s", object.GetUID(), before.GetUID()))
	}
	return nil
}

// custom tells the kinds that cannot be updated without a resource version: those that a
// CustomResourceDefinition defines, and Leases.
func custom(resource schema.GroupResource) bool {
	return strings.Contains(resource.Group, ".") && resource.Group != "discovery.k8s.io"
}

func (s *Store) remove(resource schema.GroupResource, key types.NamespacedName, options metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[resource][key]
	if object == nil {
		return apierrors.NewNotFound(resource, key.Name)
	}
	if p := options.Preconditions; p != nil {
		if p.UID != nil && *p.UID != object.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != object.GetResourceVersion() {
			return apierrors.NewConflict(resource, key.Name, fmt.Errorf("the precondition of the delete does not hold"))
		}
	}
	if how := options.PropagationPolicy; how != nil && *how != metav1.DeletePropagationBackground {
		if *how == metav1.DeletePropagationForeground {
			s.markDependents(object)
		}
		if s.hasDependents(object) {
			return notServed("propagation policy " + string(*how) + " while dependents stay")
		}
	}
	s.record(Write{Verb: "delete", Resource: resource.Resource, Namespace: key.Namespace, Name: key.Name, Before: object.DeepCopy().Object})
	s.markDeleted(resource, key)
	return nil
}

// validMetadata judges what every kind shares: name, labels and finalizers.
func validMetadata(resource schema.GroupResource, before, object *unstructured.Unstructured) error {
	var faults field.ErrorList
	metadata := field.NewPath("metadata")
	if found := validation.IsDNS1123Subdomain(object.GetName()); len(found) > 0 {
		faults = append(faults, field.Invalid(metadata.Child("name"), object.GetName(), strings.Join(found, "; ")))
	}
	for key, value := range object.GetLabels() {
		if found := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(found) > 0 {
			faults = append(faults, field.Invalid(metadata.Child("labels"), key+"="+value, strings.Join(found, "; ")))
		}
	}
	for _, name := range object.GetFinalizers() {
		if before != nil && before.GetDeletionTimestamp() != nil && !slices.Contains(before.GetFinalizers(), name) {
			faults = append(faults, field.Forbidden(metadata.Child("finalizers"), "no new finalizers can be added if the object is being deleted"))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: object.GetKind()}, object.GetName(), faults)
}

// hasStatus: kinds whose status only the subresource writes; that of plain configuration kinds does
// not exist.
func hasStatus(resource schema.GroupResource) bool {
	switch resource.Resource {
	case "configmaps", "secrets", "events", "endpointslices", "leases", "serviceaccounts":
		return false
	}
	return true
}

// roundTrip makes numbers what JSON makes of them, so that comparisons see no difference of Go
// types.
func roundTrip(object *unstructured.Unstructured) *unstructured.Unstructured {
	data, err := json.Marshal(object.Object)
	if err != nil {
		panic(fmt.Sprintf("an object from JSON does not encode: %v", err))
	}
	out := &unstructured.Unstructured{}
	if err := out.UnmarshalJSON(data); err != nil {
		panic(fmt.Sprintf("an encoded object does not decode: %v", err))
	}
	return out
}
