package migrate

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const manifests = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: ebb-external, namespace: knative-serving}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: services.serving.knative.dev}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: activator, namespace: knative-serving}
spec: {selector: {matchLabels: {app: activator}}, template: {spec: {containers: [{name: a, image: "r/activator:1", resources: {requests: {cpu: 500m, memory: 60Mi}}}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: autoscaler, namespace: knative-serving}
spec: {selector: {matchLabels: {app: autoscaler}}, replicas: 2, template: {spec: {containers: [{name: a, image: "r/autoscaler:1", resources: {requests: {cpu: 100m}}}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller, namespace: knative-serving}
spec: {selector: {matchLabels: {app: controller}}, template: {spec: {containers: [{name: a, image: "r/controller:1"}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: webhook, namespace: knative-serving}
spec: {selector: {matchLabels: {app: webhook}}, template: {spec: {containers: [{name: a, image: "r/webhook:1"}]}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config-deployment, namespace: knative-serving}
data: {queue-sidecar-image: "r/queue-proxy:1", _example: new}
`

func ebb(t *testing.T) Manifests {
	t.Helper()
	objects, err := parse([]byte(manifests))
	if err != nil {
		t.Fatal(err)
	}
	m := Manifests(objects)
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
	return m
}

func available(name string, labels map[string]string) Object {
	o := object("apps/v1", "Deployment", "knative-serving", name)
	o.SetLabels(labels)
	o.Object["status"] = map[string]any{"availableReplicas": int64(1), "conditions": []any{map[string]any{"type": "Available", "status": "True"}}}
	return o
}

// movable is an installation that can be moved.
func movable(t *testing.T) *Inventory {
	x := &Inventory{Kubernetes: "v1.33.0", minor: 33, kinds: map[schema.GroupResource]bool{}, deployments: map[string]Object{}, manifests: ebb(t),
		counts: map[string]int{"services": 2}, ingressClasses: map[string]int{"gateway-api.ingress.networking.knative.dev": 2},
		settings: map[string]map[string]string{"config-autoscaler": {"stable-window": "30s"}},
		nodes:    []room{{name: "n", cpu: resource.MustParse("2"), memory: resource.MustParse("1Gi"), images: ebb(t).images()}}}
	for _, r := range slices.Concat(onlyKnative, []schema.GroupVersionResource{servingServices, revisions, routes, mappings, autoscalers, httpRouteResource, gatewayResource, listenerSetResource}) {
		x.kinds[r.GroupResource()] = true
	}
	for _, name := range components {
		x.deployments[name] = available(name, map[string]string{"app.kubernetes.io/version": "v1.15.2"})
	}
	x.deployments["net-gateway-api-controller"] = available("net-gateway-api-controller", nil)
	return x
}

// Whatever stands in the way is said before anything is touched, with what to do.
func TestACheckSaysWhatStandsInTheWay(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Inventory)
		state  string
		text   string
	}{
		"nothing":             {func(*Inventory) {}, OK, "version v1.15.2"},
		"no rights":           {func(x *Inventory) { x.missing = []string{"delete deployments.apps"} }, Broken, "you may not delete deployments.apps"},
		"an old Kubernetes":   {func(x *Inventory) { x.minor, x.Kubernetes = 29, "v1.29.3" }, Broken, "v1.29.3 is too old"},
		"no Gateway API":      {func(x *Inventory) { x.kinds[gatewayResource.GroupResource()] = false }, Broken, "it is not there"},
		"an old Gateway API":  {func(x *Inventory) { x.kinds[listenerSetResource.GroupResource()] = false }, Warning, "no ListenerSets"},
		"no Knative":          {func(x *Inventory) { clear(x.kinds) }, Broken, "it is not there"},
		"Ebb is there":        {func(x *Inventory) { x.without(onlyKnative...) }, Broken, "those of Ebb, which is installed already"},
		"a kind is gone":      {func(x *Inventory) { x.without(metrics) }, Broken, "half removed: there is no kind metrics.autoscaling"},
		"a component is gone": {func(x *Inventory) { delete(x.deployments, "activator") }, Broken, "half removed: the namespace"},
		"a component is down": {func(x *Inventory) { delete(x.deployments["controller"].Object, "status") }, Broken, "its controller is not available"},
		"a component grows": {func(x *Inventory) {
			x.deployments["activator"].Object["status"].(map[string]any)["conditions"] = []any{map[string]any{"type": "Available", "status": "False"}}
		}, OK, "version v1.15.2"},
		"a way back has begun": {func(x *Inventory) { x.state = &state{Phase: rollingBack, Done: []string{"settings"}} }, Broken, "a rollback to Knative is in progress, done: settings"},
		"a move has begun":     {func(x *Inventory) { x.state = &state{Phase: applying, Knative: "v1"}; clear(x.deployments) }, OK, "a move of version v1 has begun, after: nothing"},
		"a wrong setting":      {func(x *Inventory) { x.settings["config-autoscaler"]["stable-window"] = "1s" }, Broken, "stable-window"},
		"KServe":               {func(x *Inventory) { x.kserve = &KServe{} }, Warning, "answer 404"},
		"the sidecar of KServe": {func(x *Inventory) {
			x.settings["config-deployment"] = map[string]string{"queue-sidecar-image": "kserve/qpext:latest"}
		}, OK, "taken over"},
		"an unknown setting":               {func(x *Inventory) { x.settings["config-autoscaler"]["magic"] = "1" }, Warning, `key "magic" has no effect`},
		"an unknown ConfigMap":             {func(x *Inventory) { x.settings["config-kourier"] = map[string]string{"a": "b"} }, Warning, "ConfigMap config-kourier: Ebb does not read it"},
		"another scaler":                   {func(x *Inventory) { x.scalerClasses = map[string]int{"keda.example.com": 3} }, Warning, "3 Revisions have the class keda.example.com"},
		"a liveness probe of another port": {func(x *Inventory) { x.livenessElsewhere = []string{"shop/cart-00001"} }, Warning, "such as shop/cart-00001"},
		"another gateway":                  {func(x *Inventory) { x.ingressClasses = map[string]int{"kourier.ingress.networking.knative.dev": 1} }, Warning, "another address"},
		"no plugin":                        {func(x *Inventory) { delete(x.deployments, "net-gateway-api-controller") }, Warning, "no plugin that serves it"},
		"another certificate":              {func(x *Inventory) { x.certificateClasses = map[string]int{"http01.example": 1} }, Warning, "class http01.example"},
		"no room":                          {func(x *Inventory) { x.nodes[0].cpu = resource.MustParse("600m") }, Broken, "ask for 700m CPUs"},
		"an image is not there":            {func(x *Inventory) { x.nodes[0].images = nil }, Warning, "r/queue-proxy:1"},
		"no room, in the middle ":          {func(x *Inventory) { x.state, x.nodes = &state{Phase: applying}, nil }, OK, "ask for 700m CPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			x := movable(t)
			tt.change(x)
			findings := x.Findings()
			if !slices.ContainsFunc(findings, func(f Finding) bool {
				return f.State == tt.state && strings.Contains(f.Text, tt.text) && (f.State != Broken || f.Do != "")
			}) {
				t.Errorf("nothing says %s %q: %+v", tt.state, tt.text, findings)
			}
			for _, f := range findings {
				if tt.state != Broken && f.State == Broken {
					t.Errorf("this stands in the way: %+v", f)
				}
			}
		})
	}
}

// Knative's pods ask the serving port, whatever their liveness probe says.
func TestLivenessProbesOfAnotherPortAreFound(t *testing.T) {
	for probe, want := range map[string]bool{
		"": false, "tcpSocket: {port: 9000}": true, "httpGet: {path: /live, port: 9000}": true,
		"httpGet: {port: 8888}": false, "httpGet: {port: 0}": false, "httpGet: {port: http1}": false, "grpc: {port: 9000}": false, // Knative asks what this says
		"exec: {command: [ls]}": false,
	} {
		objects, err := parse([]byte("apiVersion: serving.knative.dev/v1\nkind: Revision\nmetadata: {name: cart-00001, namespace: shop}\n" +
			"spec: {containers: [{name: a, ports: [{containerPort: 8888, name: http1}], livenessProbe: {" + probe + "}}, {name: b}]}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := livenessElsewhere(objects[0]); got != want {
			t.Errorf("%q: %v", probe, got)
		}
	}
}

func (x *Inventory) without(kinds ...schema.GroupVersionResource) {
	for _, r := range kinds {
		x.kinds[r.GroupResource()] = false
	}
}

func TestManifestsThatCannotBeInstalledAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"not those of a release": strings.Replace(manifests, "r/activator:1", "ko://ebb.dev/ebb/activator", 1),
		"Knative's":              strings.Replace(manifests, "r/activator:1", "gcr.io/knative-releases/activator", 1),
		"a component is missing": strings.Replace(manifests, "name: webhook,", "name: other,", 1),
		"no kinds":               strings.Replace(manifests, "CustomResourceDefinition", "Thing", 1),
	} {
		objects, err := parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if Manifests(objects).check() == nil {
			t.Errorf("%s: they were taken", name)
		}
	}
	if _, err := parse([]byte("a: b\n")); err == nil {
		t.Error("an object without a kind was taken")
	}
}

func TestSettingsAreTakenOverButForTheImages(t *testing.T) {
	have := object("v1", "ConfigMap", "knative-serving", "config-deployment")
	have.Object["data"] = map[string]any{"queue-sidecar-image": "knative", "progress-deadline": "90s", "_example": "old"}
	var want Object
	for _, o := range ebb(t) {
		if o.GetKind() == "ConfigMap" {
			want = o
		}
	}
	data, _, _ := unstructured.NestedStringMap(settingsOver(have, want).Object, "data")
	if data["queue-sidecar-image"] != "r/queue-proxy:1" || data["progress-deadline"] != "90s" || data["_example"] != "new" || len(data) != 3 {
		t.Errorf("got %v", data)
	}
}

func TestWhatTheClusterHasChosenStays(t *testing.T) {
	have := object("v1", "Service", "knative-serving", "webhook")
	have.SetUID("u")
	have.SetResourceVersion("7")
	have.SetLabels(map[string]string{"theirs": "1"})
	have.SetAnnotations(map[string]string{appliedAnnotation: "x", "kept": "1"})
	have.Object["spec"] = map[string]any{"clusterIP": "10.0.0.1", "selector": map[string]any{"app": "webhook", "role": "webhook"}}
	want := object("v1", "Service", "knative-serving", "webhook")
	want.Object["spec"] = map[string]any{"selector": map[string]any{"app": "webhook"}}
	next := over(have, want)
	selector, _, _ := unstructured.NestedStringMap(next.Object, "spec", "selector")
	ip, _, _ := unstructured.NestedString(next.Object, "spec", "clusterIP")
	if len(selector) != 1 || ip != "10.0.0.1" || next.GetUID() != "u" || next.GetResourceVersion() != "7" || next.GetLabels()["theirs"] != "1" ||
		next.GetAnnotations()["kept"] != "1" || fromEbb(next) {
		t.Errorf("got %v", next.Object)
	}
}

func TestWhatWasThereIsRemembered(t *testing.T) {
	before := available("controller", map[string]string{"a": "b"})
	before.SetResourceVersion("3")
	packed, err := pack([]Object{clean(before)})
	if err != nil {
		t.Fatal(err)
	}
	after, err := unpack(packed)
	if err != nil || len(after) != 1 {
		t.Fatalf("got %v, %v", after, err)
	}
	s := &state{Before: after}
	if had := s.had(before); had == nil || had.GetResourceVersion() != "" || had.Object["status"] != nil || had.GetLabels()["a"] != "b" {
		t.Errorf("got %v", had)
	}
	if s.had(available("other", nil)) != nil {
		t.Error("another object was taken for it")
	}
	if _, err := unpack([]byte("damaged")); err == nil {
		t.Error("a damaged state was read")
	}
}
