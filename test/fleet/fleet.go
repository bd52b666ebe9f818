// Package fleet is the API server of a cluster with many Services whose load moves, for tests and
// benchmarks of the dashboard.
//
// Owns: the server and its objects. Reads: the clock. Writes: nothing. Never: is more exact than a
// page can show: its figures are functions of the time, not of requests.
package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	view "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/test/apiservertest"
)

// Tokens, and what their holders may read.
const (
	Admin  = "token-of-an-administrator" // everything; so may tokens that begin with it
	Tenant = "token-of-a-tenant"         // the namespace TenantsNamespace
	// TenantsNamespace has the Services that a test looks at.
	TenantsNamespace = "shop"
)

// Fleet is a running API server.
type Fleet struct {
	URL *url.URL
	// Expired makes the server accept no token, AutoscalerAway makes nobody tell of load.
	Expired, AutoscalerAway atomic.Bool
	// Streams counts the views' streams that are open, Asked all requests.
	Streams, Asked atomic.Int64

	services []*service
	store    *apiservertest.Store
	behind   http.Handler
	server   *httptest.Server
	stopping chan struct{}
	stop     func()
}

// Start starts a server with so many Services, at least six.
func Start(services int) (*Fleet, error) {
	store, config, stop := apiservertest.Serve()
	to, err := url.Parse(config.Host)
	if err != nil {
		stop()
		return nil, fmt.Errorf("read the address of the API server: %w", err)
	}
	f := &Fleet{store: store, services: make([]*service, services), behind: httputil.NewSingleHostReverseProxy(to), stopping: make(chan struct{})}
	for i := range f.services {
		f.services[i] = newService(i)
		for _, object := range f.services[i].objects(time.Now()) {
			if err := f.Put(object); err != nil {
				stop()
				return nil, err
			}
		}
	}
	slices.SortFunc(f.services, func(a, b *service) int { return strings.Compare(a.key(), b.key()) })
	for _, object := range system() {
		if err := f.Put(object); err != nil {
			stop()
			return nil, err
		}
	}
	f.server = httptest.NewServer(f)
	f.URL, err = url.Parse(f.server.URL)
	f.stop = stop
	return f, err
}

// Stop ends the server and what it answers.
func (f *Fleet) Stop() {
	close(f.stopping)
	f.server.CloseClientConnections()
	f.server.Close()
	f.stop()
}

// Put stores an object.
func (f *Fleet) Put(object any) error {
	data, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("put %T into the fleet: %w", object, err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		return fmt.Errorf("put %T into the fleet: %w", object, err)
	}
	kind := u.GroupVersionKind()
	f.store.Put(schema.GroupResource{Group: kind.Group, Resource: strings.ToLower(kind.Kind) + "s"}, u)
	return nil
}

// ServeHTTP implements http.Handler.
func (f *Fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.Asked.Add(1)
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	namespace, resource, name := parse(r.URL.Path)
	isView := strings.HasPrefix(r.URL.Path, "/apis/"+view.Group+"/")
	switch {
	case f.Expired.Load() || !strings.HasPrefix(token, Admin) && token != Tenant:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	case token == Tenant && namespace != TenantsNamespace:
		where := `at the cluster scope`
		if namespace != "" {
			where = fmt.Sprintf("in the namespace %q", namespace)
		}
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("%s is forbidden: User %q cannot list resource %q in API group %q %s",
			resource, "system:serviceaccount:shop:viewer", resource, strings.Split(r.URL.Path, "/")[2], where))
	case isView && f.AutoscalerAway.Load():
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "no endpoints available for service \"autoscaler\"")
	case isView && r.URL.Query().Get("watch") != "":
		f.watch(w, r, namespace)
	case isView:
		f.views(w, r, namespace, name)
	case resource == "events":
		f.events(w, r, namespace)
	default:
		f.behind.ServeHTTP(w, r)
	}
}

func parse(path string) (namespace, resource, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	parts = parts[min(len(parts), map[bool]int{true: 2, false: 3}[parts[0] == "api"]):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 0 {
		resource = parts[0]
	}
	if len(parts) > 1 {
		name = parts[1]
	}
	return namespace, resource, name
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	write(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message})
}

func write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}

// selected are the Services that a request is about, and whether their views have everything.
func (f *Fleet) selected(r *http.Request, namespace, name string) (found []*service, full bool) {
	selector := fields.ParseSelectorOrDie(r.URL.Query().Get("fieldSelector"))
	for _, s := range f.services {
		if s.kind != broken && (namespace == "" || s.namespace == namespace) && (name == "" || s.name == name) && selector.Matches(fields.Set{"metadata.name": s.name}) {
			found = append(found, s)
		}
	}
	return found, name != "" || !selector.Empty()
}

func (f *Fleet) views(w http.ResponseWriter, r *http.Request, namespace, name string) {
	found, full := f.selected(r, namespace, name)
	if name != "" {
		if len(found) == 0 {
			refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("services.%s %q not found", view.Group, name))
			return
		}
		write(w, json.RawMessage(found[0].encoded(time.Now(), full)))
		return
	}
	list := struct {
		metav1.TypeMeta
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}{TypeMeta: metav1.TypeMeta{Kind: view.ListKind, APIVersion: view.GroupVersion.String()}, Items: []json.RawMessage{}}
	for _, s := range found {
		list.Items = append(list.Items, s.encoded(time.Now(), full))
	}
	write(w, list)
}

// watch sends all views, then those that change, as the autoscaler does.
func (f *Fleet) watch(w http.ResponseWriter, r *http.Request, namespace string) {
	f.Streams.Add(1)
	defer f.Streams.Add(-1)
	found, full := f.selected(r, namespace, "")
	w.Header().Set("Content-Type", "application/json")
	control := http.NewResponseController(w)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	kind := "ADDED"
	for round := 0; ; round++ {
		for _, s := range found {
			if !f.AutoscalerAway.Load() && (round == 0 || s.busy()) {
				if _, err := fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", kind, s.encoded(time.Now(), full)); err != nil {
					return
				}
			}
		}
		if round%15 == 14 && json.NewEncoder(w).Encode(view.Event{Type: "BOOKMARK"}) != nil {
			return
		}
		kind = "MODIFIED"
		if control.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-f.stopping:
			return
		}
	}
}

// Break closes all connections.
func (f *Fleet) Break() { f.server.CloseClientConnections() }
