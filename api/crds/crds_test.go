package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/internal/testing/schema"
)

const shipped = "../../config/crd"

func shippedFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(shipped, "*.knative.dev.yaml"))
	if err != nil || len(files) != len(kinds()) {
		t.Fatalf("%d definitions in %s (%v), want one for each of %d kinds", len(files), shipped, err, len(kinds()))
	}
	return files
}

// Without -o wide there is one word for why: the sentence is long.
func TestWhatKubectlShowsOfAPodAutoscaler(t *testing.T) {
	external, _ := schema.Load(t, filepath.Join(shipped, "podautoscalers.autoscaling.internal.knative.dev.yaml"))
	got := map[int32][]string{}
	for _, version := range external.Spec.Versions {
		for _, column := range version.AdditionalPrinterColumns {
			got[column.Priority] = append(got[column.Priority], column.Name+" "+column.JSONPath)
		}
	}
	want := map[int32][]string{
		0: {"DesiredScale .status.desiredScale", "ActualScale .status.actualScale", "Asleep .status.asleep", "Ready .status.conditions[?(@.type=='Ready')].status",
			"Reason .status.conditions[?(@.type=='Ready')].reason", "Rule .status.decision.rule"},
		1: {"Mode .status.mode", "Why .status.decision.reason"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// The API server's own validation: structural schema, list maps, defaults, and the estimated cost
// of every rule.
func TestTheAPIServerAcceptsEveryDefinition(t *testing.T) {
	for _, file := range shippedFiles(t) {
		_, internal := schema.Load(t, file)
		internal.Status.StoredVersions = []string{internal.Spec.Versions[0].Name}
		for _, err := range validation.ValidateCustomResourceDefinition(context.Background(), internal) {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}
	}
}

// kubectl apply keeps what it applied in an annotation, and annotations may take 256 KiB
// altogether.
func TestDefinitionsFitKubectlApply(t *testing.T) {
	for _, file := range shippedFiles(t) {
		external, _ := schema.Load(t, file)
		text, err := yaml.Marshal(external)
		if err != nil {
			t.Fatal(err)
		}
		asJSON, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		if len(asJSON) > 128<<10 {
			t.Errorf("%s is %d bytes as JSON, want at most half of the 256 KiB that annotations may have", filepath.Base(file), len(asJSON))
		}
	}
}

func TestDefinitionsHaveWhatClientsLookFor(t *testing.T) {
	both := "duck.knative.dev/addressable duck.knative.dev/podspecable"
	want := map[string]struct{ short, categories, columns, ducks, version, scope string }{
		"services.serving.knative.dev":                        {"kservice ksvc", "all knative serving", "URL LatestCreated LatestReady Ready Reason", both, "v1", "Namespaced"},
		"configurations.serving.knative.dev":                  {"config cfg", "all knative serving", "LatestCreated LatestReady Ready Reason", "duck.knative.dev/podspecable", "v1", "Namespaced"},
		"revisions.serving.knative.dev":                       {"rev", "all knative serving", "Config Name Generation Ready Reason Actual Replicas Desired Replicas", "", "v1", "Namespaced"},
		"routes.serving.knative.dev":                          {"rt", "all knative serving", "URL Ready Reason", "duck.knative.dev/addressable", "v1", "Namespaced"},
		"domainmappings.serving.knative.dev":                  {"dm", "all knative serving", "URL Ready Reason", "", "v1beta1", "Namespaced"},
		"podautoscalers.autoscaling.internal.knative.dev":     {"kpa pa", "knative-internal autoscaling", "DesiredScale ActualScale Asleep Ready Reason Rule Mode Why", "", "v1alpha1", "Namespaced"},
		"clusterdomainclaims.networking.internal.knative.dev": {"cdc", "knative-internal networking", "", "", "v1alpha1", "Cluster"},
	}
	for _, file := range shippedFiles(t) {
		external, _ := schema.Load(t, file)
		w, ok := want[external.Name]
		if !ok {
			t.Errorf("%s: nobody expects it", external.Name)
			continue
		}
		var columns, ducks []string
		for _, column := range external.Spec.Versions[0].AdditionalPrinterColumns {
			columns = append(columns, column.Name)
		}
		for _, key := range []string{"duck.knative.dev/addressable", "duck.knative.dev/podspecable"} {
			if external.Labels[key] == "true" {
				ducks = append(ducks, key)
			}
		}
		got := w
		got.short, got.categories = strings.Join(external.Spec.Names.ShortNames, " "), strings.Join(external.Spec.Names.Categories, " ")
		got.columns, got.ducks = strings.Join(columns, " "), strings.Join(ducks, " ")
		got.version, got.scope = external.Spec.Versions[0].Name, string(external.Spec.Scope)
		if got != w {
			t.Errorf("%s: got %+v, want %+v", external.Name, got, w)
		}
		if external.Labels["knative.dev/crd-install"] != "true" || external.Labels["app.kubernetes.io/name"] != "knative-serving" ||
			external.Labels["app.kubernetes.io/version"] == "" {
			t.Errorf("%s: labels %v", external.Name, external.Labels)
		}
		if external.Spec.Versions[0].Subresources == nil || external.Spec.Versions[0].Subresources.Status == nil {
			t.Errorf("%s has no status subresource", external.Name)
		}
	}
}

func TestGeneratedTwiceIsTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("loads the types")
	}
	t.Chdir("../..")
	first, second := t.TempDir(), t.TempDir()
	for _, folder := range []string{first, second} {
		if err := run(folder); err != nil {
			t.Fatal(err)
		}
	}
	files, _ := filepath.Glob(filepath.Join(first, "*"))
	for _, file := range files {
		a, _ := os.ReadFile(file)
		b, _ := os.ReadFile(filepath.Join(second, filepath.Base(file)))
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs from run to run", filepath.Base(file))
		}
	}
}

