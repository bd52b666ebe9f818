package apiservertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Start runs a server on loopback until the test ends, and returns its store and how to reach it.
func Start(t testing.TB) (*Store, *rest.Config) {
	store, config, stop := Serve()
	t.Cleanup(stop)
	return store, config
}

// Serve is Start for a program that is not a Go test, such as a benchmark. It runs until stop is
// called.
func Serve() (s *Store, config *rest.Config, stop func()) {
	store := newStore()
	stopping := make(chan struct{})
	server := httptest.NewUnstartedServer(&handler{store, stopping})
	server.Start()
	return store, &rest.Config{Host: server.URL, QPS: 10000, Burst: 10000}, func() {
		close(stopping) // ends the watches, which Close would wait for
		server.CloseClientConnections()
		server.Close()
	}
}

type handler struct {
	store    *Store
	stopping chan struct{}
}

// target is what a path of the API names.
type target struct {
	version     string // apiVersion
	resource    schema.GroupResource
	key         types.NamespacedName
	subresource string
}

func parse(path string) (target, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var t target
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		t.version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		t.version, t.resource.Group, parts = parts[1]+"/"+parts[2], parts[1], parts[3:]
	default:
		return t, false
	}
	if parts[0] == "namespaces" && len(parts) >= 3 {
		t.key.Namespace, parts = parts[1], parts[2:]
	}
	t.resource.Resource = parts[0]
	if len(parts) > 1 {
		t.key.Name = parts[1]
	}
	if len(parts) > 2 {
		t.subresource = parts[2]
	}
	return t, len(parts) <= 3
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); len(parts) == 3 && parts[0] == "apis" {
		answer(w, http.StatusOK, h.store.kindsOf(schema.GroupVersion{Group: parts[1], Version: parts[2]}))
		return
	}
	t, ok := parse(r.URL.Path)
	if !ok {
		refuse(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
		return
	}
	if err := unserved(r, t); err != nil {
		refuse(w, err)
		return
	}
	if r.Method == http.MethodGet && t.key.Name == "" {
		if r.URL.Query().Get("watch") != "" && r.URL.Query().Get("watch") != "false" {
			h.watch(w, r, t)
			return
		}
		h.list(w, r, t)
		return
	}
	object, err := h.one(r, t)
	if err != nil {
		refuse(w, err)
		return
	}
	code := http.StatusOK
	if r.Method == http.MethodPost {
		code = http.StatusCreated
	}
	answer(w, code, object)
}

// notServed is the error for what this server does not do. A test that needs it must not pass by
// accident.
func notServed(what string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotImplemented,
		Reason: metav1.StatusReasonUnknown, Message: "apiservertest does not serve " + what}}
}

// unserved returns an error for a request that notServed is about.
func unserved(r *http.Request, t target) error {
	switch query := r.URL.Query(); {
	case query.Has("dryRun"):
		return notServed("dry runs")
	case query.Has("continue"):
		return notServed("lists in pages")
	case r.Method == http.MethodDelete && t.key.Name == "":
		return notServed("the deletion of collections")
	case t.subresource != "" && t.subresource != "status" && (t.subresource != "scale" || t.resource.Resource != "deployments"):
		return notServed("the subresource " + t.subresource + " of " + t.resource.Resource)
	}
	return nil
}

func (h *handler) one(r *http.Request, t target) (any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	replace := func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		object, err := decode(body)
		if err == nil && before != nil && object.GetKind() == "" {
			object.SetGroupVersionKind(before.GroupVersionKind())
		}
		return object, err
	}
	switch r.Method {
	case http.MethodGet:
		if object := h.store.Get(t.resource, t.key.Namespace, t.key.Name); object != nil {
			return t.view(object).Object, nil
		}
		return nil, apierrors.NewNotFound(t.resource, t.key.Name)
	case http.MethodPost:
		object, err := decode(body)
		if err != nil {
			return nil, err
		}
		t.key.Name = object.GetName()
		if prefix := object.GetGenerateName(); t.key.Name == "" && prefix != "" {
			h.store.mu.Lock()
			h.store.uids++
			t.key.Name = fmt.Sprintf("%s%05d", prefix, h.store.uids)
			h.store.mu.Unlock()
		}
		return h.write("create", t, replace)
	case http.MethodPut:
		return h.write("update", t, replace)
	case http.MethodPatch:
		if r.Header.Get("Content-Type") == string(types.ApplyPatchType) {
			return h.apply(t, r.URL.Query(), body)
		}
		return h.write("patch", t, patch(t, r.Header.Get("Content-Type"), body))
	case http.MethodDelete:
		var options metav1.DeleteOptions
		if len(body) > 0 {
			object, err := decode(body)
			if err != nil {
				return nil, err
			}
			data, _ := json.Marshal(object.Object)
			if err := json.Unmarshal(data, &options); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
		return metav1.Status{Status: metav1.StatusSuccess}, h.store.remove(t.resource, t.key, options)
	}
	return nil, apierrors.NewMethodNotSupported(t.resource, r.Method)
}

