package admit

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/json"

	"ebb.dev/ebb/internal/testing/schema"
)

// exported is what other tools write, and a Deployment takes: numbers that are quantities, and a
// null for what is not set.
var exported = map[string]string{
	"services": `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, namespace: default}
spec:
  traffic: null
  template:
    metadata: {creationTimestamp: null}
    spec:
      POD
`, "configurations": `
apiVersion: serving.knative.dev/v1
kind: Configuration
metadata: {name: hello, namespace: default}
spec:
  template:
    metadata: null
    spec:
      POD
`, "revisions": `
apiVersion: serving.knative.dev/v1
kind: Revision
metadata: {name: hello, namespace: default}
spec:
      POD
`, "routes": `
apiVersion: serving.knative.dev/v1
kind: Route
metadata: {name: hello, namespace: default}
spec: {traffic: null}
`, "domainmappings": `
apiVersion: serving.knative.dev/v1beta1
kind: DomainMapping
metadata: {name: example.com, namespace: default}
spec: {tls: null, ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: hello, namespace: null, group: null}}
`}

const exportedPod = `containerConcurrency: null
      enableServiceLinks: null
      serviceAccountName: null
      imagePullSecrets: null
      nodeSelector: null
      affinity: null
      initContainers: null
      containers:
      - image: example.test/hello
        name: null
        args: null
        command: null
        envFrom: null
        env: [{name: A, value: null, valueFrom: null}]
        ports: [{containerPort: 8080, name: null, protocol: null}]
        resources: {requests: {cpu: 0.5, memory: 1e8}, limits: {cpu: 1.5, memory: 100000000000000000000000, ephemeral-storage: null}, claims: null}
        securityContext: {capabilities: {add: null, drop: null}, runAsUser: null}
        livenessProbe: {httpGet: {port: 0, httpHeaders: null, host: null}, exec: null, failureThreshold: null}
        startupProbe: null
        volumeMounts: [{name: v, mountPath: /v, subPath: null}, {name: w, mountPath: /w}, {name: x, mountPath: /x}]
      - {image: example.test/beside, env: null, resources: null, volumeMounts: null, securityContext: null, livenessProbe: null, resources: {limits: {cpu: 0.25}}}
      volumes:
      - {name: v, emptyDir: {sizeLimit: 1.5, medium: null}, secret: null}
      - {name: w, configMap: {name: c, items: null, defaultMode: null}}
      - name: x
        projected:
          defaultMode: null
          sources:
          - {secret: null, downwardAPI: {items: [{path: cpu, mode: null, resourceFieldRef: {containerName: user-container-0, resource: limits.cpu, divisor: 0.001}}]}}`

func decoded(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil { // which keeps whole numbers whole, as the API server does
		t.Fatal(err)
	}
	return object
}

// The webhook settles what the schema, which the API server asks after it, would refuse. That a
// manifest is applied again changes nothing.
func TestWhatADeploymentTakesTheSchemaTakes(t *testing.T) {
	for resource, manifest := range exported {
		kind := schema.Of(t, "../../../config/crd/"+resource+".serving.knative.dev.yaml")
		for how, arrive := range map[string]func(map[string]any){"create": kind.Decode, "server-side apply": kind.Apply} {
			t.Run(how+" of "+resource, func(t *testing.T) {
				h := newHandler(t, nil, nil)
				request := requestFor(t, strings.Replace(manifest, "POD", exportedPod, 1))
				wanted := decoded(t, request.Object.Raw)
				written := func(object map[string]any) map[string]any {
					t.Helper()
					arrive(object)
					request.Object.Raw, _ = json.Marshal(object)
					text, refusal := defaulted(t, h, request)
					if refusal != "" {
						t.Fatal(refusal)
					}
					object = decoded(t, text)
					for _, err := range kind.Validate(object) {
						t.Error(err)
					}
					request.Object.Raw = text
					if r := ask(t, h, PathValidation, request); !r.Allowed {
						t.Error(r.Result.Message)
					}
					return object
				}
				first := written(decoded(t, request.Object.Raw))
				if resource == "revisions" {
					return // nobody writes one twice
				}
				request.Operation, request.OldObject.Raw = admissionv1.Update, request.Object.Raw
				if diff := cmp.Diff(first, written(overlay(decoded(t, request.Object.Raw), wanted))); diff != "" {
					t.Errorf("applied again (-first +second):\n%s", diff)
				}
			})
		}
	}
}

// overlay applies a manifest to a stored object: the fields of objects one by one, lists as a
// whole.
func overlay(stored, manifest map[string]any) map[string]any {
	out := maps.Clone(stored)
	for name, value := range manifest {
		inner, isObject := value.(map[string]any)
		if have, both := stored[name].(map[string]any); isObject && both {
			out[name] = overlay(have, inner)
		} else {
			out[name] = value
		}
	}
	return out
}

// A quantity that the schema knows must be in the list, or a fraction there is refused.
func TestEveryQuantityOfTheSchemaIsSettled(t *testing.T) {
	_, definition := schema.Load(t, "../../../config/crd/revisions.serving.knative.dev.yaml")
	var found []string
	var walk func(path string, s *apiextensions.JSONSchemaProps)
	walk = func(path string, s *apiextensions.JSONSchemaProps) {
		if s.XIntOrString && !strings.HasSuffix(path, ".port") { // which takes a name or a number
			found = append(found, path)
		}
		for name, inner := range s.Properties {
			walk(strings.TrimPrefix(path+"."+name, "."), &inner)
		}
		if s.Items != nil && s.Items.Schema != nil {
			walk(path+".*", s.Items.Schema)
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			walk(path+".*", s.AdditionalProperties.Schema)
		}
	}
	spec := definition.Spec.Validation.OpenAPIV3Schema.Properties["spec"]
	walk("", &spec)
	slices.Sort(found)
	if diff := cmp.Diff(found, quantities); diff != "" {
		t.Errorf("(-schema +list):\n%s", diff)
	}
}

func TestWhatTheSchemaTakesIsNotSettled(t *testing.T) {
	for _, text := range []string{
		`{"spec":{"containers":[{"resources":{"limits":{"cpu":1,"memory":"1.5Gi"}}}]}}`,
		`{"spec":{"template":{"metadata":{"creationTimestamp":null,"labels":{"a":null}},"spec":{"volumes":[{"emptyDir":{"sizeLimit":0.5}}]}}}}`,
		`{"metadata":{"labels":null},"status":{"url":null}}`,
		`{"spec":{"template":{"spec":{"containers":["x",null,{"resources":{"limits":[0.5]}}]}}}}`,
		`{"spec":null}`, `[]`, `{`, `0.5`,
	} {
		if got := settle([]byte(text)); string(got) != text {
			t.Errorf("%s became %s", text, got)
		}
	}
}

// The words of the webhook, not the schema's, say what is wrong with a number that is no quantity.
func TestNumbersThatAreNoQuantitiesAreRefused(t *testing.T) {
	h := newHandler(t, nil, nil)
	request := requestFor(t, strings.Replace(hello, "image: example.test/hello", "image: a, resources: {limits: {cpu: -0.5}}", 1))
	object, _ := defaulted(t, h, request)
	request.Object.Raw = object
	if r := ask(t, h, PathEarly, request); r.Allowed || !strings.Contains(r.Result.Message, "resources.limits.cpu") {
		t.Errorf("%+v", r.Result)
	}
}