// admit does what the API server does with a manifest, without webhooks.
func admit(t *testing.T, resource, manifest string) (map[string]any, field.ErrorList) {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatalf("%v in %s", err, manifest)
	}
	var object map[string]any
	// Kubernetes' own decoder keeps integers integers, as the rules expect.
	if err := json.Unmarshal(asJSON, &object); err != nil {
		t.Fatal(err)
	}
	kind := schema.Of(t, filepath.Join(shipped, resource+".serving.knative.dev.yaml"))
	kind.Decode(object)
	return object, kind.Validate(object)
}

const service = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, namespace: default}
spec:
  template:
    metadata:
      name: hello-one
      annotations: {autoscaling.knative.dev/min-scale: "1"}
    spec:
      containers:
      - image: example.test/hello
        ports: [{containerPort: 8080}]
`

// The schema refuses on its own, so that a webhook that is down lets nothing through that it would
// break on.
func TestTheSchemaRefusesWithoutTheWebhook(t *testing.T) {
	for _, test := range []struct{ name, resource, manifest, want string }{
		{"a plain service passes", "services", service, ""},
		{"a name that is no host label", "services", strings.Replace(service, "name: hello,", "name: Hello.there,", 1), "must be a DNS-1035 label"},
		{"no containers", "services", strings.Split(service, "      containers:")[0] + "      timeoutSeconds: 3", "spec.template.spec.containers: Required value"},
		{"an empty list of containers", "services", strings.Split(service, "      containers:")[0] + "      containers: []", "spec.template.spec.containers"},
		{"a percentage over 100", "services", service + "  traffic: [{percent: 101}]", "spec.traffic[0].percent"},
		{"a negative percentage", "services", service + "  traffic: [{percent: -1},{percent: 101}]", "spec.traffic[0].percent"},
		{"percentages that do not add up", "services", service + "  traffic: [{percent: 50},{percent: 49, revisionName: a}]", "must add up to 100"},
		{"no traffic targets at all", "services", service + "  traffic: []", ""},
		{"a tag that is no host label", "services", service + "  traffic: [{percent: 100, tag: Blue_}]", "spec.traffic[0].tag"},
		{"a configuration in a service", "services", service + "  traffic: [{percent: 100, configurationName: x}]", "must not set the field(s): configurationName"},
		{"latestRevision with a name", "services", service + "  traffic: [{percent: 100, revisionName: x, latestRevision: true}]", "latestRevision must be true exactly"},
		{"latestRevision false without a name", "services", service + "  traffic: [{percent: 100, latestRevision: false}]", "latestRevision must be true exactly"},
		{"a url in the spec", "services", service + "  traffic: [{percent: 100, url: http://x}]", "must not set the field(s): url"},
		{"a negative concurrency", "services", service + "      containerConcurrency: -1", "spec.template.spec.containerConcurrency"},
		{"a negative timeout", "services", service + "      timeoutSeconds: -1", "spec.template.spec.timeoutSeconds"},
		{"the sidecar's name", "services", strings.Replace(service, "- image", "- name: queue-proxy\n        image", 1), "queue-proxy is reserved"},
		{"the same variable twice", "services", service + "        env: [{name: A}, {name: A}]", "Duplicate value"},
		{"a port out of range", "services", strings.Replace(service, "8080", "70000", 1), "containerPort"},
		{"both targets in a route", "routes", "metadata: {name: r}\nspec: {traffic: [{percent: 100, revisionName: a, configurationName: b}]}", "got both"},
		{"a route to a configuration", "routes", "metadata: {name: r}\nspec: {traffic: [{percent: 100, configurationName: b}]}", ""},
		{"a reference without a group", "domainmappings", "metadata: {name: example.com}\nspec: {ref: {kind: Service, name: a}}", "apiVersion, group"},
		{"a Secret without a name", "domainmappings", "metadata: {name: example.com}\nspec: {ref: {kind: Service, name: a, apiVersion: serving.knative.dev/v1}, tls: {secretName: ''}}", "spec.tls.secretName"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := admit(t, test.resource, test.manifest)
			switch {
			case test.want == "" && len(errs) > 0:
				t.Errorf("refused: %v", errs)
			case test.want != "" && (len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), test.want)):
				t.Errorf("got %v, want an error with %q", errs, test.want)
			}
		})
	}
}

func TestTheSchemaDropsAndKeepsFieldsAndFillsDefaults(t *testing.T) {
	object, errs := admit(t, "services", service+`
        stdin: true
        tty: true
        lifecycle: {postStart: {exec: {command: [x]}}}
        readinessProbe: {grpc: {port: 1}, terminationGracePeriodSeconds: 3}
        env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name, unheardOf: 1}}}]
      restartPolicy: Never
      nodeName: n
      affinity: {unheardOf: true}
      tolerations: [{key: spot, unheardOf: 1}]
      initContainers: [{image: x, unheardOf: 1}]
      volumes: [{name: v, emptyDir: {unheardOf: 1}, nfs: {server: x, path: y}}]
`)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	spec := object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	text, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	want := `affinity:
  unheardOf: true
containers:
- env:
  - name: A
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
        unheardOf: 1
  image: example.test/hello
  ports:
  - containerPort: 8080
    protocol: TCP
  readinessProbe:
    grpc:
      port: 1
      service: ""
initContainers:
- image: x
  unheardOf: 1
tolerations:
- key: spot
  unheardOf: 1
volumes:
- emptyDir:
    unheardOf: 1
  name: v
`
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	metadata := object["spec"].(map[string]any)["template"].(map[string]any)["metadata"].(map[string]any)
	if metadata["name"] != "hello-one" || len(metadata["annotations"].(map[string]any)) != 1 {
		t.Errorf("the template's metadata is %v", metadata)
	}
}