func (h *handler) write(verb string, t target, mutate mutation) (any, error) {
	object, err := h.store.write(verb, t, mutate)
	if err != nil {
		return nil, err
	}
	return t.view(object).Object, nil
}

// view is what a client sees of an object: its scale has a kind of its own.
func (t target) view(object *unstructured.Unstructured) *unstructured.Unstructured {
	if t.subresource != "scale" || object == nil {
		return object
	}
	scale := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale"}}
	scale.SetNamespace(object.GetNamespace())
	scale.SetName(object.GetName())
	scale.SetUID(object.GetUID())
	scale.SetResourceVersion(object.GetResourceVersion())
	replicas, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "replicas")
	now, _, _ := unstructured.NestedFieldNoCopy(object.Object, "status", "replicas")
	spec := map[string]any{} // which has no field for zero
	if replicas != nil && fmt.Sprint(replicas) != "0" {
		spec["replicas"] = replicas
	}
	scale.Object["spec"], scale.Object["status"] = spec, map[string]any{"replicas": now}
	return scale
}

func patch(t target, kind string, body []byte) mutation {
	return func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		present, err := json.Marshal(before.Object)
		if err != nil {
			return nil, err
		}
		var after []byte
		switch types.PatchType(kind) {
		case types.MergePatchType:
			after, err = jsonpatch.MergePatch(present, body)
		case types.JSONPatchType:
			var operations jsonpatch.Patch
			if operations, err = jsonpatch.DecodePatch(body); err != nil {
				break
			}
			if after, err = operations.Apply(present); err != nil {
				return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
			}
		default:
			if custom(t.resource) {
				return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", t.resource, t.key.Name, kind, 0, false)
			}
			return nil, notServed("patches of type " + kind)
		}
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return decode(after)
	}
}

