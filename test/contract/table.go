package contract

import (
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

var table = []behaviour{
	// create
	{name: "a created object has an identity", run: func(s *subject) {
		o := s.create(widgets, widget("a", "a.example"))
		if created := o.GetCreationTimestamp(); o.GetUID() == "" || o.GetResourceVersion() == "" || created.IsZero() {
			s.Errorf("created as %v", o.Object["metadata"])
		}
		s.same("generation", o.GetGeneration(), 1)
	}},
	{name: "a kind without a spec has no generation", run: func(s *subject) {
		s.same("generation", s.create(configMaps, configMap("a", nil)).GetGeneration(), 0)
	}},
	{name: "a second create is refused", run: func(s *subject) {
		s.create(configMaps, configMap("a", nil))
		_, err := s.of(configMaps).Create(s.ctx, configMap("a", nil), metav1.CreateOptions{})
		s.refused(err, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	}},
	{name: "a create for another namespace is refused", run: func(s *subject) {
		o := configMap("a", nil)
		o.SetNamespace("other")
		_, err := s.of(configMaps).Create(s.ctx, o, metav1.CreateOptions{})
		s.refused(err, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	}},
	{name: "a create with a resource version is refused", run: func(s *subject) {
		o := configMap("a", nil)
		o.SetResourceVersion("1")
		if _, err := s.of(configMaps).Create(s.ctx, o, metav1.CreateOptions{}); err == nil {
			s.Error("it was created")
		}
	}},
	{name: "a generated name has a suffix", run: func(s *subject) {
		o := configMap("", nil)
		o.SetGenerateName("a-")
		one, two := s.create(configMaps, o), s.create(configMaps, o)
		if one.GetName() == two.GetName() || !strings.HasPrefix(one.GetName(), "a-") || len(one.GetName()) != len("a-")+5 {
			s.Errorf("the names are %q and %q", one.GetName(), two.GetName())
		}
	}},
	{name: "an object without a name is refused", run: func(s *subject) {
		_, err := s.of(configMaps).Create(s.ctx, configMap("", nil), metav1.CreateOptions{})
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}},
	{name: "an impossible name is refused", run: func(s *subject) {
		_, err := s.of(configMaps).Create(s.ctx, configMap("A_b", nil), metav1.CreateOptions{})
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}},
	{name: "an impossible label is refused", run: func(s *subject) {
		_, err := s.of(configMaps).Create(s.ctx, labelled("a", map[string]any{"a": strings.Repeat("x", 64)}), metav1.CreateOptions{})
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}},
	{name: "a created object has no status", run: func(s *subject) {
		o := widget("a", "a.example")
		o.Object["status"] = map[string]any{"ready": true}
		s.same("status", field(s.create(widgets, o), "status"), nil)
	}},
	{name: "a dry run creates nothing", refused: true, run: func(s *subject) {
		_, err := s.of(configMaps).Create(s.ctx, configMap("a", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		s.must(err)
		_, err = s.of(configMaps).Get(s.ctx, "a", metav1.GetOptions{})
		s.refused(err, http.StatusNotFound, metav1.StatusReasonNotFound)
	}},

	// get
	{name: "what is not there is not found", run: func(s *subject) {
		_, err := s.of(widgets).Get(s.ctx, "a", metav1.GetOptions{})
		s.refused(err, http.StatusNotFound, metav1.StatusReasonNotFound)
		_, err = s.of(widgets).Update(s.ctx, withVersion(widget("a", "a.example"), "1"), metav1.UpdateOptions{})
		s.refused(err, http.StatusNotFound, metav1.StatusReasonNotFound)
		_, err = s.patch(widgets, "a", types.MergePatchType, "{}")
		s.refused(err, http.StatusNotFound, metav1.StatusReasonNotFound)
		s.refused(s.of(widgets).Delete(s.ctx, "a", metav1.DeleteOptions{}), http.StatusNotFound, metav1.StatusReasonNotFound)
	}},

	// update
	{name: "an update of an old version conflicts", run: func(s *subject) {
		first := s.create(configMaps, configMap("a", map[string]any{"k": "1"}))
		second := first.DeepCopy()
		second.Object["data"] = map[string]any{"k": "2"}
		second = s.update(configMaps, second)
		if second.GetResourceVersion() == first.GetResourceVersion() {
			s.Error("the resource version is the same")
		}
		_, err := s.of(configMaps).Update(s.ctx, first, metav1.UpdateOptions{})
		s.refused(err, http.StatusConflict, metav1.StatusReasonConflict)
	}},
	{name: "an update of another uid conflicts", run: func(s *subject) {
		o := s.create(configMaps, configMap("a", nil))
		o.SetResourceVersion("")
		o.SetUID("11111111-1111-1111-1111-111111111111")
		_, err := s.of(configMaps).Update(s.ctx, o, metav1.UpdateOptions{})
		s.refused(err, http.StatusConflict, metav1.StatusReasonConflict)
	}},
	{name: "a kind of Kubernetes' own can be updated without a version", run: func(s *subject) {
		s.create(configMaps, configMap("a", nil))
		s.update(configMaps, configMap("a", map[string]any{"k": "1"}))
	}},
	{name: "a custom kind cannot be updated without a version", run: func(s *subject) {
		s.create(widgets, widget("a", "a.example"))
		_, err := s.of(widgets).Update(s.ctx, widget("a", "b.example"), metav1.UpdateOptions{})
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}},
	{name: "an update that changes nothing keeps the version", run: func(s *subject) {
		o := s.create(widgets, widget("a", "a.example"))
		s.same("resource version", s.update(widgets, o).GetResourceVersion(), o.GetResourceVersion())
		patched, err := s.patch(widgets, "a", types.MergePatchType, `{"spec":{"hosts":["a.example"]}}`)
		s.must(err)
		s.same("resource version", patched.GetResourceVersion(), o.GetResourceVersion())
	}},
	{name: "an update keeps what identifies the object", run: func(s *subject) {
		o := s.create(configMaps, configMap("a", nil))
		next := configMap("a", map[string]any{"k": "1"})
		next = s.update(configMaps, next)
		s.same("uid", next.GetUID(), o.GetUID())
		s.same("creation", next.GetCreationTimestamp(), o.GetCreationTimestamp())
	}},
	{name: "the generation counts changes of the spec", run: func(s *subject) {
		o := s.create(widgets, widget("a", "a.example"))
		o.SetLabels(map[string]string{"a": "b"})
		o = s.update(widgets, o)
		s.same("generation after a label", o.GetGeneration(), 1)
		o.Object["status"] = map[string]any{"ready": true}
		o = s.update(widgets, o, "status")
		s.same("generation after a status", o.GetGeneration(), 1)
		o.Object["spec"] = map[string]any{"hosts": []any{"b.example"}}
		o = s.update(widgets, o)
		s.same("generation after a spec", o.GetGeneration(), 2)
	}},

	// status
	{name: "only the subresource writes the status", run: func(s *subject) {
		o := s.create(widgets, widget("a", "a.example"))
		o.Object["status"] = map[string]any{"ready": true}
		o = s.update(widgets, o)
		s.same("status after an update of the object", field(o, "status"), nil)
		o.Object["status"] = map[string]any{"ready": true}
		o.Object["spec"] = map[string]any{"hosts": []any{"b.example"}}
		o.SetLabels(map[string]string{"a": "b"})
		o = s.update(widgets, o, "status")
		s.same("status", field(o, "status", "ready"), true)
		s.same("hosts", field(o, "spec", "hosts"), []string{"a.example"})
		s.same("labels", len(o.GetLabels()), 0)
		o, err := s.patch(widgets, "a", types.MergePatchType, `{"status":{"ready":false},"spec":{"hosts":["b.example"]}}`, "status")
		s.must(err)
		s.same("status", field(o, "status", "ready"), false)
		s.same("hosts", field(o, "spec", "hosts"), []string{"a.example"})
	}},
	{name: "a status of an old version conflicts", run: func(s *subject) {
		old := s.create(widgets, widget("a", "a.example"))
		next := old.DeepCopy()
		next.SetLabels(map[string]string{"a": "b"})
		s.update(widgets, next)
		old.Object["status"] = map[string]any{"ready": true}
		_, err := s.of(widgets).UpdateStatus(s.ctx, old, metav1.UpdateOptions{})
		s.refused(err, http.StatusConflict, metav1.StatusReasonConflict)
	}},

	// patch
	{name: "a merge patch adds, replaces and removes", run: func(s *subject) {
		s.create(configMaps, configMap("a", map[string]any{"keep": "1", "change": "1", "remove": "1"}))
		o, err := s.patch(configMaps, "a", types.MergePatchType, `{"data":{"change":"2","remove":null,"add":"1"}}`)
		s.must(err)
		s.same("data", o.Object["data"], map[string]string{"keep": "1", "change": "2", "add": "1"})
	}},
	{name: "a merge patch of an old version conflicts", run: func(s *subject) {
		old := s.create(configMaps, configMap("a", nil))
		_, err := s.patch(configMaps, "a", types.MergePatchType, `{"data":{"k":"1"}}`)
		s.must(err)
		_, err = s.patch(configMaps, "a", types.MergePatchType, `{"metadata":{"resourceVersion":"`+old.GetResourceVersion()+`"},"data":{"k":"2"}}`)
		s.refused(err, http.StatusConflict, metav1.StatusReasonConflict)
	}},
	{name: "a merge patch cannot change the uid", run: func(s *subject) {
		s.create(configMaps, configMap("a", nil))
		_, err := s.patch(configMaps, "a", types.MergePatchType, `{"metadata":{"uid":"11111111-1111-1111-1111-111111111111"}}`)
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}},
	{name: "a JSON patch tests before it writes", run: func(s *subject) {
		s.create(configMaps, configMap("a", map[string]any{"k": "1"}))
		o, err := s.patch(configMaps, "a", types.JSONPatchType, `[{"op":"test","path":"/data/k","value":"1"},{"op":"replace","path":"/data/k","value":"2"}]`)
		s.must(err)
		s.same("data", o.Object["data"], map[string]string{"k": "2"})
		_, err = s.patch(configMaps, "a", types.JSONPatchType, `[{"op":"test","path":"/data/k","value":"1"},{"op":"replace","path":"/data/k","value":"3"}]`)
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		s.same("data", s.get(configMaps, "a").Object["data"], map[string]string{"k": "2"})
	}},
	{name: "a JSON patch of what is not there is refused", run: func(s *subject) {
		s.create(configMaps, configMap("a", nil))
		_, err := s.patch(configMaps, "a", types.JSONPatchType, `[{"op":"remove","path":"/data/k"}]`)
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}},
	{name: "a patch that is no JSON is refused", run: func(s *subject) {
		s.create(configMaps, configMap("a", nil))
		for _, kind := range []types.PatchType{types.JSONPatchType, types.MergePatchType} {
			_, err := s.patch(configMaps, "a", kind, `{`)
			s.refused(err, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
	}},
	{name: "a custom kind takes no strategic merge patch", run: func(s *subject) {
		s.create(widgets, widget("a", "a.example"))
		_, err := s.patch(widgets, "a", types.StrategicMergePatchType, `{}`)
		s.refused(err, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType)
	}},
	{name: "a strategic merge patch merges by key", refused: true, run: func(s *subject) {
		s.create(deployments, deployment("a"))
		o, err := s.patch(deployments, "a", types.StrategicMergePatchType,
			`{"spec":{"template":{"spec":{"containers":[{"name":"d","image":"example.com/none"}]}}}}`)
		s.must(err)
		s.same("containers", len(field(o, "spec", "template", "spec", "containers").([]any)), 2)
	}},

	// apply
	{name: "an apply owns what it says", run: func(s *subject) {
		apply := func(manager string, data map[string]any) *unstructured.Unstructured {
			s.Helper()
			o, err := s.of(configMaps).Apply(s.ctx, "a", configMap("a", data), metav1.ApplyOptions{FieldManager: manager, Force: true})
			s.must(err)
			return o
		}
		apply("one", map[string]any{"a": "1", "b": "1"})
		apply("two", map[string]any{"c": "2"})
		o := apply("one", map[string]any{"a": "2"})
		s.same("data", o.Object["data"], map[string]string{"a": "2", "c": "2"})
	}},
	{name: "an apply that changes nothing keeps the version", run: func(s *subject) {
		apply := func() string {
			o, err := s.of(configMaps).Apply(s.ctx, "a", configMap("a", map[string]any{"a": "1"}), metav1.ApplyOptions{FieldManager: "one", Force: true})
			s.must(err)
			return o.GetResourceVersion()
		}
		first := apply()
		s.same("resource version", apply(), first)
	}},
	{name: "applies share a list with keys", run: func(s *subject) {
		apply := func(manager string, listeners ...any) *unstructured.Unstructured {
			s.Helper()
			o := object("gateway.networking.k8s.io/v1", "Gateway", "a", map[string]any{"spec": map[string]any{"gatewayClassName": "none", "listeners": listeners}})
			o, err := s.of(gateways).Apply(s.ctx, "a", o, metav1.ApplyOptions{FieldManager: manager, Force: true})
			s.must(err)
			return o
		}
		listener := func(name string, port int) any {
			return map[string]any{"name": name, "port": port, "protocol": "HTTP"}
		}
		apply("one", listener("a", 80), listener("b", 81))
		apply("two", listener("c", 82))
		o := apply("one", listener("a", 80))
		var got []any
		for _, l := range field(o, "spec", "listeners").([]any) {
			got = append(got, l.(map[string]any)["name"])
		}
		s.same("listeners", got, []string{"a", "c"})
	}},
	{name: "an apply names its manager", run: func(s *subject) {
		_, err := s.patch(configMaps, "a", types.ApplyPatchType, `{"apiVersion":"v1","kind":"ConfigMap"}`)
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}},
	{name: "an apply without force conflicts", refused: true, run: func(s *subject) {
		apply := func(manager string) error {
			_, err := s.of(configMaps).Apply(s.ctx, "a", configMap("a", map[string]any{"a": manager}), metav1.ApplyOptions{FieldManager: manager})
			return err
		}
		s.must(apply("one"))
		s.refused(apply("two"), http.StatusConflict, metav1.StatusReasonConflict)
	}},

	// delete
	{name: "a delete has preconditions", run: func(s *subject) {
		old := s.create(configMaps, configMap("a", nil))
		o, err := s.patch(configMaps, "a", types.MergePatchType, `{"data":{"k":"1"}}`)
		s.must(err)
		uid, version := types.UID("11111111-1111-1111-1111-111111111111"), old.GetResourceVersion()
		for _, p := range []metav1.Preconditions{{UID: &uid}, {ResourceVersion: &version}} {
			s.refused(s.of(configMaps).Delete(s.ctx, "a", metav1.DeleteOptions{Preconditions: &p}), http.StatusConflict, metav1.StatusReasonConflict)
		}
		uid, version = o.GetUID(), o.GetResourceVersion()
		s.must(s.of(configMaps).Delete(s.ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}))
		_, err = s.of(configMaps).Get(s.ctx, "a", metav1.GetOptions{})
		s.refused(err, http.StatusNotFound, metav1.StatusReasonNotFound)
	}},
	{name: "a finalizer keeps a deleted object", run: func(s *subject) {
		o := widget("a", "a.example")
		o.SetFinalizers([]string{"example.com/one"})
		s.create(widgets, o)
		s.must(s.of(widgets).Delete(s.ctx, "a", metav1.DeleteOptions{}))
		o = s.get(widgets, "a")
		if o.GetDeletionTimestamp() == nil {
			s.Fatal("it has no deletion timestamp")
		}
		s.same("generation", o.GetGeneration(), 2)
		s.must(s.of(widgets).Delete(s.ctx, "a", metav1.DeleteOptions{}))
		s.same("resource version after a second delete", s.get(widgets, "a").GetResourceVersion(), o.GetResourceVersion())
		_, err := s.patch(widgets, "a", types.MergePatchType, `{"metadata":{"finalizers":["example.com/one","example.com/two"]}}`)
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		_, err = s.patch(widgets, "a", types.MergePatchType, `{"metadata":{"deletionTimestamp":null,"labels":{"a":"b"}}}`)
		s.must(err)
		if s.get(widgets, "a").GetDeletionTimestamp() == nil {
			s.Error("a deletion was taken back")
		}
		_, err = s.patch(widgets, "a", types.MergePatchType, `{"metadata":{"finalizers":null}}`)
		s.must(err)
		_, err = s.of(widgets).Get(s.ctx, "a", metav1.GetOptions{})
		s.refused(err, http.StatusNotFound, metav1.StatusReasonNotFound)
	}},
	{name: "what an object owns goes with it", run: func(s *subject) {
		for _, how := range []metav1.DeletionPropagation{"", metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
			owner := s.create(configMaps, configMap("owner", nil))
			s.create(configMaps, owned("child", owner))
			options := metav1.DeleteOptions{}
			if how != "" {
				options.PropagationPolicy = &how
			}
			s.must(s.of(configMaps).Delete(s.ctx, "owner", options))
			s.gone(configMaps, "child")
			s.gone(configMaps, "owner")
		}
	}},
	{name: "a delete in the foreground waits for what the object owns", refused: true, run: func(s *subject) {
		owner := s.create(configMaps, configMap("owner", nil))
		child := owned("child", owner)
		child.SetFinalizers([]string{"example.com/one"})
		s.create(configMaps, child)
		s.must(s.of(configMaps).Delete(s.ctx, "owner", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}))
		s.await("the deletion of the child", func() bool { return s.get(configMaps, "child").GetDeletionTimestamp() != nil })
		s.same("finalizers", s.get(configMaps, "owner").GetFinalizers(), []string{metav1.FinalizerDeleteDependents})
		_, err := s.patch(configMaps, "child", types.MergePatchType, `{"metadata":{"finalizers":null}}`)
		s.must(err)
		s.gone(configMaps, "owner")
	}},
	{name: "an orphan stays", refused: true, run: func(s *subject) {
		owner := s.create(configMaps, configMap("owner", nil))
		s.create(configMaps, owned("child", owner))
		s.must(s.of(configMaps).Delete(s.ctx, "owner", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}))
		s.gone(configMaps, "owner")
		s.same("owners", len(s.get(configMaps, "child").GetOwnerReferences()), 0)
	}},
	{name: "a collection is deleted by selector", refused: true, run: func(s *subject) {
		s.create(configMaps, labelled("a", map[string]any{"x": "1"}))
		s.create(configMaps, labelled("b", map[string]any{"x": "2"}))
		s.must(s.of(configMaps).DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "x=1"}))
		s.gone(configMaps, "a")
		s.get(configMaps, "b")
	}},

	// list
	{name: "a list is selected by labels and names", run: func(s *subject) {
		s.create(configMaps, labelled("b", map[string]any{"x": "1", "y": "1"}))
		s.create(configMaps, labelled("a", map[string]any{"x": "1"}))
		s.create(configMaps, labelled("c", map[string]any{"x": "2"}))
		for _, c := range []struct {
			labels, fields string
			want           []string
		}{
			{"x=1", "", []string{"a", "b"}},
			{"x in (1,2),!y", "", []string{"a", "c"}},
			{"x!=1,x", "", []string{"c"}},
			{"x", "metadata.name=b", []string{"b"}},
			{"x", "metadata.name!=b", []string{"a", "c"}},
			{"x", "metadata.namespace=" + s.namespace, []string{"a", "b", "c"}},
		} {
			list, err := s.of(configMaps).List(s.ctx, metav1.ListOptions{LabelSelector: c.labels, FieldSelector: c.fields})
			s.must(err)
			s.same(c.labels+" "+c.fields, names(list), c.want)
			s.same("kind", list.GetKind(), "ConfigMapList")
			all, err := s.client.Resource(configMaps).List(s.ctx, metav1.ListOptions{LabelSelector: c.labels, FieldSelector: c.fields})
			s.must(err)
			if len(all.Items) < len(c.want) {
				s.Errorf("a list of all namespaces has %v", names(all))
			}
		}
	}},
	{name: "an unknown selector is refused", run: func(s *subject) {
		for _, o := range []metav1.ListOptions{{FieldSelector: "data.k=1"}, {LabelSelector: "a b"}} {
			_, err := s.of(configMaps).List(s.ctx, o)
			s.refused(err, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			_, err = s.of(configMaps).Watch(s.ctx, o)
			s.refused(err, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
	}},
	{name: "a list is cut at its limit", refused: true, run: func(s *subject) {
		for _, name := range []string{"a", "b", "c"} {
			s.create(configMaps, labelled(name, map[string]any{"x": "1"}))
		}
		first, err := s.of(configMaps).List(s.ctx, metav1.ListOptions{LabelSelector: "x", Limit: 2})
		s.must(err)
		s.same("first page", names(first), []string{"a", "b"})
		second, err := s.of(configMaps).List(s.ctx, metav1.ListOptions{LabelSelector: "x", Limit: 2, Continue: first.GetContinue()})
		s.must(err)
		s.same("second page", names(second), []string{"c"})
		s.same("continue", second.GetContinue(), "")
	}},
	{name: "a list within its limit is whole", run: func(s *subject) {
		s.create(configMaps, labelled("a", map[string]any{"x": "1"}))
		list, err := s.of(configMaps).List(s.ctx, metav1.ListOptions{LabelSelector: "x", Limit: 500})
		s.must(err)
		s.same("names", names(list), []string{"a"})
		s.same("continue", list.GetContinue(), "")
	}},

	// watch
	{name: "a watch tells what came after its version", run: func(s *subject) {
		s.create(configMaps, configMap("before", nil))
		w := s.watch(configMaps, metav1.ListOptions{ResourceVersion: s.version(configMaps)})
		s.create(configMaps, configMap("a", nil))
		_, err := s.patch(configMaps, "a", types.MergePatchType, `{"data":{"k":"1"}}`)
		s.must(err)
		last := s.get(configMaps, "a")
		s.must(s.of(configMaps).Delete(s.ctx, "a", metav1.DeleteOptions{}))
		s.event(w, watch.Added, "a")
		s.same("data", s.event(w, watch.Modified, "a").Object["data"], map[string]string{"k": "1"})
		deleted := s.event(w, watch.Deleted, "a")
		s.same("data of what is deleted", deleted.Object["data"], map[string]string{"k": "1"})
		if deleted.GetResourceVersion() == last.GetResourceVersion() {
			s.Error("what is deleted has the version of before")
		}
	}},
	{name: "a watch tells nothing of a write that changes nothing", run: func(s *subject) {
		o := s.create(configMaps, configMap("a", nil))
		w := s.watch(configMaps, metav1.ListOptions{ResourceVersion: s.version(configMaps)})
		s.update(configMaps, o)
		s.create(configMaps, configMap("b", nil))
		s.event(w, watch.Added, "b")
	}},
	{name: "a watch without a version begins with what is there", run: func(s *subject) {
		s.create(widgets, widget("a", "a.example"))
		_, err := s.patch(widgets, "a", types.MergePatchType, `{"metadata":{"labels":{"a":"b"}}}`)
		s.must(err)
		s.create(widgets, widget("b", "b.example"))
		s.must(s.of(widgets).Delete(s.ctx, "b", metav1.DeleteOptions{}))
		for _, version := range []string{"", "0"} {
			if version == "0" { // any version may be served: wait until the server's cache has the last
				s.await("the delete in the cache", func() bool {
					list, err := s.of(widgets).List(s.ctx, metav1.ListOptions{ResourceVersion: "0"})
					s.must(err)
					return len(list.Items) == 1
				})
			}
			w := s.watch(widgets, metav1.ListOptions{ResourceVersion: version})
			s.same("label", s.event(w, watch.Added, "a").GetLabels()["a"], "b")
			s.create(widgets, widget("c", "c.example"))
			s.event(w, watch.Added, "c")
			s.must(s.of(widgets).Delete(s.ctx, "c", metav1.DeleteOptions{}))
		}
	}},
	{name: "a watch with initial events marks their end", run: func(s *subject) {
		s.create(widgets, widget("a", "a.example"))
		w := s.watch(widgets, metav1.ListOptions{SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
		s.event(w, watch.Added, "a")
		mark := s.event(w, watch.Bookmark, "")
		s.same("mark", mark.GetAnnotations()[metav1.InitialEventsAnnotationKey], "true")
		s.create(widgets, widget("b", "b.example"))
		s.event(w, watch.Added, "b")
	}},
	{name: "an object comes and goes with its labels", run: func(s *subject) {
		w := s.watch(configMaps, metav1.ListOptions{ResourceVersion: s.version(configMaps), LabelSelector: "x=1"})
		label := func(value string) {
			_, err := s.patch(configMaps, "a", types.MergePatchType, `{"metadata":{"labels":{"x":"`+value+`"}}}`)
			s.must(err)
		}
		s.create(configMaps, configMap("a", nil))
		label("1")
		s.event(w, watch.Added, "a")
		label("2")
		s.same("label of what went", s.event(w, watch.Deleted, "a").GetLabels()["x"], "1")
		label("1")
		s.event(w, watch.Added, "a")
	}},
	{name: "a deletion is first a change while a finalizer stands", run: func(s *subject) {
		w := s.watch(configMaps, metav1.ListOptions{ResourceVersion: s.version(configMaps), LabelSelector: "x"})
		o := labelled("a", map[string]any{"x": "1"})
		o.SetFinalizers([]string{"example.com/one"})
		s.create(configMaps, o)
		s.must(s.of(configMaps).Delete(s.ctx, "a", metav1.DeleteOptions{}))
		_, err := s.patch(configMaps, "a", types.MergePatchType, `{"metadata":{"finalizers":null}}`)
		s.must(err)
		s.event(w, watch.Added, "a")
		if s.event(w, watch.Modified, "a").GetDeletionTimestamp() == nil {
			s.Error("the change has no deletion timestamp")
		}
		s.event(w, watch.Deleted, "a")
	}},
	{name: "a version from long ago has expired", run: func(s *subject) {
		w, err := s.of(widgets).Watch(s.ctx, metav1.ListOptions{ResourceVersion: "1"})
		if err == nil { // a server may say so in the stream
			defer w.Stop()
			e := <-w.ResultChan()
			status, _ := e.Object.(*metav1.Status)
			if e.Type != watch.Error || status == nil {
				s.Fatalf("the watch tells %v", e)
			}
			s.same("code", status.Code, http.StatusGone)
			return
		}
		s.refused(err, http.StatusGone, metav1.StatusReasonExpired)
	}},
	{name: "a version that is no number is refused", run: func(s *subject) {
		w, err := s.of(configMaps).Watch(s.ctx, metav1.ListOptions{ResourceVersion: "x"})
		if err == nil {
			w.Stop()
			s.Fatal("it is watched")
		}
	}},

	// scale
	{name: "the scale has its own object", run: func(s *subject) {
		s.create(deployments, deployment("a"))
		scale, err := s.of(deployments).Get(s.ctx, "a", metav1.GetOptions{}, "scale")
		s.must(err)
		s.same("kind", scale.GetAPIVersion()+" "+scale.GetKind(), "autoscaling/v1 Scale")
		s.same("replicas", or0(field(scale, "spec", "replicas")), 0)
		_, err = s.patch(deployments, "a", types.JSONPatchType, `[{"op":"test","path":"/spec/replicas","value":null},{"op":"add","path":"/spec/replicas","value":2}]`, "scale")
		s.must(err)
		s.same("replicas", field(s.get(deployments, "a"), "spec", "replicas"), 2)
		_, err = s.patch(deployments, "a", types.JSONPatchType, `[{"op":"test","path":"/spec/replicas","value":1},{"op":"add","path":"/spec/replicas","value":5}]`, "scale")
		s.refused(err, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		_, err = s.patch(deployments, "a", types.MergePatchType, `{"spec":{"replicas":3},"metadata":{"labels":{"a":"b"}}}`, "scale")
		s.must(err)
		o := s.get(deployments, "a")
		s.same("replicas", field(o, "spec", "replicas"), 3)
		s.same("label", o.GetLabels()["a"], "")
		_, err = s.patch(deployments, "b", types.MergePatchType, `{"spec":{"replicas":3}}`, "scale")
		s.refused(err, http.StatusNotFound, metav1.StatusReasonNotFound)
	}},
	{name: "a scale of an old version conflicts", run: func(s *subject) {
		old := s.create(deployments, deployment("a"))
		_, err := s.patch(deployments, "a", types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`)
		s.must(err)
		_, err = s.patch(deployments, "a", types.MergePatchType,
			`{"metadata":{"resourceVersion":"`+old.GetResourceVersion()+`"},"spec":{"replicas":2}}`, "scale")
		s.refused(err, http.StatusConflict, metav1.StatusReasonConflict)
	}},
}

// withVersion sets a resource version.
func withVersion(o *unstructured.Unstructured, version string) *unstructured.Unstructured {
	o.SetResourceVersion(version)
	return o
}

// owned is a ConfigMap that another owns.
func owned(name string, owner *unstructured.Unstructured) *unstructured.Unstructured {
	o := configMap(name, nil)
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.GetName(), UID: owner.GetUID(),
		BlockOwnerDeletion: ptr.To(true)}})
	return o
}

// or0 is a number that may be left out.
func or0(value any) any {
	if value == nil {
		return 0
	}
	return value
}

// version is a resource version that has seen all writes so far.
func (s *subject) version(resource schema.GroupVersionResource) string {
	s.Helper()
	list, err := s.of(resource).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	return list.GetResourceVersion()
}

func (s *subject) watch(resource schema.GroupVersionResource, options metav1.ListOptions) watch.Interface {
	s.Helper()
	w, err := s.of(resource).Watch(s.ctx, options)
	s.must(err)
	s.Cleanup(w.Stop)
	return w
}

// event expects the next event of a watch; a bookmark has no name. ConfigMaps that Kubernetes and
// Istio put into each namespace do not count.
func (s *subject) event(w watch.Interface, kind watch.EventType, name string) *unstructured.Unstructured {
	s.Helper()
	for {
		select {
		case e, open := <-w.ResultChan():
			o, _ := e.Object.(*unstructured.Unstructured)
			switch {
			case !open || o == nil:
				s.Fatalf("the watch ends with %v %v, want %s %s", e.Type, e.Object, kind, name)
			case strings.HasPrefix(o.GetName(), "kube-"), strings.HasPrefix(o.GetName(), "istio-"):
			case e.Type != kind || o.GetName() != name:
				s.Fatalf("the watch tells %s %s, want %s %s", e.Type, o.GetName(), kind, name)
			default:
				return o
			}
		case <-s.ctx.Done():
			s.Fatalf("the watch does not tell %s %s", kind, name)
		}
	}
}