// decode reads JSON, or the protobuf of Kubernetes' own kinds.
func decode(body []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	if strings.HasPrefix(string(body), "k8s\x00") {
		typed, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		typed.GetObjectKind().SetGroupVersionKind(*kind)
		if body, err = json.Marshal(typed); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if err := json.Unmarshal(body, &object.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if m, ok := object.Object["metadata"].(map[string]any); ok && m["creationTimestamp"] == nil {
		delete(m, "creationTimestamp")
	}
	return object, nil
}

func (h *handler) selector(r *http.Request, t target) (func(*unstructured.Unstructured) bool, error) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	of := fieldsOf(t, &unstructured.Unstructured{})
	for _, r := range byField.Requirements() {
		if !of.Has(r.Field) {
			return nil, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	return func(object *unstructured.Unstructured) bool {
		return object != nil && (t.key.Namespace == "" || object.GetNamespace() == t.key.Namespace) &&
			selector.Matches(labels.Set(object.GetLabels())) &&
			byField.Matches(fieldsOf(t, object))
	}, nil
}

// fieldsOf returns the fields by which objects are chosen: of events also those that components ask
// for.
func fieldsOf(t target, object *unstructured.Unstructured) fields.Set {
	all := fields.Set{"metadata.name": object.GetName(), "metadata.namespace": object.GetNamespace()}
	if t.resource.Resource == "events" {
		all["involvedObject.kind"], _, _ = unstructured.NestedString(object.Object, "involvedObject", "kind")
		all["involvedObject.name"], _, _ = unstructured.NestedString(object.Object, "involvedObject", "name")
		all["reason"], _, _ = unstructured.NestedString(object.Object, "reason")
	}
	return all
}

func (h *handler) list(w http.ResponseWriter, r *http.Request, t target) {
	matches, err := h.selector(r, t)
	if err != nil {
		refuse(w, err)
		return
	}
	items, version := h.snapshot(t, matches)
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && len(items) > limit {
		refuse(w, notServed("lists in pages"))
		return
	}
	answer(w, http.StatusOK, map[string]any{"kind": kindOf(t, "") + "List", "apiVersion": t.version,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(version)}, "items": items})
}

func (h *handler) snapshot(t target, matches func(*unstructured.Unstructured) bool) ([]any, int) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	items := []any{}
	for _, object := range h.store.objects[t.resource] {
		if matches(object) {
			items = append(items, object.DeepCopy().Object)
		}
	}
	slices.SortFunc(items, func(a, b any) int { return strings.Compare(id(a), id(b)) })
	return items, h.store.version
}

func id(object any) string {
	u := unstructured.Unstructured{Object: object.(map[string]any)}
	return u.GetNamespace() + "/" + u.GetName()
}

func (h *handler) watch(w http.ResponseWriter, r *http.Request, t target) {
	matches, err := h.selector(r, t)
	if err != nil {
		refuse(w, err)
		return
	}
	from := 0
	if version := r.URL.Query().Get("resourceVersion"); version != "" {
		if from, err = strconv.Atoi(version); err != nil {
			refuse(w, apierrors.NewBadRequest("invalid resource version "+version))
			return
		}
	}
	h.store.mu.Lock()
	oldest, lost := h.store.oldest, h.store.lost
	h.store.mu.Unlock()
	if from > 0 && from < oldest {
		refuse(w, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", from, oldest)))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder, flusher := json.NewEncoder(w), w.(http.Flusher)
	send := func(kind string, object any) bool {
		return encoder.Encode(map[string]any{"type": kind, "object": object}) == nil
	}
	if initial := r.URL.Query().Get("sendInitialEvents") == "true"; initial || from == 0 {
		items, version := h.snapshot(t, matches)
		from = version
		for _, item := range items {
			send("ADDED", item)
		}
		if initial {
			send("BOOKMARK", endOfInitialEvents(t, items, version))
		}
	}
	flusher.Flush()
	for {
		h.store.mu.Lock()
		i, _ := slices.BinarySearchFunc(h.store.events, from+1, func(e event, version int) int { return e.version - version })
		pending, changed := h.store.events[i:], h.store.changed
		h.store.mu.Unlock()
		for _, e := range pending {
			from = e.version
			if e.resource != t.resource {
				continue
			}
			was, is := matches(e.before), matches(e.object) && e.kind != "DELETED"
			ok := true
			switch {
			case !was && is:
				ok = send("ADDED", e.object.Object)
			case was && is:
				ok = send("MODIFIED", e.object.Object)
			case was:
				last := e.before.DeepCopy() // an object that no longer matches is told as it last did
				last.SetResourceVersion(strconv.Itoa(e.version))
				ok = send("DELETED", last.Object)
			}
			if !ok {
				return
			}
		}
		flusher.Flush()
		select {
		case <-changed:
		case <-lost:
			return
		case <-r.Context().Done():
			return
		case <-h.stopping:
			return
		}
	}
}

// endOfInitialEvents is the object of the bookmark that ends the initial events.
func endOfInitialEvents(t target, items []any, version int) map[string]any {
	kind := "Object"
	if len(items) > 0 {
		kind = (&unstructured.Unstructured{Object: items[0].(map[string]any)}).GetKind()
	}
	return map[string]any{"kind": kindOf(t, kind), "apiVersion": t.version, "metadata": map[string]any{
		"resourceVersion": strconv.Itoa(version),
		"annotations":     map[string]any{metav1.InitialEventsAnnotationKey: "true"}}}
}

// kinds are those whose bookmark must name a kind that the client's scheme knows, though no object
// is there to tell it.
var kinds = map[string]string{
	"pods": "Pod", "services": "Service", "deployments": "Deployment", "endpointslices": "EndpointSlice", "configmaps": "ConfigMap",
	"secrets": "Secret", "leases": "Lease", "events": "Event", "revisions": "Revision", "configurations": "Configuration", "routes": "Route",
	"podautoscalers": "PodAutoscaler", "domainmappings": "DomainMapping", "clusterdomainclaims": "ClusterDomainClaim",
	"httproutes": "HTTPRoute", "gateways": "Gateway", "referencegrants": "ReferenceGrant", "namespaces": "Namespace",
	"horizontalpodautoscalers": "HorizontalPodAutoscaler", "serviceaccounts": "ServiceAccount", "nodes": "Node",
	"customresourcedefinitions": "CustomResourceDefinition", "certificates": "Certificate", "listenersets": "ListenerSet",
	"backendtlspolicies": "BackendTLSPolicy", "grpcroutes": "GRPCRoute",
}

func kindOf(t target, otherwise string) string {
	if kind, ok := kinds[t.resource.Resource]; ok {
		return kind
	}
	return otherwise
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(fmt.Errorf("%w", err))
	}
	s := status.Status()
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	answer(w, int(s.Code), s)
}
